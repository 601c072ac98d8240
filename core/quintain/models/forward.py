"""Training forward passes: rows (sequences) of tokens to hidden states at the positions whose
log-probs are needed.

Layouts:
    shared: over the layers of `Decoder`. The common prefix of a prefix group is computed once and
    read by all its rows;
        gradients flow back through it. Linear layers see no padding, attention only what a
        micro-batch needs.
    bucketed: the module's own forward over right-padded rows. packed: the module's own forward over
    one row whose position ids restart, for attention kernels of variable length.

Shapes: F flat tokens, N positions, D hidden size, M prefix groups, G rows of a group, P tokens of a
common prefix, T tokens of a rest, H query heads, K key heads, E head size.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from ..errors import UsageError
from .fused import TrainingDecoder
from .head import Statistics, statistics
from .layers import Decoder, Layer, attend, steady_length
from .lora import base_of, body_of
from .probe import agree, logit_map_of, plain_log_probs

log = logging.getLogger(__name__)

Layout = Literal["shared", "bucketed", "packed"]
TOKEN_BUDGET = 2048
"""Tokens of a micro-batch, unless a recipe has another number."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids, and the positions (from 1, increasing) whose log-probs are needed."""

    ids: Sequence[int]
    positions: Sequence[int]


PrefixGroup = Sequence[TokenSequence]
"""Rows that may have a common prefix."""


