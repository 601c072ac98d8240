"""The routers of a mixture of experts: which experts they choose, and how a choice that was recorded
is made again.

Sampler and learner round differently, so that a token near a tie goes to other experts in each. The
learner then trains a function that sampled nothing. Replayed, the experts are the recorded ones, and
their weights are those of the present router: its own forward runs, and its choice of the best alone
is replaced. So the weights are normalised as the architecture does, and have their gradient (R3, Ma
et al. 2025, arXiv 2510.11370).

Shapes: N tokens, L layers with experts, K experts of a token, E experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..errors import UsageError
from .transfers import to_device

UNKNOWN = -1
"""Stands for the experts of a token that nobody recorded: the router chooses."""
FIRST = ord("0")
"""The character of expert 0: a token's experts are a text, layer by layer, which JSON keeps readable
and Python holds in a byte or two for each.
"""
_TOPK = (torch.topk, Tensor.topk)


class Routers:
    """Those of a module, in its order; none in a dense model, or where layers have different numbers of
    experts.

    Attributes:
        found: the modules, L.
        experts, choices: E and K; 0 without a router.
    """

    def __init__(self, found: Sequence[nn.Module]) -> None:
        sizes = {(int(cast(Any, r).num_experts), int(cast(Any, r).top_k)) for r in found}
        self.found = found if len(sizes) == 1 else []
        self.experts, self.choices = sizes.pop() if self.found else (0, 0)

    @classmethod
    def of(cls, module: nn.Module) -> Routers:
        """Return the routers of *module*: what has a row of weights for each of ``num_experts`` and
        takes the ``top_k`` best.
        """
        return cls([part for part in module.modules() if _is_router(part)])

    def __len__(self) -> int:
        return len(self.found)

    @property
    def width(self) -> int:
        """Experts of a token in all layers, L K."""
        return len(self.found) * self.choices

    @contextmanager
    def watched(self, recorded_NLK: Tensor | None = None) -> Iterator[list[RouterChoice]]:
        """Watch the routers in one forward pass; yields a `RouterChoice` for each.

        Args:
            recorded_NLK: the experts to take, `UNKNOWN` where the router chooses; ``None`` is
                everywhere.
        """
        choices = [
            RouterChoice(router, None if recorded_NLK is None else recorded_NLK[:, layer])
            for layer, router in enumerate(self.found)
        ]
        for choice in choices:
            choice.router.forward = choice.forward
        try:
            yield choices
        finally:
            for choice in choices:
                del choice.router.forward

    def chosen(self, choices: Sequence[RouterChoice]) -> Tensor:
        """Return what *choices* saw, [N, L K] in int16.

        Raises:
            UsageError: a router chose in another way than by the best of its scores.
        """
        for choice in choices:
            if choice.index is None:
                raise UsageError(
                    f"{type(choice.router).__name__} does not choose experts by topk, so they "
                    "cannot be recorded; set engine.args.router_replay = false"
                )
        return torch.cat([cast(Tensor, choice.index) for choice in choices], 1).to(torch.int16)

    def texts(self, chosen: Tensor) -> tuple[str, ...]:
        """Return the experts of tokens [n, L K] as texts, one a token."""
        codes = (chosen.cpu().numpy().astype("<u2") + FIRST).tobytes()
        whole = codes.decode("utf-16-le")
        return tuple(whole[i : i + self.width] for i in range(0, len(whole), self.width))

    def recorded(
        self, rows: Sequence[Sequence[str]], lengths: Sequence[int], device: torch.device
    ) -> Tensor | None:
        """Return the experts of *rows* of *lengths* tokens, one after the other, [N, L, K]; ``None``
        if nobody recorded any.

        Raises:
            UsageError: they are of another model.
        """
        if not self.found or not any(rows):
            return None
        blank = chr(FIRST + UNKNOWN) * self.width
        texts: list[str] = []
        for row, length in zip(rows, lengths, strict=True):
            known = [text or blank for text in row[:length]]
            texts += known + [blank] * (length - len(known))
        codes = numpy.frombuffer("".join(texts).encode("utf-16-le"), "<u2").astype("int64") - FIRST
        wrong = {len(text) for text in texts} != {self.width}
        if wrong or not UNKNOWN <= codes.min() <= codes.max() < self.experts:
            raise UsageError(
                f"the recorded experts are of another model: expected {len(self)} layers with "
                f"{self.choices} of {self.experts} experts for each token; set "
                "engine.args.router_replay = false to train without them"
            )
        flat = torch.from_numpy(codes).view(-1, len(self), self.choices)
        return to_device(flat, device)


class RouterChoice:
    """What a router chose in a pass, and the forward that stands in for its own meanwhile.

    Attributes:
        router: the module.
        index: the experts that were taken, [N, K]; ``None`` before the pass.
        own: those that the router would have taken, [N, K].
    """

    def __init__(self, router: Any, recorded_NK: Tensor | None) -> None:
        self.router = router
        self.index: Tensor | None = None
        self.own: Tensor | None = None
        self._recorded = recorded_NK

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the router's forward with the recorded experts."""
        with _Best(self):
            return type(self.router).forward(self.router, *args, **kwargs)

    def taken(self, scores: Tensor, best: Any) -> Any:
        """Return the values and indices to go on with, where *best* are those of the highest
        *scores*.
        """
        self.own = self.index = best.indices
        if self._recorded is None:
            return best
        self.index = torch.where(self._recorded >= 0, self._recorded, best.indices)
        return torch.return_types.topk((scores.gather(1, self.index), self.index))


