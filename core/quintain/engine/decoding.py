"""Forward passes over a key-value cache: prefill (`extend`) and one token per row (`step`).

`LayerForward` computes the layers itself; `ModuleForward` calls a transformers module with our
cache. Both keep each row at its own position, so rows start and end independently. `BatchForward`
is for modules that allow neither.

Shapes: n rows, T new tokens, S tokens in the cache, D hidden size, H and K query and key heads, E
head size, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from ..models.adapters import body_of
from ..models.kernels import kernels_of
from ..models.layers import Decoder, Layer, attend, cache_shape, rms_norm
from ..models.probe import logit_map_of
from ..models.routers import Routers
from ..models.transfers import to_device
from .cache import KVStore, RoutedStore, RowCache

NO_ROUTERS = Routers([])

PrefixCache = list[tuple[Tensor, Tensor]]
"""Keys and values of a prefix, per layer, [1, P, K, E] each."""


class Steps(Protocol):
    """Some steps of decoding for a fixed set of rows; counts their positions."""

    def step(self, ids: Tensor) -> Tensor:
        """Append one token per row, [n]; returns the logits of the next, [n, V]."""
        ...


class DecodingForward(Protocol):
    """A model over a cache of rows.

    Attributes:
        store: the cache; ``None`` where rows cannot start and end independently, so that a batch
            runs to its end.
    """

    device: torch.device
    vocab_size: int

    @property
    def store(self) -> KVStore | None: ...

    def extend(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Append *ids* to *rows*, which hold *starts* tokens; returns the logits after the last of
        each, [n, V].
        """
        ...

    def steps(self, lengths: Sequence[int], count: int) -> Steps:
        """Begin up to *count* steps on rows ``0 .. n-1``, which hold *lengths* tokens."""
        ...

    def hidden(self, ids: Tensor, prefix: PrefixCache | None = None) -> Tensor:
        """Run a plain causal forward pass of ids [n, T] without the cache, each row behind
        *prefix*; returns the input of `head`, [n, T, D].
        """
        ...

    def prefix_cache(self, ids: Sequence[int]) -> PrefixCache | None:
        """Compute what `hidden` needs of the *ids* that several rows begin with; ``None`` where it
        cannot be given.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Compute the logits [..., V] of hidden states [..., D]."""
        ...

    def refresh(self) -> None:
        """Read weights again that have changed in their place."""
        ...

    def experts(self, row: int, count: int) -> tuple[str, ...]:
        """Return the experts of the first *count* tokens of a row, see
        `quintain.types.transcript.Sampled`; nothing where they are not recorded.
        """
        ...


