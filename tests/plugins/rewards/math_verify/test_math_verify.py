"""Mathematical equivalence: labelled pairs, verdict kinds, limits, and the callers it must work
from.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.errors import InfrastructureError, RewardFault, UsageError
from quintain.testing import rollout
from quintain.types.task import Task
from quintain_authoring import RewardSuite
from quintain_rewards.math_verify import Verdict, VerdictKind, Verifier, math_equal, shared_verifier
from quintain_rewards.math_verify.pool import Overrun

from ....lanes import examples

PAIRS = Path(__file__).parent / "pairs"
HANGS = r"\boxed{\sum_{k=1}^{9999} \sum_{n=1}^{9999} \frac{1}{k^2+n^3}}"


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    found = Verifier()
    # the start of the workers is on nobody's clock
    found.verify("x+1", "\\boxed{1+x}", timeout=120)
    yield found
    found.close()


def asked(gold: Any, reply: str) -> Any:
    return rollout(Task(prompt="?", answer=gold), reply)


class TestMathEqual(RewardSuite):
    reward = math_equal

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (asked("72", "so it is \\boxed{72}"), 1),
            (asked(72, "The answer is 72."), 1),
            (asked("0.5", "$\\frac{1}{2}$"), 1),
            (asked("\\frac{1}{2}", "\\boxed{0.5}"), 1),
            (asked("$x^2+1$", "\\boxed{1+x^2}"), 1),
            (asked("1200", "\\boxed{1,200}"), 1),
            (asked("72", "12 and 60 make \\boxed{71}"), 0),
            (asked("72", "no idea"), 0),
            (asked("72", ""), 0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        every = " ".join(f"\\boxed{{{n}}}" for n in range(70, 75))
        return [
            asked("72", every),
            asked("72", "\\boxed{70, 71, 72}"),
            asked("72", "\\boxed{\\frac{1}{0}}"),
        ]


def labelled(name: str) -> list[tuple[str, str, str, bool]]:
    """Kind, reference, reply and label of each pair of a file."""
    found, kind = [], ""
    for line in (PAIRS / f"{name}.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("# "):
            kind = line[2:]
        elif line[:2] in ("+ ", "- "):
            gold, _, reply = line[2:].partition(" => ")
            reply = (
                reply.removeprefix("raw:").strip()
                if reply.startswith("raw:")
                else f"\\boxed{{{reply}}}"
            )
            found.append((kind, gold, reply, line[0] == "+"))
    return found


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("retracted", 1),
        ("held_out", 4),
        ("kinds", 4),
        pytest.param("kinds", 1, marks=pytest.mark.more),
        *(
            pytest.param(name, 1, marks=pytest.mark.slow)
            for name in ("tune", "held_out", "review", "fresh")
        ),
    ],
)
def test_labelled_pairs_have_no_false_positive_and_few_false_negatives(
    verifier: Verifier, name: str, every: int
) -> None:
    """Of a long list one pair of *every* few, which has all kinds in it."""
    pairs = labelled(name)[::every]
    outcomes = [
        verifier.verify(gold, reply, timeout=30).kind is VerdictKind.CORRECT
        for _, gold, reply, _ in pairs
    ]
    wrong = [(p, o) for p, o in zip(pairs, outcomes, strict=True) if p[3] != o]
    assert [p for p, right in wrong if right] == []
    assert len(wrong) <= 0.02 * sum(p[3] for p in pairs), wrong


def test_no_right_reference_is_reported_and_broken_ones_are(verifier: Verifier) -> None:
    golds = [gold for name in ("tune", "held_out") for _, gold, _, _ in labelled(name)]
    assert [golds[i] for i, _ in verifier.unreadable(golds, timeout=30)] == []
    broken = ["5", "?!", "", "x+1", "\\frac{", "9^{9^9}", "blue"]
    assert [i for i, _ in verifier.unreadable(broken, timeout=30)] == [1, 2, 4, 5]


@settings(deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_whole_numbers_are_equal_when_they_are(a: int, b: int) -> None:
    verifier = shared_verifier()
    assert (verifier.verify(str(a), f"\\boxed{{{b}}}").kind is VerdictKind.CORRECT) == (a == b)
    assert verifier.verify(str(a), f"\\boxed{{{a}}}").kind is VerdictKind.CORRECT


@pytest.mark.more
@examples(150)
@given(
    st.text(max_size=40)
    | st.text(alphabet="\\{}()[]^_=<>|,;:.!%$&0123456789xife+-*/ ", max_size=40)
)
def test_no_reply_raises_or_is_right_by_chance(text: str) -> None:
    verdict = shared_verifier().verify("7283.25", f"\\boxed{{{text}}}", timeout=30)
    assert verdict.kind is not VerdictKind.CORRECT or "7283" in text


# ---- verdict kinds: which are scores and which are failures --------------------------------------


@pytest.mark.parametrize(
    ("kind", "gold", "reply"),
    [
        ("correct", "2\\sqrt{3}", "\\boxed{\\sqrt{12}}"),
        ("wrong", "2\\sqrt{3}", "\\boxed{2}"),
        ("wrong", "5", "\\boxed{__import__('os').system('touch x')}"),
        ("no_answer", "5", "five, I think, or so"),
        ("no_answer", "5", "\\boxed{5"),
        ("timeout", "5", HANGS),
        ("too_large", "5", "\\boxed{9^{9^{9}}}"),
        ("too_large", "5", "\\boxed{10^{10^{10}}}"),
        ("too_large", "5", "\\boxed{2^{3^(99999)}}"),
        ("too_large", "5", "\\boxed{2^{(3)^{99999}}}"),
        ("too_large", "5", "\\boxed{2^{3^{+(99999)}}}"),
        ("too_large", "5", "\\boxed{300000000!}"),
        ("too_large", "5", "\\boxed{\\sqrt[1000000]{10^{1000000}+1}}"),
        ("too_large", "5", "\\boxed{x+" + "1" * 20_000 + "}"),
        ("too_large", "5", "\\boxed{" + "(" * 300 + "5" + ")" * 300 + "}"),
        ("too_large", "5", "\\boxed{" + "\\frac{1}{" * 80 + "5" + "}" * 80 + "}"),
        ("too_large", "\\{1\\}", "\\boxed{\\{" + ",".join(map(str, range(3000))) + "\\}}"),
    ],
)
def test_each_verdict_kind_is_a_score_or_a_failure(
    verifier: Verifier, kind: str, gold: str, reply: str
) -> None:
    verdict = verifier.verify(gold, reply, timeout=1.0)
    assert kind == verdict.kind.value
    assert (kind in ("timeout", "too_large", "error")) == verdict.kind.failure


def scored(verdict: Verdict, monkeypatch: pytest.MonkeyPatch, **config: Any) -> float:
    async def fixed(*args: Any, **kwargs: Any) -> Verdict:
        return verdict

    monkeypatch.setattr(Verifier, "averify", fixed)
    return math_equal(**config).score(asked("5", "\\boxed{5}")).total


def test_a_failure_of_the_verifier_is_masked_and_a_verdict_is_a_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert scored(Verdict(kind=VerdictKind.CORRECT), monkeypatch) == 1
    for kind in (VerdictKind.WRONG, VerdictKind.NO_ANSWER):
        assert scored(Verdict(kind=kind), monkeypatch) == 0
    for kind in (VerdictKind.TIMEOUT, VerdictKind.TOO_LARGE):
        assert scored(Verdict(kind=kind), monkeypatch) == 0
        with pytest.raises(RewardFault, match=kind.value):
            scored(Verdict(kind=kind), monkeypatch, zero_on_limits=False)
        with pytest.raises(InfrastructureError, match=kind.value):
            scored(Verdict(kind=kind, starved=True), monkeypatch)
    with pytest.raises(RewardFault, match="error"):
        scored(Verdict(kind=VerdictKind.ERROR), monkeypatch)
    with pytest.raises(InfrastructureError, match="error"):
        scored(Verdict(kind=VerdictKind.ERROR, starved=True), monkeypatch)


def unstarved(verifier: Verifier, gold: str, reply: str) -> Verdict:
    """The verdict after those of a busy machine, which blame nothing."""
    while (verdict := verifier.verify(gold, reply, timeout=1.0)).starved:
        pass
    return verdict


@pytest.mark.parametrize("gold", [HANGS[7:-1], "9^{9^9}", "x+" + "1" * 600])
def test_a_reference_beyond_the_limits_is_no_fault_of_the_answers(
    verifier: Verifier, gold: str
) -> None:
    """An answer that equals it as text is still right, and any other gets no zero."""
    assert verifier.verify(gold, f"\\boxed{{{gold}}}", timeout=1.0).kind is VerdictKind.CORRECT
    for reply in ("\\boxed{5}", "\\boxed{x+5}"):
        with pytest.raises(UsageError, match="cannot be compared"):
            unstarved(verifier, gold, reply)


def test_a_starved_check_of_the_reference_blames_nothing_and_is_not_kept(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request had the processor, the one for the reference alone had not. A machine
    cannot be made busy for one of them only, so both are said.
    """
    cpu = iter([1.0, 0.01, 1.0, 1.0])

    def overruns(request: Any, timeout: float) -> Any:
        raise Overrun(next(cpu) * timeout)

    monkeypatch.setattr(verifier._pool, "ask", overruns)
    gold = HANGS[7:-1].replace("9999", "9998")
    assert verifier.verify(gold, "\\boxed{5}", timeout=1.0).starved
    with pytest.raises(UsageError, match="cannot be compared"):
        verifier.verify(gold, "\\boxed{5}", timeout=1.0)


