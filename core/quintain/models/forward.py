"""Training forward passes: rows (sequences) of tokens to hidden states at the positions whose
log-probs are needed.

Layouts:
    shared: over the layers of `Decoder`. What rows of a prefix group begin with is computed once and
        read by all of them (`prefix_layout`); gradients flow back through it. Linear layers see no
        padding, attention only what a micro-batch needs.
    bucketed: the module's own forward over right-padded rows. packed: the module's own forward over
    one row whose position ids restart, for attention kernels of variable length.

Shapes: F flat tokens, N positions, D hidden size, M prefix groups, G rows of a group, P tokens of a
common prefix, T tokens of a rest, H query heads, K key heads, E head size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from ..errors import UsageError
from .adapters import base_of, body_of
from .head import Statistics, statistics
from .kernels import Attend, kernels_of
from .layers import Decoder, Layer, attend, product_type, steady_length
from .prefix_layout import (
    Padding,
    PrefixGroup,
    PrefixLayout,
    TokenSequence,
    plain_positions,
    tokens_computed,
)
from .prefix_tree import QUERY_CHUNK, Node, side_by_side
from .probe import agree, logit_map_of, plain_log_probs
from .routers import ExpertLoad, Routers, again
from .training_decoder import TrainingDecoder
from .transfers import to_device

log = logging.getLogger(__name__)

Layout = Literal["shared", "bucketed", "packed"]
TOKEN_BUDGET = 2048
"""Tokens of a micro-batch, unless a recipe has another number."""


class Forward:
    """Log-probs and other statistics of rows under a module.

    Args:
        module: a causal language model of transformers, possibly with adapters.
        layout: ``auto`` is the fastest that reproduces the module's own forward on a short text.
        checkpointing: keep only the input of each layer for the backward pass.
        device: where it computes; ``None`` is where the weights lie.
        half: type that the layers of a sharded module have, which compute under autocast alone.
        gathers: hooks of a sharded module gather the weights of its parts, so that `Decoder` runs
            inside the calls of these.

    Attributes:
        experts: how many tokens each expert of a mixture got in passes with a gradient.

    Raises:
        UsageError: logits are not those of a linear output layer, a scale and a soft cap.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        layout: Layout | Literal["auto"] = "auto",
        checkpointing: bool = False,
        device: torch.device | None = None,
        half: torch.dtype | None = None,
        gathers: bool = False,
    ) -> None:
        self.module = module
        self.half = half
        self.gathers = gathers
        self.device: torch.device = device or self.head_weight.device
        self.checkpointing = checkpointing
        # It keeps less for the backward pass than `Decoder`.
        self.decoder = TrainingDecoder.of(module) if layout in ("auto", "shared") else None
        self._steady = steady_length(cast(Any, module).config.get_text_config())
        self._checkpointed: list[nn.Module] = []
        self._routers = Routers.of(module)
        self._recorded: Tensor | None = None  # experts of the tokens of the present pass
        self.experts = ExpertLoad(self._routers, self.device)
        with torch.autocast(self.device.type, half or torch.bfloat16, enabled=half is not None):
            self.logit_map = logit_map_of(module)
            self.layout: Layout = self._choose(layout)
        if checkpointing and self.layout != "shared":
            renamed = hasattr(module, "activation_checkpointing_enable")  # in transformers 5
            name = "activation_checkpointing" if renamed else "gradient_checkpointing"
            options: dict[str, Any] = {"use_reentrant": False}
            if self._routers:
                options["context_fn"] = lambda: again(self._routers, self._recorded)
            settings = {f"{name}_kwargs": options}
            cast(Any, getattr(module, f"{name}_enable"))(**settings)
            self._checkpointed = [
                part for part in module.modules() if getattr(part, "gradient_checkpointing", False)
            ]

    def statistics(self, prefix_groups: Sequence[PrefixGroup], **options: Any) -> Statistics:
        """Return the statistics at all positions, in the order of groups, rows and positions;
        options as in `head.statistics`.
        """
        hidden_ND = self.hidden(prefix_groups)
        targets: list[int] = []
        for row in chain.from_iterable(prefix_groups):
            targets += [row.ids[position] for position in row.positions]
        target_N = to_device(targets, hidden_ND.device)
        # Autocast would choose the type of the product with the head; here the option `math` alone
        # does.
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head = {"bias_V": self._head.bias, "logit_map": self.logit_map}
            return statistics(hidden_ND, self.head_weight, target_N, **(options | head))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Return all logits, [N, V], of *hidden_ND*, for what `statistics` does not compute."""
        return self.logit_map(functional.linear(hidden_ND, self.head_weight, self._head.bias))

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
        """Return the hidden states [N, D] that predict the tokens at all positions, after the last
        norm.

        Raises:
            UsageError: a sequence is longer than the module's `steady_length`.
        """
        if self.layout == "shared":
            assert self.decoder is not None
            positions_of = getattr(base_of(self.module), "positions_of", plain_positions)
            layout = PrefixLayout.of(prefix_groups, self.device, positions_of)
            compute = partial(
                _shared_hidden, self.decoder, layout, self.checkpointing, self.gathers
            )
            return _inside(body_of(self.module), compute) if self.gathers else compute()
        rows = list(chain.from_iterable(prefix_groups))
        longest = max(len(row.ids) for row in rows)
        if self._steady and longest > self._steady:
            raise UsageError(
                f"a sequence of {longest} tokens cannot train: past {self._steady} tokens the "
                "rotary embedding follows the longest sequence of a batch; shorten prompts and "
                "replies"
            )
        return self._packed(rows) if self.layout == "packed" else self._bucketed(rows)

    def cost(self, prefix_group: PrefixGroup) -> int:
        """Return how many tokens pass through the layers for *prefix_group*."""
        if self.layout != "shared":
            return sum(len(row.ids) - 1 for row in prefix_group)
        return tokens_computed(prefix_group)

    def _choose(self, setting: Layout | Literal["auto"]) -> Layout:
        if setting == "shared" and self.decoder is None:
            raise UsageError(
                f"layout 'shared' does not know {type(self.module).__name__}; use 'auto' or "
                f"'bucketed'"
            )
        if self.head_weight.is_meta:
            return "bucketed"  # what has the weights chooses for itself
        packs = "flash" in str(getattr(cast(Any, self.module).config, "_attn_implementation", ""))
        candidates: list[Layout] = []  # the fastest first
        if setting != "auto":
            candidates.append(setting)
        else:
            if self.decoder is not None:
                candidates.append("shared")
            if packs:
                candidates.append("packed")
        candidates.append("bucketed")
        # Which models a layout fits is found out by trying it: no list of classes stays complete.
        chosen = next(layout for layout in candidates if self._agrees(layout))
        if chosen != candidates[0]:
            log.warning(
                "layout %r disagrees with the plain forward pass; %r is used", candidates[0], chosen
            )
        return chosen

    @torch.no_grad()
    def _agrees(self, layout: Layout) -> bool:
        """Return whether a layout gives the log-probs of one plain forward per row, on three short
        rows.

        Raises:
            UsageError: even padded rows differ, so the head is not the linear map that
                `head.statistics` computes.
        """
        vocab = self.head_weight.shape[0]
        texts = []
        # The third is the beginning of the second: a common prefix, for layout 'shared'.
        for number, length in ((0, 9), (1, 6), (1, 4)):
            texts.append([(7 * number + 3 * place + 1) % vocab for place in range(length)])
        prefix_group = [TokenSequence(ids, range(1, len(ids))) for ids in texts]
        self.layout = layout
        plain = [plain_log_probs(self.module, ids)[:-1] for ids in texts]
        targets = [torch.tensor(ids[1:], device=plain[0].device) for ids in texts]
        logps = [p.gather(1, t[:, None])[:, 0] for p, t in zip(plain, targets, strict=True)]
        reason = ""
        try:
            found_N = self.statistics([prefix_group[:1], prefix_group[1:]]).logp
            agrees = agree(found_N, torch.cat(logps), self.half or self.head_weight.dtype)
        except (RuntimeError, AttributeError) as error:  # shapes of an unknown head or body
            agrees = False
            reason = f": {error}"
        if not agrees and layout == "bucketed":
            raise UsageError(
                f"{type(base_of(self.module)).__name__} cannot train: its logits are not those of "
                f"its output layer on the last hidden state, scaled and soft-capped{reason}; "
                "docs/models.md lists the models that can"
            )
        return agrees

    def _body(
        self, rows: Sequence[TokenSequence], lengths: Sequence[int], **inputs: Tensor | None
    ) -> Tensor:
        """Run the layers over *rows*, which take places of *lengths* tokens in *inputs*."""
        # The layers checkpoint in training mode and then take no cache. So they are in it for this
        # pass alone: between the passes the embedded engine may decode this very module.
        for part in self._checkpointed:
            part.training = torch.is_grad_enabled()
        try:
            if not self._routers:
                return body_of(self.module)(**inputs, use_cache=False).last_hidden_state
            return self._mixed(rows, lengths, inputs)
        finally:
            for part in self._checkpointed:
                part.training = False

    def _mixed(
        self,
        rows: Sequence[TokenSequence],
        lengths: Sequence[int],
        inputs: Mapping[str, Tensor | None],
    ) -> Tensor:
        """Run the layers of a mixture with the experts that the rows have on record."""
        texts = [row.experts for row in rows]
        self._recorded = self._routers.recorded(texts, lengths, self.device)
        with self._routers.watched(self._recorded) as choices:
            hidden: Tensor = body_of(self.module)(**inputs, use_cache=False).last_hidden_state
        if torch.is_grad_enabled():
            places = [
                i < len(row.ids) - 1 for row, n in zip(rows, lengths, strict=True) for i in range(n)
            ]
            self.experts.add(choices, to_device(torch.tensor(places), self.device), self._recorded)
        return hidden

    def _bucketed(self, rows: Sequence[TokenSequence]) -> Tensor:
        device = self.device
        inputs = [torch.tensor(row.ids[:-1], dtype=torch.long) for row in rows]
        ids_RT = to_device(pad_sequence(inputs, batch_first=True), device)
        longest = ids_RT.shape[1]
        positions_RT = torch.arange(longest, device=device).expand(len(rows), -1)
        # No mask: causal attention and recurrences look left, the padding is on the right, and
        # kernels are faster with plain causality. Masked padding would see nothing at all in a
        # window, which is NaN in float64.
        lengths = [longest] * len(rows)
        hidden_RTD = self._body(rows, lengths, input_ids=ids_RT, position_ids=positions_RT)
        # A token is predicted from the state of the one before it, hence the -1 here and below.
        indices: list[int] = []
        for r, row in enumerate(rows):
            indices += [r * longest + position - 1 for position in row.positions]
        return hidden_RTD.flatten(0, 1).index_select(0, to_device(indices, device))

    def _packed(self, rows: Sequence[TokenSequence]) -> Tensor:
        device = self.device
        ids: list[int] = []
        positions: list[int] = []
        indices: list[int] = []
        for row in rows:
            indices += [len(ids) + position - 1 for position in row.positions]
            ids += row.ids[:-1]
            # Positions from 0 again tell the kernel where a row begins, so that none sees another.
            positions += range(len(row.ids) - 1)
        ids_1F = to_device([ids], device)
        positions_1F = to_device([positions], device)
        lengths = [len(row.ids) - 1 for row in rows]
        hidden_FD = self._body(rows, lengths, input_ids=ids_1F, position_ids=positions_1F)[0]
        return hidden_FD.index_select(0, to_device(indices, device))


def _inside(module: nn.Module, compute: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    """Return what *compute* gives in place of the forward of *module*, inside its hooks."""
    # The weights of a sharded module are there only while the module itself runs.
    replaced = module.__dict__.get("forward")
    module.forward = compute
    try:
        returned: Tensor = module(*arguments)
    finally:
        del module.forward
        if replaced is not None:
            module.forward = replaced
    return returned


def _shared_hidden(
    decoder: Decoder, plan: PrefixLayout, checkpointing: bool, gathers: bool
) -> Tensor:
    """Return the hidden states [N, D] that predict the positions of *plan*."""
    hidden_FD, added = decoder.begin(plan.ids)
    if torch.is_autocast_enabled(hidden_FD.device.type):
        # Also with weights in half precision: layers add up in float32, as autocast of float32
        # weights does.
        hidden_FD = hidden_FD.float()
    cos_FE, sin_FE = decoder.rotary(plan.positions, hidden_FD.dtype)
    attend_flat = _attention(decoder, plan, hidden_FD)

    def run(layer: Layer, hidden_FD: Tensor) -> Tensor:
        query, key, value = decoder.qkv(layer, hidden_FD, cos_FE, sin_FE)
        mixed = attend_flat(query, key, value)
        more = added[layer.index] if layer.index < len(added) else None
        # What follows acts on each token alone. After the last attention nobody reads the tokens
        # that are not asked for, such as those of prompts.
        if layer is decoder.layers[-1]:
            hidden_FD = hidden_FD.index_select(0, plan.asked)
            mixed = mixed.index_select(0, plan.asked)
            more = more if more is None else more.index_select(0, plan.asked)
        hidden_FD = decoder.after_attention(layer, hidden_FD, mixed)
        return hidden_FD if more is None else hidden_FD + more

    # Scoring keeps nothing for a backward pass, so there is nothing to save by computing layers
    # twice.
    keep = checkpointing and torch.is_grad_enabled()
    for layer in decoder.layers:
        compute = partial(run, layer)
        if keep:
            compute = partial(checkpoint, run, layer, use_reentrant=False)
        hidden_FD = _inside(layer.block, compute, hidden_FD) if gathers else compute(hidden_FD)
    return decoder.final_norm(hidden_FD)


def _attention(decoder: Decoder, plan: PrefixLayout, hidden_FD: Tensor) -> Attend:
    """Return attention of flat queries [F, H, E] over keys and values [F, K, E]: without masks where
    there are kernels for the type that *hidden_FD* has in a product.
    """
    kernels = kernels_of(hidden_FD.device)
    if kernels:
        over_layout = kernels.over_layout(decoder, product_type(hidden_FD), plan)
        if over_layout:
            return over_layout
    return partial(
        _attend,
        plan,
        rest_mask=_rest_mask(plan, hidden_FD.dtype),
        node_calls=NodeCalls.of(plan.tree_nodes, plan.ids.device),
        scaling=decoder.scaling,
    )


def _rest_mask(plan: PrefixLayout, dtype: torch.dtype) -> Tensor | None:
    """Return the additive mask [M, 1, T, P + T] of rests over starts and themselves; ``None``
    without common prefixes.
    """
    if plan.start is None or plan.rest is None:
        return None
    # A rest sees all real tokens of its start, and of itself those up to its own position.
    device = plan.ids.device
    t = plan.rest.shape[2]
    p = plan.start.shape[2]
    own_TT = torch.ones(t, t, dtype=torch.bool, device=device).tril()
    real = plan.start.real  # [M, 1, P], where starts are padded
    if real is None:
        real = torch.ones(1, 1, p, dtype=torch.bool, device=device)
    m = real.shape[0]
    seen = torch.cat([real.expand(-1, t, -1), own_TT.expand(m, -1, -1)], dim=-1).unsqueeze(1)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))


class NodeCalls(NamedTuple):
    """Calls of attention of the nodes of trees, the same in each layer.

    Attributes:
        together: nodes that follow the same ones, and the boolean mask [Q, S + Q] of their Q tokens
            side by side: each sees the S tokens before the nodes, and its own node up to itself.
        alone: the other nodes.
        chunk: boolean mask [QUERY_CHUNK, S + QUERY_CHUNK], where the longest row has S tokens: a view
            of it is the mask of any `QUERY_CHUNK` queries of a node that is alone. ``None`` where no
            node has one before it.
    """

    together: Sequence[tuple[Sequence[int], Tensor]]
    alone: Sequence[int]
    chunk: Tensor | None

    @classmethod
    def of(cls, nodes: Sequence[Node], device: torch.device) -> NodeCalls:
        """Return the calls of *nodes*."""
        followers: dict[tuple[int, ...], list[list[int]]] = {}
        for index, node in enumerate(nodes):
            bins = followers.setdefault(node.before, [[]])
            tokens = sum(len(nodes[k].ids) for k in bins[-1]) + len(node.ids)
            if not node.before or tokens > side_by_side(node.begin):
                bins.append([])
            bins[-1].append(index)
        calls = [members for bins in followers.values() for members in bins if members]
        alone = [members[0] for members in calls if len(members) == 1]
        together = []
        for members in calls:
            if len(members) > 1:
                lengths = [len(nodes[k].ids) for k in members]
                blocks = (torch.ones(n, n, dtype=torch.bool).tril() for n in lengths)
                own_QQ = torch.block_diag(*blocks)
                before_QS = torch.ones(len(own_QQ), nodes[members[0]].begin, dtype=torch.bool)
                together.append((members, to_device(torch.cat([before_QS, own_QQ], 1), device)))
        last = max((node.begin + len(node.ids) for node in nodes if node.before), default=0)
        if not last:
            return cls(together, alone, None)
        every = torch.ones(QUERY_CHUNK, last + QUERY_CHUNK, dtype=torch.bool, device=device)
        return cls(together, alone, every.tril(last))


def _attend(
    plan: PrefixLayout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rest_mask: Tensor | None,
    node_calls: NodeCalls,
    scaling: float,
) -> Tensor:
    """Return the mixed values [F, H, E] of flat queries [F, H, E] and keys, values [F, K, E]."""
    # On a CPU the bfloat16 kernel takes three times as long as the one of float32, and rounds.
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            wide = (query.float(), key.float(), value.float())
            return _attend(plan, *wide, rest_mask, node_calls, scaling)
    # Flat tokens lie in three parts, each of which attends in its own way: common prefixes, what
    # follows these, and trees.
    sizes = [plan.starts, plan.rests, len(plan.ids) - plan.starts - plan.rests]
    parts = [x.split(sizes) for x in (query, key, value)]
    starts = [part[0] for part in parts]
    rests = [part[1] for part in parts]
    trees = [part[2] for part in parts]
    mixed = []
    if plan.rest is not None:
        mixed += _attend_two_level(plan.start, plan.rest, starts, rests, rest_mask, scaling)
    if plan.tree_nodes:
        mixed += _attend_nodes(plan.tree_nodes, trees, node_calls, scaling)
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend_two_level(
    start: Padding | None,
    rest: Padding,
    starts: Sequence[Tensor],
    rests: Sequence[Tensor],
    mask: Tensor | None,
    scaling: float,
) -> list[Tensor]:
    """Return the mixed values of the common prefixes, if there are any, and of the rests."""
    rest_q, rest_k, rest_v = map(rest.block, rests)
    if start is None or mask is None:
        mixed = attend(rest_q.squeeze(1), rest_k.squeeze(1), rest_v.squeeze(1), None, scaling)
        return [rest.flat(mixed.unsqueeze(1))]
    # The common prefixes attend to themselves alone, once for all rows.
    start_q, start_k, start_v = [start.block(x).squeeze(1) for x in starts]
    start_mixed = start.flat(attend(start_q, start_k, start_v, None, scaling).unsqueeze(1))
    rest_mixed = rest.flat(_cascade(rest_q, start_k, start_v, rest_k, rest_v, mask, scaling))
    return [start_mixed, rest_mixed]


def _attend_nodes(
    nodes: Sequence[Node], flat: Sequence[Tensor], calls: NodeCalls, scaling: float
) -> list[Tensor]:
    """Return the mixed values of the nodes of trees, of their flat queries, keys and values.

    A node reads the keys of all nodes before it. Keys are split by node and concatenated, not
    gathered: autograd then adds up the gradients of a shared node in a fixed order on any device.
    """
    lengths = [len(node.ids) for node in nodes]
    queries, keys, values = [x.split(lengths) for x in flat]
    mixed: dict[int, Tensor] = {}
    for members, mask in calls.together:
        query = torch.cat([queries[k] for k in members]).unsqueeze(0)
        path = (*nodes[members[0]].before, *members)
        key = torch.cat([keys[k] for k in path]).unsqueeze(0)
        value = torch.cat([values[k] for k in path]).unsqueeze(0)
        found = attend(query, key, value, mask, scaling)[0]
        mixed |= zip(members, found.split([lengths[k] for k in members]), strict=True)
    for index in calls.alone:
        node = nodes[index]
        path = (*node.before, index)
        key = torch.cat([keys[k] for k in path]).unsqueeze(0)
        value = torch.cat([values[k] for k in path]).unsqueeze(0)
        if not node.before or calls.chunk is None:
            mixed[index] = attend(queries[index].unsqueeze(0), key, value, None, scaling)[0]
            continue
        # Queries in chunks: a whole mask would grow with the square of a row, and each chunk reads
        # only the keys up to its own end.
        begin = node.begin
        chunks = []
        for chunk in queries[index].split(QUERY_CHUNK):
            end = begin + len(chunk)
            # Row i of the mask sees one key more than row i - 1. Begun at *first*, its row 0 sees
            # the keys up to that of the first query.
            first = calls.chunk.shape[1] - QUERY_CHUNK - begin
            mask = calls.chunk[: len(chunk), first : first + end]
            chunks.append(
                attend(chunk.unsqueeze(0), key[:, :end], value[:, :end], mask, scaling)[0]
            )
            begin = end
        mixed[index] = torch.cat(chunks)
    return [mixed[index] for index in range(len(nodes))]


def _cascade(
    query: Tensor,
    start_k: Tensor,
    start_v: Tensor,
    rest_k: Tensor,
    rest_v: Tensor,
    mask: Tensor,
    scaling: float,
) -> Tensor:
    """Compute the attention of rests [M, G, T, H, E] over starts [M, P, K, E] and themselves [M, G,
    T, K, E].
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