def padded(ids: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Pad on the right with 0 to [n, T]. Causal attention looks left only, so the padding changes
    nothing before it.
    """
    longest = max(len(row) for row in ids)
    rows = [[*row, *[0] * (longest - len(row))] for row in ids]
    return torch.tensor(rows, device=device)


def appended(
    ids: Sequence[Sequence[int]], starts: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Lay out *ids* for rows that hold *starts* tokens.

    Returns:
        the padded ids and their positions in the rows, each [n, T]; where the last of each row's
        *ids* stands among them, [n]; and the length of the longest row with its padding.
    """
    ids_NT = padded(ids, device)
    starts_N1 = torch.tensor(starts, device=device)[:, None]
    positions_NT = starts_N1 + torch.arange(ids_NT.shape[1], device=device)
    last_N = torch.tensor([len(row) - 1 for row in ids], device=device)
    return ids_NT, positions_NT, last_N, max(starts) + ids_NT.shape[1]


class LayerForward:
    """Runs the layers of a `Decoder`: joined projections, rows of different lengths, few operations
    per layer.
    """

    cache: ClassVar[type[KVStore]] = KVStore

    def __init__(self, decoder: Decoder, context: int, *, graphs: bool = True) -> None:
        self.decoder = decoder
        decoder.pack()
        self.device = decoder.device
        self.vocab_size = decoder.vocab_size
        shape = (len(decoder.layers), decoder.key_heads, decoder.head_dim)
        self.store = self.cache(*shape, dtype=decoder.dtype, device=self.device, context=context)
        self._tables = (torch.empty(0), torch.empty(0))
        self._weights: list[_StepWeights] = []  # of steps that are kept
        kernels = kernels_of(self.device)
        self._static = kernels and kernels.steps(
            decoder, self.store, self.steps_over, graphs=graphs
        )

    def rotary_tables(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of at least the first *length* positions, each [length or
        more, E].
        """
        if self._tables[0].shape[0] < length:
            self._tables = self.decoder.rotary(torch.arange(length, device=self.device))
        return self._tables

    def extend(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        ids_NT, positions_NT, last_N, reach = appended(ids, starts, self.device)
        rows_N = torch.tensor(rows, device=self.device)
        self.store.reserve(max(rows) + 1, reach)
        # If all rows are empty, attention is plainly causal over the new tokens: no mask, and no
        # cache to read back.
        mask = None if not any(starts) else visible(positions_NT, reach)
        cos, sin = self.angles(rows, ids, starts, positions_NT)
        hidden, added = self.decoder.begin(ids_NT)
        for layer in self.decoder.layers:
            query, key, value = self.decoder.qkv(layer, hidden, cos, sin)
            # The padding is written, too, beyond the row's end. Masks hide it, and later tokens
            # overwrite it.
            self.store.write(layer.index, rows_N, positions_NT, key, value)
            if mask is not None:
                key, value = self.store.read(layer.index, rows_N, reach)
            hidden = self.decoder.after_attention(
                layer, hidden, attend(query, key, value, mask, self.decoder.scaling)
            )
            if layer.index < len(added):
                hidden = hidden + added[layer.index]
        # Only the last token of each row is sampled from, so the wide product with the head is for
        # these alone.
        newest = hidden[torch.arange(len(ids), device=self.device), last_N]
        return self.head(self.decoder.final_norm(newest))

    def angles(
        self,
        rows: Sequence[int],
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        positions_NT: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines, each [n, T, E], of *ids* at *positions_NT* of their rows; see
        `extend`.
        """
        cos, sin = self.rotary_tables(self.store.capacity)
        return cos[positions_NT], sin[positions_NT]

    def positions(self, ids: Tensor, before: int) -> Tensor:
        """Return the rotary positions of *ids* [n, T] behind *before* tokens of text."""
        return before + torch.arange(ids.shape[1], device=self.device).expand_as(ids)

    def steps(self, lengths: Sequence[int], count: int) -> Steps:
        self.store.reserve(len(lengths), max(lengths) + count)
        if self._static:
            return cast(Steps, self._static.begin(lengths))
        return self.steps_over(lengths, self.attention(lengths))

    def attention(self, lengths: Sequence[int]) -> CacheAttention:
        """Return what steps on rows of *lengths* tokens attend by, where no kernels do."""
        return MaskedAttention(self.decoder, self.store, lengths)

    def steps_over(self, lengths: Sequence[int], attention: CacheAttention) -> LayerSteps:
        """Begin steps on rows of *lengths* tokens that attend by *attention*."""
        tables = self.rotary_tables(self.store.capacity)
        weights = self._weights or [_StepWeights(self.decoder, x) for x in self.decoder.layers]
        if self._static:
            self._weights = weights
        return LayerSteps(self.decoder, self.store, tables, lengths, attention, weights)

    def refresh(self) -> None:
        for weights in self._weights:
            weights.refresh(self.decoder)

    def hidden(self, ids: Tensor, prefix: PrefixCache | None = None) -> Tensor:
        return self.decoder.final_norm(self._layers(ids, prefix)[0])

    def prefix_cache(self, ids: Sequence[int]) -> PrefixCache | None:
        return self._layers(torch.tensor([list(ids)], device=self.device), None)[1]

    def _layers(self, ids: Tensor, prefix: PrefixCache | None) -> tuple[Tensor, PrefixCache]:
        """Run ids [n, T] behind *prefix*; returns [n, T, D] and the keys and values of *ids*
        alone.
        """
        before = prefix[0][0].shape[1] if prefix else 0
        # Behind a prefix a token sees all of it and its own row so far; without one attention is
        # plainly causal.
        places = before + torch.arange(ids.shape[1], device=self.device)[None]
        mask = visible(places, before + ids.shape[1]) if prefix else None
        cos, sin = self.decoder.rotary(self.positions(ids, before))
        hidden, added = self.decoder.begin(ids)
        computed: PrefixCache = []
        for index, layer in enumerate(self.decoder.layers):
            query, key, value = self.decoder.qkv(layer, hidden, cos, sin)
            computed.append((key, value))
            if prefix:
                old_key, old_value = prefix[index]
                key = torch.cat((old_key.expand(len(ids), -1, -1, -1), key), dim=1)
                value = torch.cat((old_value.expand(len(ids), -1, -1, -1), value), dim=1)
            hidden = self.decoder.after_attention(
                layer, hidden, attend(query, key, value, mask, self.decoder.scaling)
            )
            if index < len(added):
                hidden = hidden + added[index]
        return hidden, computed

    def head(self, hidden: Tensor) -> Tensor:
        return self.decoder.head(hidden)

    def experts(self, row: int, count: int) -> tuple[str, ...]:
        return ()


class CacheAttention(Protocol):
    """Attention of the newest token of each row over its row of the cache."""

    def open(self, slots: Tensor) -> None:
        """Let each row see one token more, at *slots* [n K]."""
        ...

    def mix(self, layer: int, query: Tensor) -> Tensor:
        """Compute the attention of queries [n, H, E] in *layer*, [n, H E]."""
        ...


class MaskedAttention:
    """Reads as many tokens of each row as the longest has, and masks those beyond its end."""

    def __init__(self, decoder: Decoder, store: KVStore, lengths: Sequence[int]) -> None:
        self._scaling = decoder.scaling
        self._longest = max(lengths)
        groups = len(lengths) * decoder.key_heads
        self._groups = groups
        capacity = store.capacity
        device = decoder.device
        # Rows have different lengths: the mask is minus infinity beyond the end of each. A step
        # opens one more place per row instead of building a mask.
        ends = to_device(lengths, device).repeat_interleave(decoder.key_heads)
        ahead = torch.arange(capacity, device=device)[None] >= ends[:, None]
        self._mask = torch.zeros(groups, 1, capacity, dtype=decoder.dtype, device=device)
        self._mask.masked_fill_(ahead[:, None], float("-inf"))
        # The cache is read as n * K rows of S places, one per sequence and key head, without a
        # copy.
        self._halves: list[tuple[Tensor, Tensor]] = []
        for data in store.data:
            both = data.view(2, -1, capacity, decoder.head_dim)[:, :groups]
            self._halves.append((both[0], both[1]))

    def open(self, slots: Tensor) -> None:
        self._longest += 1  # on the host: a maximum over positions would wait for the device
        self._mask.view(-1).index_fill_(0, slots, 0)  # its rows lie as those of the cache

    def mix(self, layer: int, query: Tensor) -> Tensor:
        keys, values = self._halves[layer]
        # No row has more, so what lies beyond need not be read.
        keys = keys[:, : self._longest]
        values = values[:, : self._longest]
        mask = self._mask[:, :, : self._longest]
        # The queries that share a key head become the queries of one row: grouped attention is then
        # a plain product.
        grouped = query.reshape(self._groups, -1, query.shape[-1])
        if keys.dtype.itemsize == 2:
            # The fused kernel keeps scores and weights in float32 inside. It needs four dimensions.
            seen = mask[:, None].expand(-1, 1, grouped.shape[1], -1)
            mixed = functional.scaled_dot_product_attention(
                grouped[:, None],
                keys[:, None],
                values[:, None],
                attn_mask=seen,
                scale=self._scaling,
            )[:, 0]
        else:
            # Up to some hundred tokens two products and a softmax are faster than the fused
            # kernel, made for many queries.
            scores = torch.baddbmm(mask, grouped, keys.transpose(1, 2), alpha=self._scaling)
            mixed = torch.bmm(scores.softmax(-1), values)
        return mixed.reshape(len(query), -1)


class LayerSteps:
    """Steps of a fixed set of rows.

    At small sizes the number of operations decides, not their size. So the layer is written out
    here in about 15 of them: norm and rotation act on queries and keys together, residuals are
    added inside the products (`addmm`), and what does not change between steps is computed once.

    Attributes:
        positions: of the next token of each row, [n].
        begins: of each row and key head, its place in the flat memory of a layer, [n, K].
    """

    def __init__(
        self,
        decoder: Decoder,
        store: KVStore,
        tables: tuple[Tensor, Tensor],
        lengths: Sequence[int],
        attention: CacheAttention,
        weights: Sequence[_StepWeights],
    ) -> None:
        self._decoder = decoder
        self._store = store
        self._attention = attention
        device = decoder.device
        self.positions = to_device(lengths, device)
        groups = torch.arange(len(lengths) * decoder.key_heads, device=device)
        self.begins = groups.view(-1, decoder.key_heads) * store.capacity
        cos, sin = tables
        half = decoder.head_dim // 2
        # The rotation negates the first half of the turned vector. Negating the sines once saves
        # that in each step.
        self._cos = cos
        self._sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        self._weights = weights
        self._head = decoder.head.without_gradient()

    def step(self, ids: Tensor) -> Tensor:
        decoder = self._decoder
        positions = self.positions
        # Opened before the layers run: a token attends to itself, too.
        slots = (self.begins + positions[:, None]).flatten()
        self._attention.open(slots)
        cos = self._cos[positions][:, None]
        sin = self._sin[positions][:, None]
        hidden = decoder.embed(ids)
        for weights in self._weights:
            hidden = self._layer(weights, hidden, cos, sin, slots)
        positions.add_(1)
        return self._head(decoder.final_norm(hidden))

    def _layer(
        self, w: _StepWeights, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        decoder = self._decoder
        heads = decoder.heads
        key_heads = decoder.key_heads
        head_dim = decoder.head_dim
        flat = w.qkv(decoder.rms_norm(w.layer.before_attention, hidden)).view(
            len(hidden), heads + 2 * key_heads, head_dim
        )
        # Queries and keys are neighbours in the joined product, so norm and rotation handle both in
        # one operation each.
        both = flat[:, : heads + key_heads]
        if w.head_weight is not None:
            both = rms_norm(both, w.head_weight, w.epsilon)
        # x cos + roll(x) sin with signed sines is the half-split rotation: see
        # `models.layers.rotate`.
        rotated = torch.addcmul(both * cos, both.roll(head_dim // 2, -1), sin)
        data = self._store.data[w.layer.index]
        new_keys = rotated[:, heads:].reshape(-1, head_dim)
        new_values = flat[:, heads + key_heads :].reshape(-1, head_dim)
        data[0].view(-1, head_dim).index_copy_(0, slots, new_keys)
        data[1].view(-1, head_dim).index_copy_(0, slots, new_values)
        hidden = w.output(hidden, self._attention.mix(w.layer.index, rotated[:, :heads]))
        gate, up = w.gate_up(decoder.rms_norm(w.layer.before_feedforward, hidden)).chunk(2, dim=-1)
        return w.down(hidden, functional.silu(gate).mul_(up))


class _StepWeights:
    """One layer's weights as its step reads them, looked up once for many steps."""

    def __init__(self, decoder: Decoder, layer: Layer) -> None:
        self.layer = layer
        self.qkv = layer.qkv.without_gradient()
        self.gate_up = layer.gate_up.without_gradient()
        self.output = layer.output.onto()
        self.down = layer.down.onto()
        self.head_weight, self.epsilon = decoder.head_norm(layer)

    def refresh(self, decoder: Decoder) -> None:
        """Copy what is no view of the weights of *decoder*, in its place."""
        weight, _ = decoder.head_norm(self.layer)
        if weight is not None and self.head_weight is not None:
            self.head_weight.copy_(weight)


def visible(positions_NT: Tensor, reach: int) -> Tensor:
    """Return which of the first *reach* tokens each query may see, [n, 1, T, reach]."""
    tokens = torch.arange(reach, device=positions_NT.device)
    return (tokens <= positions_NT[..., None])[:, None]


class ModuleForward:
    """Calls any transformers module with plain causal attention, on our cache and a mask of
    ours.

    Args:
        routers: of the module, whose choices are recorded; none records nothing.
    """

    def __init__(self, module: Any, context: int, routers: Routers = NO_ROUTERS) -> None:
        self.module = module
        self._routers = routers
        self._body = body_of(module)
        self._cache_name = cache_name(self._body)
        self._logit_map = logit_map_of(module)
        first = next(module.parameters())
        config = module.config.get_text_config()
        self.device = first.device
        self.vocab_size: int = config.vocab_size
        options: Any = {"dtype": first.dtype, "device": first.device, "context": context}
        self.store: KVStore = KVStore(*cache_shape(config), **options)
        if routers:
            self.store = RoutedStore(*cache_shape(config), width=routers.width, **options)

    def extend(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        ids_NT, positions_NT, last_N, reach = appended(ids, starts, self.device)
        self.store.reserve(max(rows) + 1, reach)
        return self.forward(
            torch.tensor(rows, device=self.device), ids_NT, positions_NT, reach, last_N
        )

    def forward(
        self, rows_N: Tensor, ids_NT: Tensor, positions_NT: Tensor, reach: int, last_N: Tensor
    ) -> Tensor:
        """Compute the logits after token ``last_N`` of each row, [n, V]."""
        with self._routers.watched() as choices:
            hidden = self._body(
                input_ids=ids_NT,
                # padding may reach beyond the last position
                position_ids=positions_NT.clamp(max=self.store.context - 1),
                attention_mask=additive(visible(positions_NT, reach), self.store.dtype),
                use_cache=True,
                **{self._cache_name: RowCache(self.store, rows_N, positions_NT, reach)},
            )[0]
        if isinstance(self.store, RoutedStore):
            # Those of padding, too, beyond the row's end, as its keys and values.
            chosen = self._routers.chosen(choices).view(*ids_NT.shape, -1)
            self.store.experts[rows_N[:, None], positions_NT] = chosen
        return self.head(hidden[torch.arange(len(rows_N), device=self.device), last_N])

    def steps(self, lengths: Sequence[int], count: int) -> Steps:
        self.store.reserve(len(lengths), max(lengths) + count)
        return _ModuleSteps(self, lengths)

    def hidden(self, ids: Tensor, prefix: PrefixCache | None = None) -> Tensor:
        return cast(Tensor, self._body(input_ids=ids, use_cache=False)[0])

    def prefix_cache(self, ids: Sequence[int]) -> PrefixCache | None:
        return None

    def head(self, hidden: Tensor) -> Tensor:
        return self._logit_map(self.module.get_output_embeddings()(hidden))

    def refresh(self) -> None:
        """Do nothing: the module reads its own weights."""

    def experts(self, row: int, count: int) -> tuple[str, ...]:
        if not isinstance(self.store, RoutedStore):
            return ()
        return self._routers.texts(self.store.experts[row, :count])


class _ModuleSteps:
    def __init__(self, forward: ModuleForward, lengths: Sequence[int]) -> None:
        self._forward = forward
        self._positions = torch.tensor(lengths, device=forward.device)[:, None]
        self._rows = torch.arange(len(lengths), device=forward.device)
        self._first = torch.zeros_like(self._rows)
        self._longest = max(lengths)

    def step(self, ids: Tensor) -> Tensor:
        self._longest += 1
        logits = self._forward.forward(
            self._rows, ids[:, None], self._positions, self._longest, self._first
        )
        self._positions = self._positions + 1
        return logits


def cache_name(module: Any) -> str:
    """Return the argument of a module's forward, and the field of its output, that is the cache.

    transformers has one name for all modules since 5.24.
    """
    arguments = inspect.signature(module.forward).parameters
    names = ("cache", "cache_params", "past_key_values")
    return next((name for name in names if name in arguments), "past_key_values")


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask into numbers to add to scores."""
    # All attention implementations of transformers accept this form; boolean masks only some.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )


class BatchForward:
    """Calls any transformers module on left-padded prompts and the module's own cache; a batch runs
    until all end.

    Args:
        routers: of the module, whose choices are recorded; none records nothing.

    Attributes:
        rows: size of the current batch.
    """

    def __init__(self, module: Any, routers: Routers = NO_ROUTERS) -> None:
        self.module = module
        self._routers = routers
        self._chosen: list[Tensor] = []  # in each pass of the batch, [n, T, width]
        self.device = next(module.parameters()).device
        self.vocab_size: int = module.config.get_text_config().vocab_size
        self.rows = 0
        self.store = None
        self._arguments = inspect.signature(module.forward).parameters
        self._cache_name = cache_name(module)
        self._cache: Any = None
        self._mask = torch.empty(0)

    def extend(
        self, rows: Sequence[int], ids: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Begin a batch; *rows* must be ``0 .. n-1`` and *starts* 0."""
        assert list(rows) == list(range(len(rows))), (
            f"a fixed batch has rows 0 .. n-1, not {list(rows)}"
        )
        self.rows = len(rows)
        longest = max(len(row) for row in ids)
        pads = [longest - len(row) for row in ids]
        # Padding on the left, so that the newest token of every row stands in the last column.
        padded_rows = [[*[0] * pad, *row] for pad, row in zip(pads, ids, strict=True)]
        batch = torch.tensor(padded_rows, device=self.device)
        pads_N1 = torch.tensor(pads, device=self.device)[:, None]
        self._mask = (torch.arange(longest, device=self.device)[None] >= pads_N1).long()
        self._cache = None
        self._chosen = []
        return self._forward(batch)

    def steps(self, lengths: Sequence[int], count: int) -> Steps:
        return self

    def step(self, ids: Tensor) -> Tensor:
        self._mask = torch.cat((self._mask, torch.ones_like(self._mask[:, :1])), dim=-1)
        return self._forward(ids[:, None])

    def _forward(self, ids_NT: Tensor) -> Tensor:
        width = ids_NT.shape[1]
        # Left padding does not count: the first real token of each row is at position 0.
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)[:, -width:]
        options: dict[str, Any] = {} if self._cache is None else {self._cache_name: self._cache}
        if "position_ids" in self._arguments:
            options["position_ids"] = positions
        mask = None if self._cache is not None and self._is_state() else self._mask
        with self._routers.watched() as choices:
            output = self.module(input_ids=ids_NT, attention_mask=mask, use_cache=True, **options)
        if self._routers:
            self._chosen.append(self._routers.chosen(choices).view(*ids_NT.shape, -1))
        self._cache = getattr(output, self._cache_name)
        return cast(Tensor, output.logits[:, -1])

    def _is_state(self) -> bool:
        """Return whether the cache has no keys (Mamba); then steps take no mask."""
        if self._cache_name != "cache":
            return self._cache_name == "cache_params"
        return not any(hasattr(layer, "keys") for layer in getattr(self._cache, "layers", ()))

    def hidden(self, ids: Tensor, prefix: PrefixCache | None = None) -> Tensor:
        """Return the logits already, since the module may change them after its output layer."""
        return cast(Tensor, self.module(input_ids=ids, use_cache=False).logits)

    def prefix_cache(self, ids: Sequence[int]) -> PrefixCache | None:
        return None

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def refresh(self) -> None:
        """Do nothing: the module reads its own weights."""

    def experts(self, row: int, count: int) -> tuple[str, ...]:
        if not self._chosen:
            return ()
        of_row = torch.cat([chosen[row] for chosen in self._chosen])
        return self._routers.texts(of_row[self._mask[row].bool()][:count])