@pytest.mark.parametrize("gold", ["", None, "?!", True, "\\frac{"])
def test_a_reference_that_cannot_be_read_is_a_fault_of_the_task(gold: Any) -> None:
    with pytest.raises(RewardFault, match="answer"):
        math_equal.score(asked(gold, "\\boxed{x}"))


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="processes is 0"):
        Verifier(processes=0)


# ---- limits --------------------------------------------------------------------------------------


def test_a_worker_is_killed_at_the_limit_and_replaced(verifier: Verifier) -> None:
    began = time.monotonic()
    assert (
        verifier.verify("5", HANGS.replace("9999", "9998"), timeout=1.0).kind is VerdictKind.TIMEOUT
    )
    # the aim is 1.1; studies/benchmarks/math_verify.py measures it
    assert 0.9 < time.monotonic() - began < 3
    assert verifier.verify("x+2", "\\boxed{2+x}", timeout=30).kind is VerdictKind.CORRECT


def test_verdicts_are_kept_and_those_of_starved_workers_are_not(verifier: Verifier) -> None:
    for gold, reply, timeout in (
        ("x+5", "\\boxed{5+x}", 30.0),
        ("5", HANGS.replace("2", "4"), 1.0),
    ):
        first = verifier.verify(gold, reply, timeout=timeout)
        assert (verifier.verify(gold, reply, timeout=timeout) is first) == (not first.starved)


