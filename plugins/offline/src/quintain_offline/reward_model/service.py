"""The service that scores conversations with one reward model, or with an ensemble and a penalty on
disagreement.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from quintain import Message, Service
from quintain.errors import EpisodeError, RewardFault, UsageError

from .conversations import Conversation, conversation
from .failures import checked

if TYPE_CHECKING:
    from .scoring_model import ScoringModel

Combination = Literal["mean", "min"]


@dataclass(frozen=True, kw_only=True)
class ModelScore:
    """The score of one conversation.

    Attributes:
        value: the reward.
        models: the score of each model of the ensemble, normalised if that was asked for.
        std: their standard deviation (ddof 0); 0 for a single model.
    """

    value: float
    models: tuple[float, ...]
    std: float


class RewardModel(Service):
    """Scores conversations with sequence-classification models of transformers, or prompts with a
    picture with models of ImageReward's architecture.

    A call of `score_all` is one batch, so that its numbers depend on the call alone. Several models
    are an ensemble: the reward is their mean less *penalty* standard deviations, or their minimum
    (Coste et al. 2023, 2310.02743, where the penalty is on the variance).

    Args:
        model: folder, or hub id.
        models: the same for an ensemble; leave *model* out.
        combine: ``mean`` or ``min``, over the ensemble.
        penalty: standard deviations of the ensemble to subtract from its mean.
        normalise: subtract the mean of each model on its reference set and divide by its spread;
            they lie beside the model (`quintain reward train` and `check --normalise` write
            them). Ensembles need equal scales.
        label: the label whose logit is the score, for models with several.
        max_length: longest conversation, in tokens; 0 is the context of the model. A longer one is
            a failure.
        batch: conversations per forward pass.
        padding: side to pad batches on; scores do not depend on it.
        dtype: of the weights: ``float32``, ``bfloat16`` or ``float16``. The head computes in
            float32.
        device: ``auto`` is the GPU where there is one.
    """

    def __init__(
        self,
        *,
        model: str = "",
        models: Sequence[str] = (),
        combine: Combination = "mean",
        penalty: float = 0.0,
        normalise: bool = False,
        label: str = "",
        max_length: int = 0,
        batch: int = 16,
        padding: Literal["right", "left"] = "right",
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        """Check the settings.

        Raises:
            UsageError: not exactly one of *model* and *models*, a negative number, or a penalty
                without an ensemble.
        """
        names = tuple(models) or ((model,) if model else ())
        if not names or (model and models):
            raise UsageError(
                'reward_model: name one model = "FOLDER", or models = ["FOLDER", ...] for an '
                "ensemble"
            )
        if penalty < 0 or max_length < 0 or batch < 1:
            raise UsageError(
                f"reward_model: penalty {penalty}, max_length {max_length}, batch {batch}; "
                f"expected at least 0, 0 and 1"
            )
        if penalty and (len(names) < 2 or combine == "min"):
            raise UsageError(
                'reward_model: penalty needs an ensemble, models = [...], with combine = "mean"'
            )
        self.names, self.combine, self.penalty, self.normalise = names, combine, penalty, normalise
        self.label, self.max_length, self.batch, self.padding = label, max_length, batch, padding
        self.dtype, self.device = dtype, device
        self.loaded: tuple[ScoringModel, ...] = ()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Load the models, and score an example with each.

        Raises:
            UsageError: a model cannot be loaded, or has no statistics and *normalise* asks for
                them.
        """
        from .scoring import load_scoring_model
        from .scoring_model import STATISTICS

        self.loaded = tuple(
            load_scoring_model(name, dtype=self.dtype, device=self.device, label=self.label)
            for name in self.names
        )
        for loaded in self.loaded:
            if loaded.caution:
                logging.getLogger(__name__).warning("%s", loaded.caution)
            if self.normalise and loaded.statistics is None:
                raise UsageError(
                    f"reward_model: normalise = true, but there is no {STATISTICS} beside "
                    f"{loaded.path}; write it with `quintain reward check {loaded.path} "
                    "PAIRS --normalise`"
                )
        (probe,) = await self.score_all([conversation("6*7=?", self.loaded[0].example)])
        if isinstance(probe, EpisodeError):
            raise UsageError(f"reward_model: the models cannot score an example: {probe}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.loaded = ()

    async def score(self, prompt: str | Sequence[Message], reply: str) -> ModelScore:
        """Score one reply.

        Raises:
            RewardFault: the conversation is too long, or a score is not finite.
        """
        (scored,) = await self.score_all([conversation(prompt, reply)])
        if isinstance(scored, EpisodeError):
            raise scored
        return scored

    async def score_all(
        self, conversations: Sequence[Conversation]
    ) -> list[ModelScore | EpisodeError]:
        """Score *conversations* as one batch: a score or a failure for each, in order.

        Raises:
            UsageError: the service is not started.
        """
        if not self.loaded:
            raise UsageError("reward_model is not started: use `async with`")
        # one batch at a time: memory, and numbers that depend on the batch alone
        async with self._turn:
            return await asyncio.to_thread(self._score_all, conversations)

    def _score_all(self, conversations: Sequence[Conversation]) -> list[ModelScore | EpisodeError]:
        failures: dict[int, RewardFault] = {}
        columns: list[dict[int, float]] = []
        for loaded in self.loaded:
            rows: dict[int, list[int]] = {}
            for index, messages in enumerate(conversations):
                try:
                    rows[index] = loaded.encode(messages, self.max_length)
                except RewardFault as failure:
                    failures.setdefault(index, failure)
            scores = (
                loaded.scores(list(rows.values()), batch=self.batch, side=self.padding)
                if rows
                else []
            )
            columns.append(dict(zip(rows, scores, strict=True)))
        return [
            failures.get(index) or self._combined([c[index] for c in columns])
            for index in range(len(conversations))
        ]

    def _combined(self, scores: Sequence[float]) -> ModelScore | RewardFault:
        try:
            values = [
                checked(s, f"the reward model {m.path}")
                for s, m in zip(scores, self.loaded, strict=True)
            ]
        except RewardFault as failure:
            return failure
        if self.normalise:
            score_statistics = [loaded.statistics for loaded in self.loaded]
            values = [
                (v - s.mean) / s.std
                for v, s in zip(values, score_statistics, strict=True)
                if s is not None
            ]
        mean, std = statistics.fmean(values), statistics.pstdev(values)
        value = min(values) if self.combine == "min" else mean - self.penalty * std
        return ModelScore(value=value, models=tuple(values), std=std)
