"""The provider of docs/write-a-sandbox.md: what it measures, the attacks that it claims to hold,
sessions.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Iterator

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import Guarantee, ProbedSandbox, Program, ProgramResult

from ...docs.pages import page
from .programs import ATTACKS, PRELUDE
from .service import await_nothing, processes_with
from .test_attacks import LIMITS, NEXT, PATIENT

CLAIMS = {"processes", "output", "time"}
HELD = [attack for attack in ATTACKS if set(attack.needs.split()) <= CLAIMS]
MARK = "sandbox-of-the-page"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProbedSandbox]:
    (block,) = [
        block for block in page("docs/write-a-sandbox.md").blocks if block.file == "processes.py"
    ]
    module = types.ModuleType("processes")
    exec(block.text, module.__dict__)
    service = module.Processes(slots=4, enforce=CLAIMS)
    try:
        asyncio.run(service.__aenter__())
    except InfrastructureError as e:
        pytest.skip(f"the provider does not work here: {e}")
    yield service
    asyncio.run(service.__aexit__())


def test_it_enforces_what_it_claims_and_knows_what_it_does_not(sandbox: ProbedSandbox) -> None:
    """By measurement; everything else of an ordinary process is absent."""
    enforced = {axis for axis, level in sandbox.guarantees.items() if level is Guarantee.ENFORCED}
    assert enforced >= CLAIMS
    assert not {"filesystem", "network", "disk", "syscalls"} & enforced
    with pytest.raises(
        UsageError, match="processes does not enforce what is needed.*\n  filesystem: absent"
    ):
        sandbox.require(["filesystem"])


@pytest.mark.more
def test_it_holds_the_attacks_that_it_claims_to_hold(sandbox: ProbedSandbox) -> None:
    """Each has a safe status, leaves no process, and the next honest program works."""
    assert len(HELD) >= 20

    async def outcome(number: int) -> tuple[ProgramResult, ProgramResult]:
        attack = HELD[number]
        limits = LIMITS if "timeout" in attack.statuses.split() else PATIENT
        code = (PRELUDE + attack.code).replace("$PID", "999999999").encode()
        argv = ["python3", "-I", "attack.py", MARK]
        return await sandbox.run({"attack.py": code}, argv, limits=limits), await ran(NEXT)

    async def ran(program: Program) -> ProgramResult:
        return await sandbox.run(program.files, program.argv, limits=program.limits)

    async def outcomes() -> list[tuple[ProgramResult, ProgramResult]]:
        return await asyncio.gather(*map(outcome, range(len(HELD))))

    for attack, (result, following) in zip(HELD, asyncio.run(outcomes()), strict=True):
        assert result.status in attack.statuses.split(), (attack.name, result)
        assert b"BREACH" not in result.stdout, (attack.name, result.stdout)
        assert following.status == "ok", (attack.name, following)
        assert following.stdout == b"42\n", (attack.name, following)
    await_nothing(lambda: processes_with(MARK.encode()), 1.0)


def test_it_has_conversations_and_sessions(sandbox: ProbedSandbox) -> None:
    """Both come with the base class."""

    async def work() -> tuple[bytes, bytes, str]:
        async with sandbox.start({}, ["cat"]) as program:
            await program.write(b"line\n")
            line = await program.read_line(seconds=10)
        async with sandbox.session({"a/b.txt": b"text"}) as session:
            await session.run(["sh", "-c", "sleep 3600 & cat a/b.txt > c.txt"])
            outcome = await session.python().execute("6 * 7")
            return line, await session.read("c.txt"), outcome.stdout

    assert asyncio.run(work()) == (b"line\n", b"text", "42\n")
