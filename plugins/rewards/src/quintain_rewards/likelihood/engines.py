"""Scorers over engines: the policy of now, the policy at the start of the run, a model that does
not train.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quintain import LimitReached, Message, TokenEngine, need
from quintain.errors import UsageError

from .fixed_model import FixedModelEngine, fixed_copy
from .ngram import NGram
from .text import Pair, Prompt, TextLikelihood, TextScore

if TYPE_CHECKING:
    from quintain.models import LoadedModel


class EngineLikelihood(TextLikelihood):
    """Scores under any engine with exact tokens.

    A batch is what one call of `score` names: its sequences wait in the engine together and no
    others beside them, so that the last bits of the numbers depend on the call alone.
    """

    def __init__(self, engine: TokenEngine | None, temperature: float = 1.0) -> None:
        super().__init__()
        self._engine, self._temperature = engine, temperature
        self._turn = asyncio.Lock()

    async def score(self, pairs: Sequence[Pair], *, max_tokens: int = 0) -> list[TextScore]:
        engine = self._engine
        if engine is None:
            raise UsageError(f"{type(self).__name__} is not started: use `async with`")
        rows: list[tuple[list[int], int]] = []
        for pair in pairs:
            prompt, reply = self._row(engine, pair, max_tokens)
            rows.append(([*prompt, *reply], len(prompt)))
        async with self._turn:
            answers = await asyncio.gather(
                *(engine.score(ids, start, self._temperature) for ids, start in rows)
            )
        self.computed += len(rows)
        return [TextScore(tuple(answer)) for answer in answers]

    def _row(self, engine: TokenEngine, pair: Pair, max_tokens: int) -> tuple[list[int], list[int]]:
        """Return the ids of prompt and reply.

        Raises:
            ValueError, LimitReached: as `score`.
        """
        prompt = self._ids(engine, pair.prompt)
        if not prompt:
            raise ValueError(
                "an empty prompt: the first token of the reply would have no condition"
            )
        reply = (
            engine.tokenizer.encode(pair.reply) if isinstance(pair.reply, str) else list(pair.reply)
        )
        reply = reply[:max_tokens] if max_tokens else reply
        if len(prompt) + len(reply) > engine.context:
            raise LimitReached(
                "context",
                f"{len(prompt)} tokens of prompt and {len(reply)} to score; the scorer's context "
                f"is {engine.context}: shorten the prompt, or score fewer tokens of the text",
            )
        return prompt, reply

    def _ids(self, engine: TokenEngine, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return engine.tokenizer.encode(prompt)
        messages = [m for m in prompt if isinstance(m, Message)]
        if messages:
            return engine.tokenizer.encode(engine.tokenizer.render(messages, prompt=True))
        return [i for i in prompt if isinstance(i, int)]


class LikelihoodService(EngineLikelihood):
    """A `quintain.Likelihood` over any engine that scores tokens; by default the policy itself,
    which changes.

    Baselines of a policy that trains are those of the weights that computed them: use `score`, not
    `baseline`.
    """

    def __init__(self, *, engine: Any = need("policy"), temperature: float = 1.0) -> None:
        """Use *engine*; *temperature* divides its logits.

        Raises:
            UsageError: *engine* gives no token log-probs.
        """
        if not isinstance(engine, TokenEngine):
            raise UsageError(
                f"services.likelihood: {type(engine).__name__} gives no token log-probs; use an "
                "engine with exact tokens (embedded, vllm), or the service frozen-policy, which "
                "needs no policy during the warm start"
            )
        super().__init__(engine, temperature)

    @staticmethod
    def in_evaluation(
        slot: str, args: Mapping[str, Any], run: str
    ) -> tuple[str, Mapping[str, Any]]:
        """Name the model of *run*, which is the policy of now in `quintain eval`; see
        `FrozenPolicy.in_evaluation`.
        """
        return "quintain-rewards/frozen-model", {"model": run, **args}


class ModuleLikelihood(EngineLikelihood):
    """A scorer that holds the module of its model, whose whole next-token distribution can be
    read.
    """

    _module: Any = None

    async def certainty(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        engine, module = self._engine, self._module
        if engine is None or module is None:
            raise UsageError(
                f"{type(self).__name__} has no model: use `async with`; a warm start has none"
            )
        import torch

        rows = []
        for pair in pairs:
            prompt, reply = self._row(engine, pair, 0)
            ids = torch.tensor([[*prompt, *reply]], device=next(module.parameters()).device)
            async with self._turn:
                with torch.no_grad():
                    logits = (
                        module(ids, logits_to_keep=len(reply) + 1).logits[0, :-1].float()
                        / self._temperature
                    )
            size = logits.shape[-1]
            values = logits.logsumexp(-1) - logits.double().mean(-1) - math.log(size)
            rows.append(tuple(values.tolist()))
            self.computed += 1
            await asyncio.sleep(0)
        return rows


class CurrentPolicy(ModuleLikelihood):
    """Scores under the policy of now. It needs the learner of a run, whose module it reads, and
    keeps nothing.

    The warm start of the default model runs before there is a policy. Then every certainty is 0.
    """

    def __init__(
        self,
        *,
        policy: Any = need("policy"),
        learner: Any = need("learner"),
        temperature: float = 1.0,
    ) -> None:
        super().__init__(policy, temperature)
        self._learner = learner

    @staticmethod
    def in_evaluation(
        slot: str, args: Mapping[str, Any], run: str
    ) -> tuple[str, Mapping[str, Any]]:
        """Name the model of *run*, which is the policy of now in `quintain eval`; see
        `FrozenPolicy.in_evaluation`.
        """
        return "quintain-rewards/frozen-model", {"model": run, **args}

    async def certainty(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        if self._learner is None:
            return [(0.0,) * len(pair.reply) for pair in pairs]
        self._module = self._learner.module
        return await super().certainty(pairs)


class FixedLikelihood(ModuleLikelihood):
    """A scorer over a model that keeps its weights."""

    def __init__(self, temperature: float) -> None:
        super().__init__(None, temperature)
        self._fixed = FixedModelEngine(type(self).__name__, slots=1, reproducible=False)

    async def _start(self, model: LoadedModel) -> None:
        self._module = model.module
        self._engine = await self._fixed.start(model)

    async def __aexit__(self, *exc: object) -> None:
        await self._fixed.__aexit__(*exc)


class FrozenModel(FixedLikelihood):
    """Scores under a model that does not train.

    Args:
        model: run, checkpoint, folder or hub id, as `quintain eval --model` takes it.
        slot: of a run or a checkpoint: score under the weights that its service of this slot keeps,
            such as `FrozenPolicy` does; empty is the model itself.
        dtype: of the weights; ``bfloat16`` halves the memory and raises the noise floor.
        device: ``auto`` is the GPU where there is one.
        temperature: divides the logits.
    """

    def __init__(
        self,
        *,
        model: str,
        slot: str = "",
        dtype: str = "float32",
        device: str = "auto",
        temperature: float = 1.0,
    ) -> None:
        super().__init__(temperature)
        self._model, self._slot, self._dtype, self._device = model, slot, dtype, device

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that the model is there; see `quintain.Service.check_available`."""
        from quintain.models import check_available
        from quintain.store import model_named

        check_available(model_named(str(args["model"])).path)

    async def __aenter__(self) -> Self:
        from quintain.models import load_model
        from quintain.store import model_named

        path = model_named(self._model).path
        loaded = load_model(path, dtype=self._dtype, device=self._device)
        if self._slot:
            loaded.module.load_state_dict(self._kept(Path(path).parent / "state.pt"))
        loaded.module.eval()
        await self._start(loaded)
        return self

    def _kept(self, file: Path) -> dict[str, Any]:
        """Return the weights of the service in `slot` that the checkpoint with *file* keeps.

        Raises:
            UsageError: it keeps none.
        """
        import torch

        tensors = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
        prefix = f"/services/{self._slot}/weights/"
        weights = {
            name.removeprefix(prefix): value
            for name, value in tensors.items()
            if name.startswith(prefix)
        }
        if not weights:
            raise UsageError(
                f"{self._model} keeps no weights of a service {self._slot!r}: leave out slot, and "
                "name the model that the run started from (a policy with adapters starts as its "
                "base model)"
            )
        return weights