class Forward:
    """Log-probs and other statistics of rows under a module.

    Args:
        module: a causal language model of transformers, possibly with adapters.
        layout: ``auto`` is the fastest that reproduces the module's own forward on a short text.
        checkpointing: keep only the input of each layer for the backward pass.

    Raises:
        UsageError: logits are not those of a linear output layer, a scale and a soft cap.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        layout: Layout | Literal["auto"] = "auto",
        checkpointing: bool = False,
    ) -> None:
        self.module = module
        self.checkpointing = checkpointing
        self.decoder = TrainingDecoder.of(module)
        self._logit_map = logit_map_of(module)
        self._steady = steady_length(cast(Any, module).config.get_text_config())
        self._checkpointed: list[nn.Module] = []
        self.layout: Layout = self._choose(layout)
        if checkpointing and self.layout != "shared":
            renamed = hasattr(module, "activation_checkpointing_enable")  # in transformers 5
            name = "activation_checkpointing" if renamed else "gradient_checkpointing"
            settings = {f"{name}_kwargs": {"use_reentrant": False}}
            cast(Any, getattr(module, f"{name}_enable"))(**settings)
            self._checkpointed = [
                part for part in module.modules() if getattr(part, "gradient_checkpointing", False)
            ]

    def statistics(self, prefix_groups: Sequence[PrefixGroup], **options: Any) -> Statistics:
        """Statistics at all positions, in the order of groups, rows and positions; options as in
        `head.statistics`.
        """
        hidden_ND = self.hidden(prefix_groups)
        targets = [row.ids[p] for group in prefix_groups for row in group for p in row.positions]
        target_N = torch.tensor(targets, dtype=torch.long, device=hidden_ND.device)
        # Autocast would choose the type of the product with the head; here the option `math` alone
        # does.
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head = {"bias_V": self._head.bias, "logit_map": self._logit_map}
            return statistics(hidden_ND, self.head_weight, target_N, **(options | head))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """All logits, [N, V], of *hidden_ND*, for what `statistics` does not compute."""
        return self._logit_map(functional.linear(hidden_ND, self.head_weight, self._head.bias))

    @property
    def head_weight(self) -> Tensor:
        """[V, D]."""
        return self._head.weight

    @property
    def _head(self) -> Any:
        head = cast(Any, self.module).get_output_embeddings()
        if hasattr(head, "base_layer"):
            raise UsageError(
                "an adapter on the output layer is not supported; leave it out of target_modules"
            )
        return head

    def hidden(self, prefix_groups: Sequence[PrefixGroup]) -> Tensor:
        """Hidden states [N, D] that predict the tokens at all positions, after the last norm.

        Raises:
            UsageError: a sequence is longer than the module's `steady_length`.
        """
        if self.layout == "shared":
            assert self.decoder is not None
            return _shared_hidden(
                self.decoder,
                PrefixLayout.of(prefix_groups, self.decoder.device),
                self.checkpointing,
            )
        rows = [row for group in prefix_groups for row in group]
        if (longest := max(len(row.ids) for row in rows)) > (self._steady or longest):
            raise UsageError(
                f"a sequence of {longest} tokens cannot train: past {self._steady} tokens the "
                "rotary embedding follows the longest sequence of a batch; shorten prompts and "
                "replies"
            )
        return self._packed(rows) if self.layout == "packed" else self._bucketed(rows)

    def cost(self, prefix_group: PrefixGroup) -> int:
        """Number of tokens that pass through the layers for *prefix_group*."""
        lengths = [len(row.ids) - 1 for row in prefix_group]
        if self.layout != "shared":
            return sum(lengths)
        return sum(lengths) - (len(prefix_group) - 1) * shared_start(prefix_group)

    def _choose(self, setting: Layout | Literal["auto"]) -> Layout:
        if setting == "shared" and self.decoder is None:
            raise UsageError(
                f"layout 'shared' does not know {type(self.module).__name__}; use 'auto' or "
                f"'bucketed'"
            )
        packs = "flash" in str(getattr(cast(Any, self.module).config, "_attn_implementation", ""))
        possible: dict[Layout, bool] = {
            "shared": self.decoder is not None,
            "packed": packs,
            "bucketed": True,
        }
        by_speed = [layout for layout, works in possible.items() if works]
        candidates: list[Layout] = by_speed if setting == "auto" else [setting, "bucketed"]
        chosen: Layout = next((layout for layout in candidates if self._agrees(layout)), "bucketed")
        if chosen != candidates[0]:
            log.warning(
                "layout %r disagrees with the plain forward pass; %r is used", candidates[0], chosen
            )
        return chosen

    @torch.no_grad()
    def _agrees(self, layout: Layout) -> bool:
        """Whether a layout gives the log-probs of one plain forward per row, on three short rows.

        Raises:
            UsageError: even padded rows differ, so the head is not the linear map that
                `head.statistics` computes.
        """
        vocab = self.head_weight.shape[0]
        texts = [
            [(7 * i + 3 * j + 1) % vocab for j in range(n)] for i, n in ((0, 9), (1, 6), (1, 4))
        ]
        texts[2][:2] = texts[1][:2]  # a common prefix, for layout 'shared'
        prefix_group = [TokenSequence(ids, range(1, len(ids))) for ids in texts]
        self.layout = layout
        plain = [plain_log_probs(self.module, ids)[:-1] for ids in texts]
        targets = [torch.tensor(ids[1:], device=plain[0].device) for ids in texts]
        plain_N = torch.cat(
            [p.gather(1, t[:, None])[:, 0] for p, t in zip(plain, targets, strict=True)]
        )
        try:
            reason, logp_N = "", self.statistics([prefix_group[:1], prefix_group[1:]]).logp
            agrees = agree(logp_N, plain_N, self.head_weight.dtype)
        except (RuntimeError, AttributeError) as error:  # shapes of an unknown head or body
            agrees, reason = False, f": {error}"
        if not agrees and layout == "bucketed":
            raise UsageError(
                f"{type(base_of(self.module)).__name__} cannot train: its logits are not those of "
                f"its output layer on the last hidden state, scaled and soft-capped{reason}; "
                "docs/models.md lists the models that can"
            )
        return agrees

    def _body(self, **inputs: Tensor | None) -> Tensor:
        # The layers checkpoint in training mode and then take no cache. So they are in it for this
        # pass alone: between the passes the embedded engine may decode this very module.
        for part in self._checkpointed:
            part.training = torch.is_grad_enabled()
        try:
            return body_of(self.module)(**inputs, use_cache=False).last_hidden_state
        finally:
            for part in self._checkpointed:
                part.training = False

    def _bucketed(self, rows: Sequence[TokenSequence]) -> Tensor:
        device = self.head_weight.device
        inputs = [torch.tensor(row.ids[:-1], dtype=torch.long) for row in rows]
        ids_RT = pad_sequence(inputs, batch_first=True).to(device)
        longest = ids_RT.shape[1]
        positions_RT = torch.arange(longest, device=device).expand(len(rows), -1)
        # No mask: causal attention and recurrences look left, the padding is on the right, and
        # kernels are faster with plain causality. Masked padding would see nothing at all in a
        # window, which is NaN in float64.
        hidden_RTD = self._body(input_ids=ids_RT, position_ids=positions_RT)
        indices = [r * longest + p - 1 for r, row in enumerate(rows) for p in row.positions]
        return hidden_RTD.flatten(0, 1).index_select(
            0, torch.tensor(indices, dtype=torch.long, device=device)
        )

    def _packed(self, rows: Sequence[TokenSequence]) -> Tensor:
        device = self.head_weight.device
        ids = [i for row in rows for i in row.ids[:-1]]
        positions = [p for row in rows for p in range(len(row.ids) - 1)]
        starts = accumulate((len(row.ids) - 1 for row in rows), initial=0)
        indices = [
            start + p - 1 for start, row in zip(starts, rows, strict=False) for p in row.positions
        ]
        ids_1F, positions_1F = (torch.tensor([x], device=device) for x in (ids, positions))
        hidden_FD = self._body(input_ids=ids_1F, position_ids=positions_1F)[0]
        return hidden_FD.index_select(0, torch.tensor(indices, dtype=torch.long, device=device))


def shared_start(prefix_group: PrefixGroup) -> int:
    """Length of the common prefix of all rows; each row keeps at least one input token of its
    own.
    """
    if len(prefix_group) < 2:
        return 0
    # What the first and the last in dictionary order have in common at the start, all between them
    # have, too.
    first = min(list(row.ids) for row in prefix_group)
    last = max(list(row.ids) for row in prefix_group)
    longest_shared = min(len(row.ids) for row in prefix_group) - 2
    same = 0
    while same < longest_shared and first[same] == last[same]:
        same += 1
    return same


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Rearranges flat tokens into a padded block and back, both as gathers.

    Attributes:
        shape: of the block.
        block_to_flat: for each cell of the block its flat token, 0 in the padding.
        flat_to_block: the inverse.
        real: boolean, of shape *shape*; like both gathers ``None`` where nothing is padded.
    """

    shape: tuple[int, ...]
    block_to_flat: Tensor | None
    flat_to_block: Tensor | None
    real: Tensor | None

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], device: torch.device) -> Padding:
        """The padding of runs of *lengths* by prefix group and row to a block [M, G, T]."""
        shape = (
            len(lengths),
            max(map(len, lengths)),
            max(n for prefix_group in lengths for n in prefix_group),
        )
        if all(
            len(prefix_group) == shape[1] and all(n == shape[2] for n in prefix_group)
            for prefix_group in lengths
        ):
            return cls(shape=shape, block_to_flat=None, flat_to_block=None, real=None)
        sizes_MG = torch.zeros(shape[:2], dtype=torch.long)
        for m, prefix_group in enumerate(lengths):
            sizes_MG[m, : len(prefix_group)] = torch.tensor(prefix_group)
        real = torch.arange(shape[2]) < sizes_MG.unsqueeze(-1)
        flat_to_block = real.flatten().nonzero()[:, 0]
        block_to_flat = torch.zeros(real.numel(), dtype=torch.long)
        block_to_flat[flat_to_block] = torch.arange(flat_to_block.numel())
        return cls(
            shape=shape,
            block_to_flat=block_to_flat.to(device),
            flat_to_block=flat_to_block.to(device),
            real=real.to(device),
        )

    def block(self, flat: Tensor) -> Tensor:
        """[F, ...] to [*shape, ...]; the padding holds copies of token 0, which attention must
        mask.
        """
        if self.block_to_flat is None or self.flat_to_block is None:
            return flat.unflatten(0, self.shape)
        return cast(
            Tensor, _Rearrange.apply(flat, self.block_to_flat, self.flat_to_block)
        ).unflatten(0, self.shape)

    def flat(self, block: Tensor) -> Tensor:
        """[*shape, ...] to [F, ...]."""
        merged = block.flatten(0, len(self.shape) - 1)
        return merged if self.flat_to_block is None else merged.index_select(0, self.flat_to_block)


