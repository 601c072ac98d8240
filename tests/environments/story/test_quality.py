"""Chapters of two policies in pairs: by rules, by a scripted judge with biases and faults, of
models and servers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintain import Sampling
from quintain.errors import InfrastructureError, UnknownNameError, UsageError
from quintain_env_story import Story
from quintain_env_story.command import root
from quintain_env_story.quality import (
    CRITERIA,
    PLAN_ITSELF,
    Author,
    Quality,
    criteria_of,
    quality,
    run_table,
    tasks_of,
)
from quintain_judge import JudgeService, judge_named

from ...core.models.tiny import save_tiny
from ...plugins.engines.openai.http_kit import in_thread
from ...plugins.judge.kit import JudgeServer, completion, scored, texts_of

STORY = Story(boats=2, size=12)
SHORT = Sampling(temperature=0.7, max_tokens=8)


def compared(
    judge: JudgeService | Callable[[Any], Any],
    *,
    model: str = "@oracle",
    against: str = "@filler",
    writer: str = PLAN_ITSELF,
    tasks: int = 6,
    criteria: Sequence[str] = (),
) -> Quality:
    """The comparison of two policies by *judge*, or by the script behind a server."""

    async def run() -> Quality:
        async with AsyncExitStack() as stack:
            authors = {name: Author(name, STORY) for name in {model, against, writer}}
            for author in authors.values():
                await author.start(stack)
            service = judge
            if not isinstance(service, JudgeService):
                url = await stack.enter_async_context(JudgeServer(service).up())
                service = JudgeService(
                    base_url=url, cache="none", retries=1, backoff=0.001, outage=0.1
                )
            await stack.enter_async_context(service)
            pair, chapters = (authors[model], authors[against]), tasks_of(STORY, "test", tasks)
            return await quality(
                pair,
                authors[writer],
                service,
                chapters,
                criteria=criteria,
                plan=SHORT,
                chapter=SHORT,
            )

    return asyncio.run(run())


def codes(text: str) -> set[str]:
    return set(re.findall(r"[A-H]\d", text))


def by_codes(body: Any) -> Any:
    """The reply that names more of the last locks is better, in any order."""
    texts = texts_of(body)
    last = codes(texts["prompt"].split("# Last")[1])
    right = {label: len(codes(texts[label]) & last) for label in "AB"}
    return scored(
        "tie" if right["A"] == right["B"] else max("AB", key=lambda label: right[label]), "verdict"
    )


def test_rules_compare_names_without_a_network() -> None:
    """Honest plans win, and lose where the sides are swapped; a policy ties with itself."""
    result = compared(JudgeService())
    assert result.comparison.counts == {"wins": 6, "ties": 0, "losses": 0, "failed": 0}
    assert result.comparison.measures["win_rate"]["value"] == 1
    # Wilson, 6 of 6
    assert result.comparison.measures["win_rate"]["low"] == pytest.approx(0.6097, abs=1e-4)
    assert (
        compared(JudgeService(), model="@filler", against="@oracle").comparison.counts["losses"]
        == 6
    )
    same = compared(JudgeService(), model="@oracle", against="@oracle").comparison
    assert same.counts["ties"] == 6
    assert same.measures["win_rate"]["value"] == 0.5


def test_a_judge_decides_and_sees_story_chapters_and_criteria() -> None:
    seen: list[Any] = []

    def script(body: Any) -> Any:
        seen.append(body)
        return by_codes(body)

    result = compared(script, against="@wrong_chapter")
    assert result.comparison.counts["wins"] == 6
    assert result.comparison.measures["same_in_both_orders"]["value"] == 1
    assert len(seen) == 12  # both orders of six pairs
    assert all(criterion in seen[0]["messages"][0]["content"] for criterion in CRITERIA)
    texts = texts_of(seen[0])
    assert texts["prompt"].startswith("# Story")
    assert "Plan the next chapter" not in texts["prompt"]
    (draft, _) = result.drafts[0] or ()
    assert draft.chapter == draft.plan in (texts["A"], texts["B"])


def test_a_judge_of_positions_gives_ties_and_is_seen() -> None:
    result = compared(lambda body: scored("A", "verdict")).comparison
    assert result.counts == {"wins": 0, "ties": 6, "losses": 0, "failed": 0}
    assert result.measures["win_rate"]["value"] == 0.5
    assert result.measures["same_in_both_orders"]["value"] == 0
    assert result.measures["first_wins_where_order_decides"]["value"] == 1


@pytest.mark.parametrize(
    "fault",
    [
        (503, "down"),
        (200, "{}"),
        scored("both", "verdict"),
        completion(None, refusal="no"),
        completion("A."),
    ],
)
def test_a_pair_without_a_verdict_is_masked_and_never_lost(fault: Any) -> None:
    """A judge that fails on two of six stories: they are in no measure, and the others stand."""
    broken = {str(task.prompt).split("\n")[1] for task in tasks_of(STORY, "test", 2)}

    def script(body: Any) -> Any:
        return fault if texts_of(body)["prompt"].split("\n")[1] in broken else by_codes(body)

    result = compared(script)
    assert result.comparison.values == [None, None, 1, 1, 1, 1]
    assert result.comparison.measures["win_rate"] | {"low": 0} == {
        "value": 1,
        "low": 0,
        "high": 1,
        "rows": 4,
    }
    assert set(result.failures) == {task.id for task in result.tasks[:2]}
    assert result.report()["failed"] == 2
    assert result.report()["losses"] == 0
    rows = result.rows()
    assert [row["value"] for row in rows] == result.comparison.values
    assert rows[0]["failure"]
    assert "failure" not in rows[2]


def test_a_model_writes_by_the_plans_and_a_prompt_that_is_too_long_is_a_failure(
    tmp_path: Path,
) -> None:
    """Equal plans become equal chapters, which tie without a call; no room in the context is
    nobody's loss.
    """
    wide, narrow = (
        save_tiny(tmp_path / name, context=size) for name, size in (("wide", 1024), ("narrow", 16))
    )
    same = compared(
        lambda body: (500, "not to be asked"), against="@oracle", writer=str(wide), tasks=3
    )
    assert same.comparison.counts["ties"] == 3
    assert not same.failures
    assert all(
        pair and pair[0] == pair[1] and pair[0].chapter != pair[0].plan for pair in same.drafts
    )
    failed = compared(JudgeService(), writer=str(narrow), tasks=3)
    assert failed.drafts == (None, None, None)
    assert len(failed.failures) == 3
    assert not failed.comparison.measures
    assert [row["value"] for row in failed.rows()] == [None] * 3


def test_a_server_plans_without_its_reasoning() -> None:
    """The URL of a server, with the name of a model; what it thinks is no plan; where it fails,
    nobody loses.
    """
    asked: list[Any] = []

    def script(body: Any) -> Any:
        asked.append(body)
        last = body["messages"][-1]["content"].split("# Last\nThen ")[1].split(".")[0]
        return (400, "no") if len(asked) == 1 else completion(f"<think>hm</think>End {last}.")

    with in_thread(JudgeServer(script).up()) as url:
        result = compared(JudgeService(), model=f"{url}#some-model", tasks=4)
    assert asked[0]["model"] == "some-model"
    assert asked[0]["messages"][0]["content"] == Story.system
    assert sorted(map(str, result.comparison.values)) == ["1.0"] * 3
    assert len(result.failures) == 1
    assert all(pair[0].plan.startswith("End ") for pair in result.drafts if pair)


def test_criteria_of_rules_and_of_models() -> None:
    task = tasks_of(STORY, "test", 1)[0]
    rules = criteria_of(task, JudgeService())
    assert rules == (
        *(f'Mentions "{code}".' for code in re.findall(r"[A-H]\d", task.chapter)),
        "Repeats no sentence.",
    )
    assert criteria_of(task, judge_named("http://127.0.0.1:1/v1")) == CRITERIA
    assert compared(JudgeService(), criteria=['Mentions "nobody".']).comparison.counts["ties"] == 6


def test_the_recipe_of_a_run_names_boats_and_system(tmp_path: Path) -> None:
    (tmp_path / "story-1").mkdir()
    recipe = tmp_path / "story-1" / "recipe.toml"
    recipe.write_text(
        'environments = [{ use = "quintain-env-story/story", args = { boats = 4 }, system = "" }]'
    )
    assert run_table("story-1", str(tmp_path))["args"] == {"boats": 4}
    assert Author("story-1", STORY, str(tmp_path)).system == ""
    assert Author("@oracle", STORY, str(tmp_path)).system == Story.system
    recipe.write_text("environments = 3")
    with pytest.raises(UsageError, match="damaged"):
        run_table("story-1", str(tmp_path))
    with pytest.raises(UnknownNameError, match="oracle"):
        Author("@oracel", STORY)
    with pytest.raises(UsageError, match="has no tasks"):
        tasks_of(Story(data=""), "test", 0)


@pytest.mark.more
def test_the_page_shows_commands_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/story.md: lines for people; JSON for programs, and the chapters as a
    file.
    """
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(root, "quality @oracle --against @filler".split())
    assert shown.exit_code == 0, shown.output
    assert "@oracle against @filler; chapters by @plan, judged by rules" in shown.output
    assert "20 won, 0 tied, 0 lost, 0 without a verdict" in shown.output
    assert "win_rate" in shown.output
    options = "--tasks 40 --out chapters.jsonl --json"
    done = CliRunner().invoke(root, f"quality @oracle --against @wrong_chapter {options}".split())
    assert json.loads(done.stdout)["wins"] == 40
    rows = [json.loads(line) for line in Path("chapters.jsonl").read_text().splitlines()]
    assert [row["value"] for row in rows] == [1] * 40
    assert rows[0]["model"]["plan"].startswith("End ")


def test_the_judge_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server, the judge of a recipe, and an error where nothing was judged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    run = CliRunner().invoke
    with in_thread(JudgeServer(by_codes).up()) as url:
        done = run(
            root, f"quality @oracle --against @filler --tasks 3 --judge {url} --json".split()
        )
    report = json.loads(done.stdout)
    assert report["judge"] == "openai:judge-model"
    assert report["wins"] == 3
    assert report["failed"] == 0
    with in_thread(JudgeServer(lambda body: (500, "down")).up()) as url:
        Path("judge.toml").write_text(
            f'[services.judge]\nuse = "judge"\nargs = {{ base_url = "{url}", retries = 0, cache = '
            f'"none" }}'
        )
        failed = run(
            root,
            "quality @oracle --against @filler --tasks 2 --judge-recipe judge.toml --json".split(),
        )
    assert json.loads(failed.stdout)["failed"] == 2
    assert isinstance(failed.exception, InfrastructureError)
    assert "no pair has a verdict" in str(failed.exception)
    wrong = run(root, "quality @oracle --against @filler --judge-model m".split())
    assert isinstance(wrong.exception, UsageError)
    assert "give its URL" in str(wrong.exception)
