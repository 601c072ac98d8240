"""The rewards `learned_reward` and `process_reward`, over the services `reward_model` and
`process_reward_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quintain import Reward, Rollout, Score
from quintain.errors import BindingError, EpisodeError

from .conversations import conversation_of
from .monitor import OverOptimisation
from .process import ProcessRewardModel
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

    async def score_all(
        self, group: Sequence[AnyRollout], context: Any
    ) -> list[Score | EpisodeError]:
        model = _service(context, self.name, "reward_model", RewardModel)
        results = await model.score_all([conversation_of(rollout) for rollout in group])
        scores = [
            result if isinstance(result, EpisodeError) else _score(result) for result in results
        ]
        if context.step == 0:  # an evaluation: the rollouts are held out
            for monitor in context.services.values():
                if isinstance(monitor, OverOptimisation):
                    await monitor.observe(
                        group, [s.value if isinstance(s, Score) else None for s in scores]
                    )
        return scores


def _score(result: ModelScore) -> Score:
    parts = {"learned_reward": result.value}
    if len(result.models) > 1:
        mean = sum(result.models) / len(result.models)
        more = {
            "mean": mean,
            "std": result.std,
            "min": min(result.models),
            "max": max(result.models),
        }
        parts |= {f"learned_reward.{name}": value for name, value in more.items()}
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
process_reward = StepReward()
