"""The layers of a Llama-, Qwen2- or Qwen3-shaped transformers module as plain functions.

Decoding and training call these functions instead of the module's own forward, because they decide
themselves what is cached, what sequences share and how attention reads it. The weights stay in the
module; nothing is copied.

Shapes: N sequences, T tokens, D hidden size, H query heads, K key heads, E head size, V vocabulary.
Functions take any leading dimensions, written ``...``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .adapters import base_of, has_adapters
from .joined_product import joined_product
from .packed import PackedLinear, packs
from .transfers import on_gpu

FAMILIES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}
)
"""``config.model_type`` of the modules against which `Decoder` is tested."""

STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not depend on the length of the sequence."""


class JoinedLinear:
    """Several linear maps of one input in one product: [..., D] to their concatenated outputs.

    Attributes:
        parts: the modules; where one has an adapter, or has its weight sharded, each is called on
            its own.
        weight, bias: views over those of all parts, where `fuse_storage` joined them in memory,
            else ``None``.
    """

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        plain = all(type(part) is nn.Linear and type(part.weight) is nn.Parameter for part in parts)
        self._biases = plain and all(part.bias is not None for part in self.parts)
        self._plain = plain and (self._biases or all(part.bias is None for part in self.parts))
        self._packed: PackedLinear | None = None
        if self._plain:
            self.bias = _adjacent([part.bias for part in self.parts]) if self._biases else None
            weight = _adjacent([part.weight for part in self.parts])
            self.weight = weight if self.bias is not None or not self._biases else None

    def __call__(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.without_gradient()(x)
        return self._by_parts(x)

    def _by_parts(self, x: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return cast(Tensor, self.parts[0](x))
        if not self._plain:
            return torch.cat([part(x) for part in self.parts], dim=-1)
        weights = [part.weight for part in self.parts]
        biases = [part.bias for part in self.parts] if self._biases else []
        return joined_product(x, weights, biases, self._joined)

    def _joined(self, weights: Sequence[Tensor]) -> Tensor:
        """Return *weights*, those of all parts, as one tensor: the view where it covers them, else a
        copy.
        """
        return cast(Tensor, self.weight) if self._lies_joined() else torch.cat(tuple(weights))

    def pack(self) -> None:
        """Keep a packed copy of the weights for calls without autograd; adapters have none."""
        if self._plain and not self.parts[0].weight.is_inference():
            self._packed = PackedLinear(self.parts)

    def without_gradient(self) -> Callable[[Tensor], Tensor]:
        """Return the same map with all checks made now, for loops that call it thousands of
        times.
        """
        if self._packed is not None:
            return self._packed.fresh()
        if not self._lies_joined():
            return self._by_parts
        return partial(functional.linear, weight=cast(Tensor, self.weight), bias=self.bias)

    def onto(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return hidden + map(x) as a function of hidden and x, in one operation where it can be,
        with all checks made now.
        """
        if self._packed is not None:
            return self._packed.fresh().add
        if not self._lies_joined() or self.bias is not None:
            return lambda hidden, x: hidden + self._by_parts(x)
        weight = cast(Tensor, self.weight).t()
        return lambda hidden, x: torch.addmm(hidden, x, weight)

    def _lies_joined(self) -> bool:
        """Return whether the view still covers all weights: moving or casting the module gives them
        other storage.
        """
        return self.weight is not None and self.weight.data_ptr() == self.parts[0].weight.data_ptr()


class Layer:
    """One decoder layer: its modules, and its linear maps, joined where they read the same input.

    Attributes:
        block: the module of transformers.
        qkv: query, key and value projections.
        output: the projection of the mixed values.
        gate_up: the two projections into the feed-forward network.
        down: the projection out of it.
    """

    def __init__(self, index: int, block: Any) -> None:
        self.index, self.block = index, block
        self.attention, self.feedforward = attention, feedforward = block.self_attn, block.mlp
        self.before_attention = block.input_layernorm
        self.before_feedforward = block.post_attention_layernorm
        self.qkv = JoinedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.output = JoinedLinear(attention.o_proj)
        self.gate_up = JoinedLinear(feedforward.gate_proj, feedforward.up_proj)
        self.down = JoinedLinear(feedforward.down_proj)


class Decoder:
    """A read-only view of a causal language model, from `Decoder.of`.

    Attributes:
        layers: one `Layer` per decoder layer.
        heads, key_heads, head_dim: H, K, E.
        scaling: factor on the attention scores.
        embed: ids [...] to hidden states [..., D].
        head: the output layer, [..., D] to [..., V]; its weight is that of *embed* where the two
            are tied.
    """

    def __init__(self, base: Any) -> None:
        self.vocab_size: int = base.config.vocab_size
        self.heads: int = base.config.num_attention_heads
        _, self.key_heads, self.head_dim = cache_shape(base.config)
        self.scaling: float = self.head_dim**-0.5
        self.layers = tuple(Layer(i, block) for i, block in enumerate(base.model.layers))
        self.embed, self.head = base.model.embed_tokens, JoinedLinear(base.lm_head)
        self._base = base
        self._final_norm, self._rotary = base.model.norm, base.model.rotary_emb

    @classmethod
    def of(cls, module: nn.Module) -> Self | None:
        """Return the view, or ``None`` where *module* has another architecture, so that only its
        own forward works.

        Adapters of peft take part: their modules are called.
        """
        base = language_of(base_of(module))
        return cls(base) if _is_plain(base) else None

    def pack(self) -> None:
        """Read the weights of linear maps from packed copies, where that pays and autograd is off."""
        size = sum(p.numel() * p.element_size() for p in self._base.parameters())
        if packs(self.device.type, self.dtype, size):
            for layer in self.layers:
                for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                    linear.pack()
            self.head.pack()

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def begin(self, ids: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the hidden states [..., D] of *ids*, and for the first layers what is added to the
        output of each, [..., D]: a table of embeddings that knows pictures may have that.
        """
        of_pictures = getattr(self.embed, "begin", None)
        return of_pictures(ids) if of_pictures else (self.embed(ids), ())

    def rotary(self, positions: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [..., E], of integer *positions* [...]; angles are
        computed in float32.
        """
        like = torch.empty(0, dtype=dtype or self.dtype, device=self.device)
        cos, sin = self._rotary(like, positions.reshape(1, -1))
        shape = (*positions.shape, self.head_dim)
        return cos.reshape(shape), sin.reshape(shape)

    def qkv(
        self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [..., H, E], keys and values [..., K, E] of *hidden* [..., D], normed and
        rotated.

        Args:
            cos, sin: from `rotary`, of the positions of *hidden*.
        """
        joined = layer.qkv(self.rms_norm(layer.before_attention, hidden))
        return self.split_heads(layer, joined, cos, sin)

    def split_heads(
        self, layer: Layer, joined: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise and rotate the joined projections [..., (H + 2 K) E]: the second half of `qkv`."""
        heads = joined.unflatten(-1, (-1, self.head_dim))
        query, key, value = heads.split((self.heads, self.key_heads, self.key_heads), dim=-2)
        if hasattr(layer.attention, "q_norm"):
            query, key = (
                self.rms_norm(layer.attention.q_norm, query),
                self.rms_norm(layer.attention.k_norm, key),
            )
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def head_norm(self, layer: Layer) -> tuple[Tensor | None, float]:
        """Return the norm weights of queries and keys, [H + K, E] or ``None`` without such norms,
        and the epsilon.
        """
        if not hasattr(layer.attention, "q_norm"):
            return None, 0.0
        query, key = layer.attention.q_norm, layer.attention.k_norm
        weights = (query.weight.expand(self.heads, -1), key.weight.expand(self.key_heads, -1))
        return torch.cat(weights), query.variance_epsilon

    def after_attention(self, layer: Layer, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Finish *layer*: add to *hidden* [..., D] the attention's output, of the mixed values
        *mixed* [..., H, E], and then that of the feed-forward network.
        """
        hidden = hidden + layer.output(mixed.flatten(-2))
        joined = layer.gate_up(self.rms_norm(layer.before_feedforward, hidden))
        return hidden + layer.down(self.gated(joined))

    def gated(self, joined: Tensor) -> Tensor:
        """Compute silu(gate) * up, [..., W], from the two projections joined, [..., 2 W]."""
        gate, up = joined.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the last norm, [..., D]; `head` takes its output."""
        return self.rms_norm(self._final_norm, hidden)

    def rms_norm(self, norm: Any, hidden: Tensor) -> Tensor:
        """Apply the root-mean-square norm *norm*, a module, to *hidden*."""
        return rms_norm(hidden, norm.weight, norm.variance_epsilon)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the root-mean-square norm over the last dimension, E. Half precision is widened
    inside, as in transformers.

    Args:
        weight: [E], or one per head [heads, E].
    """
    size = x.shape[-1:]
    if x.dtype not in (torch.float32, torch.float64):
        return weight * functional.rms_norm(x.float(), size, None, epsilon).to(x.dtype)
    if weight.ndim == 1:
        return functional.rms_norm(x, size, weight, epsilon)
    return functional.rms_norm(x, size, None, epsilon).mul_(weight)


def product_type(x: Tensor) -> torch.dtype:
    """Return the type in which a matrix product of *x* runs here, under autocast or not."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotary embedding in the half-split convention of transformers: [..., heads, E]
    with *cos*, *sin* [..., E].

    Decoders for training and the decoding step compute the same with fused multiply-adds, each in
    the form that is fastest there; results differ in the last bit.
    """
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cos.unsqueeze(-2) + turned * sin.unsqueeze(-2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Compute the attention of queries [N, T, H, E] over keys and values [N, S, K, E] -> [N, T, H,
    E].

    Args:
        mask: additive or boolean, broadcastable to [N, 1, T, S]; ``None`` is causal (then T = S).
    """
    if needs_all_heads(query, key, mask):
        key, value = (
            x.repeat_interleave(query.shape[2] // x.shape[2], dim=2) for x in (key, value)
        )
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )
    return mixed.transpose(1, 2)


def needs_all_heads(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Return whether fast attention of grouped heads [N, T, H, E] over [N, S, K, E] needs a key
    head for each query head.

    On a GPU torch has a fast kernel for groups in flash attention alone, which takes neither a mask
    nor float32; else the math kernel would keep the scores of all heads, [N, H, T, S]. The
    memory-efficient kernel takes both, but no groups. The kernels of a CPU take groups and masks.
    """
    if not on_gpu(query.device) or query.shape[2] == key.shape[2]:
        return False
    half = query.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda")
    return mask is not None or not half


def fuse_storage(module: nn.Module) -> bool:
    """Join the query, key and value weights of each layer in memory, and those of gate and up.

    The parameters keep their names and stay separate: optimizers, ``state_dict`` and
    ``save_pretrained`` see no difference. One matrix product over the joined storage replaces three
    (two), and in-place updates show in it at once. Moving or casting the module afterwards
    separates them again, so fuse last.

    Returns:
        whether it was done; models with adapters and other architectures stay as they are.
    """
    base = language_of(module)
    if has_adapters(module) or not _is_plain(base):
        return False
    for block in base.model.layers:
        attention, feedforward = block.self_attn, block.mlp
        for parts in (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (feedforward.gate_proj, feedforward.up_proj),
        ):
            if all(type(part) is nn.Linear for part in parts):
                _rehome([part.weight for part in parts])
                _rehome([part.bias for part in parts if part.bias is not None])
    return True


def _rehome(parameters: list[nn.Parameter]) -> None:
    if len(parameters) < 2 or _adjacent(parameters) is not None:
        return  # joined already: joining again would leave earlier views on dead storage
    together = torch.cat([p.detach() for p in parameters])
    for parameter, view in zip(
        parameters, together.split([p.shape[0] for p in parameters]), strict=True
    ):
        parameter.data = view


def language_of(base: Any) -> Any:
    """Return *base*, or of a model with a vision tower what `Decoder` reads of its language model."""
    body = getattr(base, "model", None)
    language = getattr(body, "language_model", None) or getattr(body, "text_model", None)
    if language is None or not hasattr(base, "lm_head"):
        return base
    config = base.config.get_text_config()
    return SimpleNamespace(
        config=config, model=language, lm_head=base.lm_head, parameters=base.parameters
    )


def _is_plain(base: Any) -> bool:
    config: Any = getattr(base, "config", None)
    if getattr(config, "model_type", None) not in FAMILIES or not hasattr(base, "lm_head"):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.hidden_act in ("silu", "swish")
        and rope.get("rope_type", "default") in STATIC_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and not has_windows(config)
        and getattr(base.lm_head, "bias", None) is None
        and hasattr(base, "model")
        and hasattr(base.model, "rotary_emb")
    )


def cache_shape(config: Any) -> tuple[int, int, int]:
    """Return layers, key heads and head size of a text model's *config*; keys and values each cache
    their product. Where layers differ, as in Gemma 4, those of the largest.
    """

    def heads_of(layer: Any) -> tuple[int, int]:
        heads = layer.num_attention_heads
        key_heads = getattr(layer, "num_key_value_heads", None) or heads
        return key_heads, getattr(layer, "head_dim", None) or layer.hidden_size // heads

    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    return (config.num_hidden_layers, *max(map(heads_of, layers), key=math.prod))


def steady_length(config: Any) -> int | None:
    """Return the length of the longest sequence whose rotary frequencies are its own, by a text
    model's *config*; ``None`` without a limit.

    Beyond it, the frequencies of all rows of a batch follow its longest row (``longrope``,
    ``dynamic``).
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # one per kind of layer
    kinds = [rope] if "rope_type" in rope else [kind for kind in rope.values() if kind]
    changing = [kind for kind in kinds if kind.get("rope_type", "default") not in STATIC_ROPE]
    field = "original_max_position_embeddings"
    return min(
        (kind.get(field) or config.max_position_embeddings for kind in changing), default=None
    )


def has_windows(config: Any) -> bool:
    """Return whether some layers of a text model's *config* attend to a window only, which no short
    probe can notice.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is not None or hasattr(config, "window_size")


def _adjacent(parameters: list[nn.Parameter]) -> Tensor | None:
    """Return one tensor over *parameters* if they follow each other in one storage, as after
    `fuse_storage`.
    """
    first = parameters[0]
    address = first.data_ptr()
    for parameter in parameters:
        shares = parameter.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not shares or parameter.data_ptr() != address or not parameter.is_contiguous():
            return None
        address += parameter.numel() * parameter.element_size()
    rows = sum(p.shape[0] for p in parameters)
    return first.detach().as_strided(
        (rows, *first.shape[1:]), first.stride(), first.storage_offset()
    )