def test_memory_of_a_worker_is_limited() -> None:
    small = Verifier(processes=1, memory=32)
    try:
        verdict = small.verify("5", r"\boxed{\sum_{k=1}^{9999} \frac{x^k}{k}}", timeout=60)
        assert verdict.kind == VerdictKind.TOO_LARGE, verdict
        assert verdict.starved is False, verdict
    finally:
        small.close()


def test_a_killed_worker_is_an_infrastructure_failure_and_the_next_call_works() -> None:
    found = Verifier(processes=1)
    try:
        assert found.verify("x+1", "\\boxed{1+x}", timeout=60).kind is VerdictKind.CORRECT
        os.kill(next(iter(found._pool._all)).pid, signal.SIGKILL)
        verdict = found.verify("x+1", "\\boxed{2+x}", timeout=60)
        assert verdict.kind == VerdictKind.ERROR
        assert verdict.starved is True
        assert found.verify("x+1", "\\boxed{2+x}", timeout=60).kind is VerdictKind.WRONG
    finally:
        found.close()


@pytest.mark.more
def test_a_killed_fork_server_is_replaced() -> None:
    found = Verifier(processes=1)
    try:
        assert found.verify("x+1", "\\boxed{1+x}", timeout=60).kind is VerdictKind.CORRECT
        server = found._pool._server
        assert server is not None
        server._process.kill()
        server._process.wait()
        kinds = [found.verify("x+1", f"\\boxed{{{n}+x}}", timeout=60).kind for n in (2, 3, 4)]
        assert kinds[-1] is VerdictKind.WRONG
    finally:
        found.close()


