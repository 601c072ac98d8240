"""Any function of (prompt, output) as a reward: sync, async, batched, of texts and of images."""

from __future__ import annotations

import asyncio
import base64
import io
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain import InfrastructureError, Message, PolicyFault, Rollout, Score, Task
from quintain.errors import Interrupted, RewardFault, UsageError
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.testing import rollout
from quintain_authoring import RewardSuite
from quintain_offline.reward_model import Scorer

TASK = Task(prompt=[Message("system", "Be brief."), Message("user", "Hi")], answer="")


def length(prompt: str, output: str) -> float:
    """A scorer of the test."""
    return len(output) + 0.5 * prompt.count("Hi")


SCORER = Scorer(length)


def scored(scorer: Scorer, *replies: str, result: Any = None) -> list[Any]:
    context: Any = type("Context", (), {"services": {}, "step": 1})()
    return asyncio.run(
        scorer.score_all([rollout(TASK, reply, result=result) for reply in replies], context)
    )


def test_functions_of_every_kind_give_the_same_scores() -> None:
    async def waited(prompt: str, output: str) -> float:
        await asyncio.sleep(0)
        return length(prompt, output)

    def batched(prompts: Sequence[str], outputs: Sequence[str]) -> list[float]:
        return [length(p, o) for p, o in zip(prompts, outputs, strict=True)]

    async def both(prompts: Sequence[str], outputs: Sequence[str]) -> list[float]:
        return batched(prompts, outputs)

    class Model:
        def __call__(self, prompt: str, output: str) -> float:
            return length(prompt, output)

    for scorer in (
        SCORER,
        Scorer(waited),
        Scorer(batched, batched=True),
        Scorer(both, batched=True, batch=2),
        Scorer(Model()),
    ):
        assert [s.total for s in scored(scorer, "a", "bb", "ccc")] == [1.5, 2.5, 3.5], scorer.name


def test_batches_have_the_size_that_was_asked_for() -> None:
    sizes: list[int] = []

    def batched(prompts: list[str], outputs: list[str]) -> list[float]:
        sizes.append(len(outputs))
        return [0.0] * len(outputs)

    scored(Scorer(batched, batched=True, batch=2), *"abcde")
    scored(Scorer(batched, batched=True), *"abcde")
    assert sizes == [2, 2, 1, 5]


def test_a_function_runs_in_a_thread_one_call_at_a_time() -> None:
    threads: set[int] = set()
    inside = [0, 0]

    def slow(prompt: str, output: str) -> float:
        inside[0] += 1
        inside[1] = max(inside)
        threads.add(threading.get_ident())
        inside[0] -= 1
        return 0.0

    async def run() -> None:
        context: Any = type("Context", (), {"services": {}, "step": 1})()
        scorer = Scorer(slow)
        await asyncio.gather(*(scorer.score_all([rollout(TASK, "a")], context) for _ in range(8)))

    asyncio.run(run())
    assert threading.get_ident() not in threads
    assert inside == [0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", None, Score(value=math.nan)])
def test_what_is_no_finite_number_is_a_failure(value: Any) -> None:
    (result,) = scored(Scorer(lambda prompt, output: value, name="odd"), "a")
    assert isinstance(result, RewardFault)
    assert "'odd'" in str(result)


def test_errors_are_failures_of_their_kind() -> None:
    def raising(error: Exception) -> Any:
        def score(prompt: str, output: str) -> float:
            if output == "bad":
                raise error
            return 1.0

        return scored(Scorer(score), "good", "bad")

    for error, kind in (
        (ZeroDivisionError("x"), RewardFault),
        (InfrastructureError("down"), InfrastructureError),
        (PolicyFault("no"), PolicyFault),
    ):
        good, bad = raising(error)
        assert isinstance(good, Score)
        assert type(bad) is kind
    for error in (UsageError("fix it"), Interrupted("budget")):
        with pytest.raises(type(error)):
            raising(error)
    results = scored(Scorer(lambda prompts, outputs: [1.0], batched=True), "a", "b")
    assert all(isinstance(r, RewardFault) and "1 scores for 2 outputs" in str(r) for r in results)


def test_a_score_keeps_its_parts_turns_and_reason() -> None:
    given = Score(value=1.0, turns=(0.5,), parts={"style": 0.25}, reason="why")
    (result,) = scored(Scorer(lambda prompt, output: given, name="mine"), "a")

    assert result.value == 1.0
    assert result.turns == (0.5,)
    assert result.reason == "why"
    assert result.parts == {"mine": 1.5, "mine.style": 0.25}


def test_outputs_are_the_reply_the_result_or_what_a_function_reads() -> None:
    seen: list[Any] = []
    keep = lambda prompt, output: seen.append((prompt, output)) or 0.0  # noqa: E731
    scored(Scorer(keep), "said", result=7)
    scored(Scorer(keep, output="result"), "said", result=7)
    scored(Scorer(keep, output=lambda r: r.reply.upper()), "said", result=7)

    assert seen == [
        ("Be brief.\n\nHi", "said"),
        ("Be brief.\n\nHi", 7),
        ("Be brief.\n\nHi", "SAID"),
    ]
    (failed,) = scored(Scorer(keep, output=lambda r: r.missing), "said")
    assert isinstance(failed, RewardFault)
    with pytest.raises(UsageError, match="output is 'answer'"):
        Scorer(keep, output="answer")
    with pytest.raises(UsageError, match="expected a function"):
        Scorer(3)  # type: ignore[arg-type]


def test_images_reach_the_scorer_as_images(tmp_path: Path) -> None:
    """Bytes, base64, a data URL, a path and an image of pillow are the same picture; text of the
    policy is no path.
    """
    image_module = pytest.importorskip(
        "PIL.Image", reason="pillow is not installed (the extra `images`)"
    )
    picture = image_module.new("RGBA", (4, 2), (200, 100, 50, 255))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    data, text = buffer.getvalue(), base64.b64encode(buffer.getvalue()).decode()
    (tmp_path / "a.png").write_bytes(data)

    def redness(prompt: str, image: Any) -> float:
        assert image.mode == "RGB"
        assert image.size == (4, 2)
        return image.getpixel((0, 0))[0] / 255

    scorer = Scorer(redness, output="result", images=True)
    for output in (data, text, f"data:image/png;base64,{text}", tmp_path / "a.png", picture):
        (result,) = scored(scorer, "drawn", result=output)
        assert isinstance(result, Score), result
        assert result.total == pytest.approx(200 / 255)
    for wrong in (b"no image", "no base64!", str(tmp_path / "a.png"), data[:40], 7, None):
        (result,) = scored(scorer, "drawn", result=wrong)
        assert isinstance(result, RewardFault), wrong


def test_a_recipe_names_a_scorer_of_a_module() -> None:
    expression = f'0.5 * use("{__name__}:SCORER") + 1'
    spec = EnvironmentSpec.of(EnvironmentTable(use="arithmetic", reward=expression))
    assert spec.reward is not None
    assert spec.reward.score(rollout(TASK, "abc")).total == 0.5 * 3.5 + 1


class TestScorer(RewardSuite):
    """The conformance suite of rewards."""

    reward = SCORER
    lowest = 0.5

    def gold(self) -> list[tuple[Rollout[Any, Any], float]]:
        return [(rollout(TASK, "four"), 4.5)]

    def exploits(self) -> list[Rollout[Any, Any]]:
        return [rollout(TASK, "")]
