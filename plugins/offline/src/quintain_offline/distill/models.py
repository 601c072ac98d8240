"""Teachers that do not train: models of this process, ensembles of them, servers, one for each
environment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import torch
from torch import Tensor

from quintain import LimitReached, need
from quintain.errors import UsageError
from quintain.models import (
    Forward,
    LoadedModel,
    TokenSequence,
    check_available,
    load_model,
    module_on_paper,
)
from quintain.store import model_named

from .server import ServerScorer
from .teacher import Teacher, TeacherRow, TeacherScore
from .vocabulary import SharedVocabulary

CHUNK = 1 << 24
"""Logits at once: 64 MiB of float32 for each model."""
BYTES = {"bfloat16": 2, "float16": 2, "float64": 8}
"""Of a weight, by the name of its type; 4 for others."""
EVERYWHERE = "*"
"""The environment of a teacher for all others."""


class ModelTeacher(Teacher):
    """Asks models that keep their weights. Each is loaded once, whatever number of environments it
    teaches.

    Args:
        model: a run, a checkpoint, a folder or a hub id, as `quintain eval --model` takes it; the
            URL of a server up to ``/v1`` (vLLM), with ``#NAME`` where it serves several; a list of
            models, whose probabilities are averaged; or a table of these by environment, where
            ``"*"`` teaches all others.
        temperature: divides the logits; ``None`` takes the policy's, so that a policy that has
            become the teacher has the same logits. A server has 1.
        dtype: of the weights; ``bfloat16`` halves their memory.
        device: ``auto`` is the GPU where there is one.
        token_budget: tokens of one forward pass.
    """

    def __init__(
        self,
        *,
        model: str | list[str] | dict[str, Any],
        temperature: float | None = None,
        dtype: str = "float32",
        device: str = "auto",
        token_budget: int = 4096,
        policy: Any = need("policy"),
        learner: Any = need("learner"),
    ) -> None:
        super().__init__()
        self._routes = routes_of(model)
        self._temperature, self._dtype, self._device = temperature, dtype, device
        self._token_budget = token_budget
        self._policy, self._learner = policy, learner
        self._scorers: dict[tuple[str, ...], ModelScorer | ServerScorer] = {}
        self._stack = AsyncExitStack()

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> str | None:
        """Check that the models are there, and say what they take; see
        `quintain.Service.check_available`.
        """
        names = {name for route in routes_of(args["model"]).values() for name in route}
        notes = []
        for name in sorted(names):
            if _is_url(name):
                notes.append(f"{name} is asked once for each sequence of a batch")
                continue
            path = model_named(name).path
            check_available(path)
            module = module_on_paper(path, None)
            if module is not None:
                count = sum(p.numel() for p in module.parameters())
                size = count * BYTES.get(str(args.get("dtype")), 4)
                notes.append(
                    f"{name} takes {size / 1e6:,.0f} MB of weights and {2 * count / 1e9:.2g} GFLOP "
                    "for each token of a batch"
                )
        return "teacher: " + "; ".join(notes) if notes else None

    async def __aenter__(self) -> Self:
        try:
            await self._load()
        except BaseException:
            await self._stack.aclose()  # nobody else closes what is open already
            raise
        return self

    async def _load(self) -> None:
        loaded: dict[str, LoadedModel] = {}
        policy_size = self._learner.module.get_output_embeddings().weight.shape[0]
        for route in dict.fromkeys(self._routes.values()):
            if _is_url(route[0]):  # a route with a server is that server alone
                server = ServerScorer(route[0], self._policy.tokenizer)
                self._scorers[route] = await self._stack.enter_async_context(server)
                continue
            for name in route:
                if name not in loaded:
                    path = model_named(name).path
                    loaded[name] = load_model(path, dtype=self._dtype, device=self._device)
            self._scorers[route] = ModelScorer(
                [loaded[name] for name in route],
                self._policy.tokenizer,
                policy_size=policy_size,
                token_budget=self._token_budget,
            )

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def compute(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        chosen = self._temperature if self._temperature is not None else temperature
        by_route: dict[tuple[str, ...], list[int]] = {}
        for index, row in enumerate(rows):
            by_route.setdefault(self._route(row.environment), []).append(index)
        scores: dict[int, TeacherScore] = {}
        for route, indices in by_route.items():
            found = await self._scorers[route].score([rows[i] for i in indices], chosen, top)
            scores |= zip(indices, found, strict=True)
        return [scores[i] for i in range(len(rows))]

    def _route(self, environment: str) -> tuple[str, ...]:
        route = self._routes.get(environment, self._routes.get(EVERYWHERE))
        if route is None:
            raise UsageError(
                f"teacher: no model for the environment {environment!r}; there are those of "
                f'{", ".join(self._routes)}: add one, or "*" for all others'
            )
        return route


def routes_of(model: str | Sequence[str] | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the models of each environment.

    Raises:
        UsageError: no model, or an ensemble with a server.
    """
    table = model if isinstance(model, Mapping) else {EVERYWHERE: model}
    routes = {
        environment: (names,) if isinstance(names, str) else tuple(names)
        for environment, names in table.items()
    }
    for environment, route in routes.items():
        if not route or not all(isinstance(name, str) and name for name in route):
            raise UsageError(f"teacher: model of {environment!r} is {route!r}; expected names")
        if len(route) > 1 and any(map(_is_url, route)):
            raise UsageError(
                "teacher: an ensemble averages whole distributions, which a server does not give; "
                "name folders, runs or hub ids"
            )
    return routes