HOSTILE = {
    "boxes": "\\boxed{1} " * 50_000,
    "open boxes": "\\boxed{" * 70_000,
    "braces": "{" * 300_000,
    "spaces": "\\boxed" + " " * 500_000,
    "tags": "<think>" * 70_000,
    "markers": "answer " * 70_000,
    "spaces behind a box": "\\boxed{1} it is" + " " * 300_000,
    "dots behind a box": "\\boxed{1}" + "." * 100_000 + " wait" + "," * 100_000,
    "words behind a box": "\\boxed{1}" + " wait no, it should be that I made a" * 10_000,
} | {
    f"{text} in a box": f"\\boxed{{{(text * 5000)[:9000]}}}"
    for text in ("1", "12.", "1,", "1,111", "\\frac", "\\over ", "sqrt(", "1 1/", "^(", "0.12", "a",
    " ", "...")
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_nothing_in_the_callers_process_takes_long_on_hostile_text(
    verifier: Verifier, name: str
) -> None:
    for reply in (HOSTILE[name], HOSTILE[name][:900] + "...}", HOSTILE[name][:900] + "}"):
        began = time.process_time()
        verifier.verify("7283.25", reply, timeout=1.0)
        assert time.process_time() - began < 2


# ---- callers -------------------------------------------------------------------------------------


@pytest.mark.more
def test_threads_share_a_verifier(verifier: Verifier) -> None:
    found: list[bool] = []

    def run(n: int) -> None:
        for k in range(5):
            right = (
                verifier.verify(f"x+{n}", f"\\boxed{{{n + k % 2}+x}}", timeout=30).kind
                is VerdictKind.CORRECT
            )
            found.append(right == (k % 2 == 0))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40


def test_an_event_loop_is_not_blocked_and_loops_may_follow_each_other(verifier: Verifier) -> None:
    async def run(a: int) -> tuple[list[VerdictKind], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        calls = [
            verifier.averify(f"{a}x+{n}", f"\\boxed{{{n}+{a}x}}", timeout=30) for n in range(1, 9)
        ]
        verdicts = await asyncio.gather(
            *calls, verifier.averify("5", HANGS.replace("9999", f"99{a}7"), timeout=0.5)
        )
        ticker.cancel()
        return [v.kind for v in verdicts[:-1]], ticks

    for a in (3, 4):
        kinds, ticks = asyncio.run(run(a))
        assert kinds == [VerdictKind.CORRECT] * 8
        assert ticks >= 3


def test_no_thread_outlives_the_loop_or_the_check_of_references(verifier: Verifier) -> None:
    before = threading.active_count()
    assert verifier.unreadable(["x+1", "[0,1)"], timeout=30) == []
    assert (
        asyncio.run(verifier.averify("x+21", "\\boxed{21+x}", timeout=30)).kind
        is VerdictKind.CORRECT
    )
    assert threading.active_count() == before


def _in_child(verifier: Verifier, answers: Any) -> None:
    answers.put(
        [
            verifier.verify("y+1", f"\\boxed{{{text}+y}}", timeout=60).kind.value
            for text in ("1", "2")
        ]
    )


@pytest.mark.more
def test_a_forked_process_has_its_own_workers(verifier: Verifier) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(verifier, answers))
    child.start()
    assert answers.get(timeout=120) == ["correct", "wrong"]
    child.join(60)
    assert child.exitcode == 0
    assert verifier.verify("y+3", "\\boxed{3+y}", timeout=30).kind is VerdictKind.CORRECT


@pytest.mark.more
def test_the_callers_alarm_and_handlers_stay_as_they_are(verifier: Verifier) -> None:
    fired: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: fired.append(number))
    handler = signal.getsignal(signal.SIGALRM)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert (
            verifier.verify("5", HANGS.replace("3", "4"), timeout=0.6).kind is VerdictKind.TIMEOUT
        )
        assert fired == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.more
def test_the_callers_process_never_imports_the_parser_or_the_algebra(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys; from quintain_rewards.math_verify import Verifier; v = Verifier()\n"
        "kind = v.verify('x+1', r'\\boxed{1+x}', timeout=60).kind.value\n"
        "print(kind, 'sympy' in sys.modules, 'math_verify' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["correct", "False", "False"], done.stderr


def test_a_fork_server_that_does_not_start_is_a_failure_that_may_be_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verifier = Verifier()
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "/no/such/python")
        verdict = verifier.verify("x+1", "\\boxed{1+x}", timeout=60)
        assert verdict.kind is VerdictKind.ERROR
        assert verdict.starved
        assert "/no/such/python" in verdict.reason
        with pytest.raises(InfrastructureError, match="/no/such/python"):
            verifier.unreadable(["x+1"])
    # a failure is not kept
    assert verifier.verify("x+1", "\\boxed{1+x}", timeout=120).kind is VerdictKind.CORRECT
    verifier.close()


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them() -> None:
    import subprocess
    import sys

    program = (
        "import os, signal; from quintain_rewards.math_verify import Verifier; v = Verifier()\n"
        "v.verify('x+1', r'\\boxed{1+x}', timeout=60); print(next(iter(v._pool._all)).pid, "
        "flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    pid = int(done.stdout)
    for _ in range(100):
        if (
            not Path(f"/proc/{pid}/stat").exists()
            or Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
        ):
            return
        time.sleep(0.1)
    pytest.fail("the worker still runs")