class _Rearrange(torch.autograd.Function):
    """A gather whose gradient is the inverse gather: autograd would scatter with additions, which
    is slower and, on a GPU, in no fixed order. Copies in padded positions carry no gradient, since
    attention masks them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None


@dataclass(frozen=True, kw_only=True)
class PrefixLayout:
    """Order of a micro-batch's tokens: first the common prefixes ("starts") of all groups, then the
    rests of all rows.

    Attributes:
        ids, positions: of the flat tokens, [F].
        starts: number of flat tokens in common prefixes.
        start, rest: paddings of the two parts; *start* is [M, 1, P], ``None`` where no group has a
            common prefix.
        asked: index of the flat token that predicts each position, [N].
    """

    ids: Tensor
    positions: Tensor
    starts: int
    start: Padding | None
    rest: Padding
    asked: Tensor

    @classmethod
    def of(cls, groups: Sequence[PrefixGroup], device: torch.device) -> PrefixLayout:
        shared = [shared_start(group) for group in groups]
        # rows alone need no mask beyond causality, for which attention has a faster kernel
        if not any(shared):
            groups, shared = [[row] for group in groups for row in group], []
        # The last token of a row predicts nothing that trains, so it is left out everywhere below.
        common = shared or [0] * len(groups)
        ids = [i for n, group in zip(shared, groups, strict=False) for i in group[0].ids[:n]]
        positions = [p for n in shared for p in range(n)]
        starts, begin = len(ids), 0
        asked: list[int] = []
        for n, group in zip(common, groups, strict=True):
            for row in group:
                # The token before position p predicts it: in the common prefix if p <= n, else in
                # the row's rest.
                asked.extend(
                    begin + p - 1 if p <= n else len(ids) + p - 1 - n for p in row.positions
                )
                ids.extend(row.ids[n:-1])
                positions.extend(range(n, len(row.ids) - 1))
            begin += n
        lengths = [
            [len(row.ids) - 1 - n for row in group] for n, group in zip(common, groups, strict=True)
        ]
        return cls(
            ids=torch.tensor(ids, dtype=torch.long, device=device),
            positions=torch.tensor(positions, dtype=torch.long, device=device),
            starts=starts,
            start=Padding.of([[n] for n in shared], device) if shared else None,
            rest=Padding.of(lengths, device),
            asked=torch.tensor(asked, dtype=torch.long, device=device),
        )


def _shared_hidden(decoder: Decoder, plan: PrefixLayout, checkpointing: bool) -> Tensor:
    """Hidden states [N, D] that predict the positions of *plan*."""
    hidden_FD = decoder.embed(plan.ids)
    cos_FE, sin_FE = decoder.rotary(plan.positions, hidden_FD.dtype)
    mask = _rest_mask(plan, hidden_FD.dtype)

    def run(layer: Layer, hidden_FD: Tensor) -> Tensor:
        query, key, value = decoder.qkv(layer, hidden_FD, cos_FE, sin_FE)
        mixed = _attend(plan, query, key, value, mask, decoder.scaling)
        # what follows acts on each token alone: compute it where it is needed
        if layer is decoder.layers[-1]:
            hidden_FD, mixed = (
                hidden_FD.index_select(0, plan.asked),
                mixed.index_select(0, plan.asked),
            )
        return decoder.mlp(layer, decoder.after_attention(layer, hidden_FD, mixed))

    # Scoring keeps nothing for a backward pass, so there is nothing to save by computing layers
    # twice.
    keep = checkpointing and torch.is_grad_enabled()
    for layer in decoder.layers:
        hidden_FD = (
            checkpoint(run, layer, hidden_FD, use_reentrant=False)
            if keep
            else run(layer, hidden_FD)
        )
    return decoder.final_norm(hidden_FD)


def _rest_mask(plan: PrefixLayout, dtype: torch.dtype) -> Tensor | None:
    """Additive mask [M, 1, T, P + T] of rests over starts and themselves; ``None`` without common
    prefixes.
    """
    if plan.start is None:
        return None
    # A rest sees all real tokens of its start, and of itself those up to its own position.
    device = plan.ids.device
    t, p = plan.rest.shape[2], plan.start.shape[2]
    causal_TT = torch.ones(t, t, dtype=torch.bool, device=device).tril()
    seen = (
        torch.ones(1, 1, p, dtype=torch.bool, device=device)
        if plan.start.real is None
        else plan.start.real
    )
    both = torch.cat(
        [seen.expand(-1, t, -1), causal_TT.expand(seen.shape[0], -1, -1)], dim=-1
    ).unsqueeze(1)
    return torch.zeros(both.shape, dtype=dtype, device=device).masked_fill_(~both, float("-inf"))


def _attend(
    plan: PrefixLayout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
) -> Tensor:
    """Mixed values [F, H, E] of flat queries [F, H, E] and keys, values [F, K, E]."""
    # On a CPU the bfloat16 kernel takes three times as long as the one of float32, and rounds.
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return _attend(plan, query.float(), key.float(), value.float(), mask, scaling)
    # The common prefixes come first among the flat tokens and attend to themselves alone, once for
    # all rows.
    rest_q, rest_k, rest_v = (plan.rest.block(x[plan.starts :]) for x in (query, key, value))
    if plan.start is None or mask is None:
        mixed = attend(rest_q.squeeze(1), rest_k.squeeze(1), rest_v.squeeze(1), None, scaling)
        return plan.rest.flat(mixed.unsqueeze(1))
    start_q, start_k, start_v = (
        plan.start.block(x[: plan.starts]).squeeze(1) for x in (query, key, value)
    )
    start_mixed = plan.start.flat(attend(start_q, start_k, start_v, None, scaling).unsqueeze(1))
    rest_mixed = plan.rest.flat(_cascade(rest_q, start_k, start_v, rest_k, rest_v, mask, scaling))
    return torch.cat([start_mixed, rest_mixed])


def _cascade(
    query: Tensor,
    start_k: Tensor,
    start_v: Tensor,
    rest_k: Tensor,
    rest_v: Tensor,
    mask: Tensor,
    scaling: float,
) -> Tensor:
    """Attention of rests [M, G, T, H, E] over starts [M, P, K, E] and themselves [M, G, T, K,
    E].
    """
    # Keys and values of the prefix are copied for each row, though their projections were computed
    # once: attending to the two parts apart would need the softmax normalisers to merge the
    # results, which the kernel does not return.
    m, g = query.shape[:2]
    key = torch.cat([start_k.unsqueeze(1).expand(-1, g, -1, -1, -1), rest_k], dim=2).flatten(0, 1)
    value = torch.cat([start_v.unsqueeze(1).expand(-1, g, -1, -1, -1), rest_v], dim=2).flatten(0, 1)
    if mask.shape[0] > 1:
        mask = mask.repeat_interleave(g, 0)
    return attend(query.flatten(0, 1), key, value, mask, scaling).unflatten(0, (m, g))
