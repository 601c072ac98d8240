"""The rewards `learned_reward`, `picture_reward` and `process_reward`, over the services
`reward_model` and `process_reward_model`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quintain import Reward, Rollout, Score
from quintain.errors import BindingError, EpisodeError

from .conversations import conversation, conversation_of
from .monitor import OverOptimisation
from .process import ProcessRewardModel
from .scorer import prompt_text
from .service import ModelScore, RewardModel

AnyRollout = Rollout[Any, Any]


class ModelReward(Reward):
    """The score of a reward model for the whole conversation, computed for a group in one batch.

    Its parts are ``mean``, ``std``, ``min`` and ``max`` over the models of an ensemble. A
    conversation without a score is a failure of that rollout alone.
    """

    @property
    def name(self) -> str:
        return "learned_reward"

    @property
    def group(self) -> bool:
        return True  # for batches only: samples are not compared

    @property
    def proxy(self) -> bool:
        return True

    @property
    def needs(self) -> Mapping[str, Any]:
        return {"reward_model": RewardModel}

    async def scores_of(
        self, group: Sequence[AnyRollout], model: RewardModel
    ) -> list[Score | EpisodeError]:
        """Score *group* as one batch of *model*."""
        results = await model.score_all([conversation_of(rollout) for rollout in group])
        return [
            result if isinstance(result, EpisodeError) else _score(result, self.name)
            for result in results
        ]

    async def score_all(
        self, group: Sequence[AnyRollout], context: Any
    ) -> list[Score | EpisodeError]:
        model = _service(context, self.name, "reward_model", RewardModel)
        scores = await self.scores_of(group, model)
        if context.step == 0:  # an evaluation: the rollouts are held out
            for monitor in context.services.values():
                if isinstance(monitor, OverOptimisation):
                    await monitor.observe(
                        group, [s.value if isinstance(s, Score) else None for s in scores]
                    )
        return scores


class PictureReward(ModelReward):
    """How likely people prefer the picture that an episode returned to one of score 0, by a reward
    model of (prompt, picture) pairs: sigmoid(score), from 0 to 1 (Bradley and Terry 1952).

    The result of the episode is a picture as `quintain_vision.picture` returns it, or empty: an
    episode without a picture scores 0, which is less than any picture. With ``normalise = true`` of
    the service, a picture of score 0 is an average one of the reference set. Parts are those of
    `learned_reward`, of the scores before the sigmoid.
    """

    @property
    def name(self) -> str:
        return "picture_reward"

    async def scores_of(
        self, group: Sequence[AnyRollout], model: RewardModel
    ) -> list[Score | EpisodeError]:
        drawn = [index for index, rollout in enumerate(group) if rollout.result]
        results = await model.score_all(
            [
                conversation(prompt_text(group[index].task.prompt), str(group[index].result))
                for index in drawn
            ]
        )
        nothing = Score(value=0.0, reason="the episode returned no picture")
        scores: list[Score | EpisodeError] = [nothing] * len(group)
        for index, result in zip(drawn, results, strict=True):
            if isinstance(result, EpisodeError):
                scores[index] = result
            else:
                likely = 1 / (1 + math.exp(-max(-700.0, result.value)))
                scores[index] = replace(_score(result, self.name), value=likely)
        return scores


def _score(result: ModelScore, name: str) -> Score:
    parts = {name: result.value}
    if len(result.models) > 1:
        mean = sum(result.models) / len(result.models)
        more = {
            "mean": mean,
            "std": result.std,
            "min": min(result.models),
            "max": max(result.models),
        }
        parts |= {f"{name}.{part}": value for part, value in more.items()}
    return Score(value=result.value, parts=parts)


class StepReward(Reward):
    """A score for each turn of the policy, which is added to the tokens of that turn.

    Its parts are ``mean``, ``min`` and ``last`` over the turns.
    """

    @property
    def name(self) -> str:
        return "process_reward"

    @property
    def group(self) -> bool:
        return True  # for batches only

    @property
    def proxy(self) -> bool:
        return True

    @property
    def needs(self) -> Mapping[str, Any]:
        return {"process_reward_model": ProcessRewardModel}

    async def score_all(
        self, group: Sequence[AnyRollout], context: Any
    ) -> list[Score | EpisodeError]:
        model = _service(context, self.name, "process_reward_model", ProcessRewardModel)
        results = await model.score_all(group)
        return [
            result if isinstance(result, EpisodeError) else _turn_score(result)
            for result in results
        ]


def _turn_score(turns: Sequence[float]) -> Score:
    if not turns:
        return Score(value=0.0, parts={"process_reward": 0.0}, reason="the policy took no turn")
    more = {"mean": sum(turns) / len(turns), "min": min(turns), "last": turns[-1]}
    parts = {
        "process_reward": sum(turns),
        **{f"process_reward.{name}": value for name, value in more.items()},
    }
    return Score(turns=tuple(turns), parts=parts)


def _service(context: Any, reward: str, slot: str, kind: type[Any]) -> Any:
    service = context.services.get(slot)
    if not isinstance(service, kind):
        raise BindingError(
            f"reward {reward!r} needs a service {slot!r}: add [services.{slot}] to the recipe"
        )
    return service


learned_reward = ModelReward()
picture_reward = PictureReward()
process_reward = StepReward()