class FrozenPolicy(FixedLikelihood):
    """Scores under the policy as it was when the run began.

    The copy is part of every checkpoint, so that a resumed run has the same scorer. A policy with
    adapters is its base model, which no checkpoint needs. For a large model without adapters name
    it with `FrozenModel` instead: then checkpoints stay small.

    The warm start of the default model runs before there is a policy. Then the scorer is `NGram`.
    """

    def __init__(
        self,
        *,
        policy: Any = need("policy"),
        learner: Any = need("learner"),
        temperature: float = 1.0,
    ) -> None:
        super().__init__(temperature)
        self._policy, self._learner = policy, learner
        self._saved = True
        self._before = NGram() if learner is None else None

    async def __aenter__(self) -> Self:
        if self._before is not None:
            return self
        from quintain.models import LoadedModel

        module = self._learner.module
        self._saved = not hasattr(module, "peft_config")  # adapters begin as the identity
        model = LoadedModel(
            module=fixed_copy(module, adapters=False),
            tokenizer=self._policy.tokenizer,
            path="frozen-policy",
            context=self._policy.context,
            fused=False,
        )
        await self._start(model)
        return self

    async def score(self, pairs: Sequence[Pair], *, max_tokens: int = 0) -> list[TextScore]:
        if self._before is not None:
            self.computed += len(pairs)
            return await self._before.score(pairs, max_tokens=max_tokens)
        return await super().score(pairs, max_tokens=max_tokens)

    @staticmethod
    def in_evaluation(
        slot: str, args: Mapping[str, Any], run: str
    ) -> tuple[str, Mapping[str, Any]]:
        """Return the service that stands for this one in `quintain eval`, where there is no policy
        of a run, and its settings: the weights that the checkpoints of *run* keep for *slot*.
        """
        return "quintain-rewards/frozen-model", {"model": run, "slot": slot, **args}

    def state(self) -> Mapping[str, Any]:
        if self._module is None or not self._saved:
            return {}
        return {"weights": dict(self._module.state_dict())}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._module.load_state_dict(state["weights"])
        self._baselines.clear()