class ModelScorer:
    """Next-token distributions of loaded models, averaged where there are several.

    Args:
        models: with one tokenizer.
        tokenizer: of the policy.
        policy_size: number of the policy's logits.
        token_budget: tokens of one forward pass.

    Raises:
        UsageError: a tokenizer differs too much, see `SharedVocabulary`; or the models differ in
            their number of logits.
    """

    def __init__(
        self, models: Sequence[LoadedModel], tokenizer: Any, *, policy_size: int, token_budget: int
    ) -> None:
        self._tokenizer, self._token_budget = tokenizer, token_budget
        self._forwards = [Forward(model.module) for model in models]
        self._context = min(model.context for model in models)
        sizes = {forward.head_weight.shape[0] for forward in self._forwards}
        if len(sizes) > 1:
            raise UsageError(
                f"teacher: an ensemble of models with {' and '.join(map(str, sorted(sizes)))} "
                "logits; their distributions are averaged id by id, so take models of one family"
            )
        self._vocabularies = [
            SharedVocabulary.of(
                tokenizer,
                model.tokenizer,
                name=model.path,
                policy_size=policy_size,
                teacher_size=forward.head_weight.shape[0],
            )
            for model, forward in zip(models, self._forwards, strict=True)
        ]
        shared = torch.stack([v.known for v in self._vocabularies]).all(0)
        complete = all(v.complete for v in self._vocabularies)
        self._shared = None if complete else shared.nonzero()[:, 0]

    async def score(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        """Return the score of each row; arguments and errors as of `Teacher.score`."""
        for row in rows:
            for vocabulary in self._vocabularies:
                vocabulary.check(row.ids, self._tokenizer.decode)
            if len(row.ids) > self._context:
                raise LimitReached(
                    "context",
                    f"{len(row.ids)} tokens to score; the teacher's context is {self._context}",
                )
        scores: dict[int, TeacherScore] = {}
        for indices in self._batches(rows):
            part = [rows[i] for i in indices]
            # In a thread, so that episodes of other versions go on meanwhile.
            found = await asyncio.to_thread(self._score, part, temperature, top)
            scores |= zip(indices, found, strict=True)
        return [scores[i] for i in range(len(rows))]

    def _batches(self, rows: Sequence[TeacherRow]) -> Iterator[list[int]]:
        """Yield the rows of each forward pass: those with one prompt together, as their common
        tokens are computed once.
        """
        order = sorted(range(len(rows)), key=lambda i: (_prompt(rows[i]), i))
        part: list[int] = []
        tokens = 0
        for i in order:
            if part and tokens + len(rows[i].ids) > self._token_budget:
                yield part
                part, tokens = [], 0
            part.append(i)
            tokens += len(rows[i].ids)
        if part:
            yield part

    @torch.no_grad()
    def _score(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        by_prompt: dict[tuple[int, ...], list[TokenSequence]] = {}
        for row in rows:
            sequence = TokenSequence(row.ids, row.positions)
            by_prompt.setdefault(_prompt(row), []).append(sequence)
        hidden = [forward.hidden(list(by_prompt.values())) for forward in self._forwards]
        device, size = hidden[0].device, self._forwards[0].head_weight.shape[0]
        target_N = torch.tensor([row.ids[p] for row in rows for p in row.positions], device=device)
        shared = None if self._shared is None else self._shared.to(device)
        logp, top_logp, top_ids, rest_logp = [], [], [], []
        step = max(1, CHUNK // size)
        for start in range(0, len(target_N), step):
            chunk = slice(start, start + step)
            logp_CV = self._distribution([h[chunk] for h in hidden], temperature)
            logp.append(logp_CV.gather(1, target_N[chunk, None])[:, 0].cpu())
            if top is None:
                continue
            known_CV = logp_CV if shared is None else logp_CV[:, shared]
            if not top or top >= known_CV.shape[1]:
                top_logp.append(known_CV.cpu())
                continue
            values, places = known_CV.topk(top, dim=1)
            top_logp.append(values.cpu())
            ids_CK = places if shared is None else shared[places]
            top_ids.append(ids_CK.cpu())
            rest_logp.append(logp_CV.scatter(1, ids_CK, -torch.inf).logsumexp(1).cpu())
        counts = [len(row.positions) for row in rows]
        of_rows, values_of_rows, ids_of_rows, rests_of_rows = (
            torch.split(torch.cat(x), counts) if x else None
            for x in (logp, top_logp, top_ids, rest_logp)
        )
        assert of_rows is not None
        found = []
        for k, logp_of_row in enumerate(of_rows):
            top_of_row = None if values_of_rows is None else values_of_rows[k]
            ids = None if ids_of_rows is None else ids_of_rows[k]
            if top_of_row is not None and ids is None and self._shared is not None:
                ids = self._shared.expand(len(top_of_row), -1)
            rest = None if rests_of_rows is None else rests_of_rows[k]
            found.append(
                TeacherScore(logp=logp_of_row, top_logp=top_of_row, top_ids=ids, rest_logp=rest)
            )
        return found

    def _distribution(self, hidden: Sequence[Tensor], temperature: float) -> Tensor:
        """Return the log-probs [C, V] of all ids: of the mean of the models' probabilities."""
        found = []
        for forward, hidden_CD in zip(self._forwards, hidden, strict=True):
            logits_CV = forward.logits(hidden_CD)
            wide = logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float()
            found.append((wide / temperature).log_softmax(1))
        if len(found) == 1:
            return found[0]
        return torch.stack(found).logsumexp(0) - math.log(len(found))


def _prompt(row: TeacherRow) -> tuple[int, ...]:
    return row.ids[: row.positions[0]]


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))