class _Best(TorchFunctionMode):
    """Hands the choice of the experts to a `RouterChoice`, and leaves that of their groups alone."""

    def __init__(self, choice: RouterChoice) -> None:
        super().__init__()
        self._choice = choice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _TOPK:
            return result
        router = self._choice.router
        # Groups of experts are chosen from scores of another shape.
        of_experts = result.indices.ndim == 2 and args[0].shape[1] == router.num_experts
        return self._choice.taken(args[0], result) if of_experts else result


class ExpertLoad:
    """How many tokens each expert got in the passes that trained."""

    def __init__(self, routers: Routers, device: torch.device) -> None:
        self._routers = routers
        self._device = device
        self._clear()

    def _clear(self) -> None:
        layers = len(self._routers)
        options: Any = {"dtype": torch.float64, "device": self._device}
        self._counts_LE = torch.zeros(layers, self._routers.experts, **options)
        # tokens and layers: all, those with recorded experts, and those where the router agrees
        self._shares = torch.zeros(3, **options)

    @torch.no_grad()
    def add(
        self, choices: Sequence[RouterChoice], real_N: Tensor, recorded_NLK: Tensor | None
    ) -> None:
        """Count the tokens of a pass that are *real_N*, and no padding."""
        for layer, choice in enumerate(choices):
            index, own = cast(Tensor, choice.index)[real_N], cast(Tensor, choice.own)[real_N]
            ones = torch.ones(index.numel(), dtype=torch.float64, device=self._device)
            self._counts_LE[layer].index_add_(0, index.flatten(), ones)
            replayed = torch.zeros(len(index), dtype=torch.bool, device=self._device)
            if recorded_NLK is not None:
                replayed = recorded_NLK[real_N, layer, 0] >= 0
            agrees = (index.sort(1).values == own.sort(1).values).all(1)
            sums = (len(index), replayed.sum(), (replayed & agrees).sum())
            self._shares += torch.stack([torch.as_tensor(x, device=self._device) for x in sums])

    def metrics(self, total: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return the metrics since the last call; *total* adds a tensor up over all ranks.

        ``experts.max`` is the largest share of the tokens of a layer that one expert got, 1 / E if
        all get as many. ``experts.entropy`` is the entropy of these shares divided by log E, of the
        least balanced layer. ``experts.replayed`` is the share of tokens whose experts were recorded,
        ``experts.agree`` the share of those, and of layers, at which the router would choose the
        same.
        """
        if not self._routers:
            return {}
        counts_LE, (every, replayed, agreed) = total(self._counts_LE), total(self._shares).tolist()
        self._clear()
        if not every:
            return {}
        share_LE = counts_LE / counts_LE.sum(1, keepdim=True)
        entropy_L = torch.special.entr(share_LE).sum(1) / math.log(max(2, self._routers.experts))
        metrics = {
            "experts.max": float(share_LE.max()),
            "experts.entropy": float(entropy_L.min()),
            "experts.replayed": replayed / every,
        }
        return metrics | ({"experts.agree": agreed / replayed} if replayed else {})


def again(routers: Routers, recorded_NLK: Tensor | None) -> tuple[Any, AbstractContextManager[Any]]:
    """Return the contexts of a layer's forward and of its second one in the backward pass, as
    `torch.utils.checkpoint` takes them: the second comes when `Routers.watched` has ended.
    """
    return nullcontext(), nullcontext() if recorded_NLK is None else _Again(routers, recorded_NLK)


class _Again:
    """`Routers.watched`, which can be entered as often as a backward pass computes the layer again."""

    def __init__(self, routers: Routers, recorded_NLK: Tensor) -> None:
        self._routers, self._recorded = routers, recorded_NLK
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        self._entered.append(self._routers.watched(self._recorded))
        self._entered[-1].__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._entered.pop().__exit__(*exc)


def _is_router(part: Any) -> bool:
    weight = getattr(part, "weight", None)
    experts = getattr(part, "num_experts", None)
    has_both = isinstance(experts, int) and isinstance(getattr(part, "top_k", None), int)
    return has_both and isinstance(weight, Tensor) and weight.ndim == 2 and len(weight) == experts
