"""The trainer's side of the relay against a box whose relay is hostile: real boxes, with other code
in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from quintain import Sampling
from quintain.errors import InfrastructureError
from quintain_authoring import ScriptedEngine
from quintain_env_agent import relay
from quintain_env_agent.processes import Ended
from quintain_gateway import Gateway
from quintain_gateway.engine_policy import EnginePolicy
from quintain_sandbox import ProbedSandbox, ProgramLimits, RunningProgram

from ...plugins.sandbox.service import await_nothing, left_behind, started

LIMITS = ProgramLimits(seconds=60, cpu_seconds=60, memory=512 << 20)
KEEP, BODY = 1000, 1 << 20
HEAD = """
import base64, json, os, sys, time
config = json.loads(sys.stdin.readline())
KEY = config["variables"]["OPENAI_API_KEY"]
def send(line):
    view = memoryview(line if isinstance(line, bytes) else line.encode())
    while view:
        view = view[os.write(1, view):]
def frame(do, **fields):
    send(json.dumps({"do": do, **fields}) + "\\n")
def ask(id, key=KEY, body=b"", path="/v1/chat/completions", method="POST", end=True):
    frame("open", id=id, method=method, path=path, type="application/json", authorization="Bearer " + key)
    for i in range(0, len(body), 49152):
        data(id, body[i:i + 49152])
    if end:
        frame("end", id=id)
def data(id, piece):
    frame("data", id=id, data=base64.b64encode(piece).decode())
def reply():
    while True:
        frame = json.loads(sys.stdin.readline())
        if "taken" not in frame:
            return frame
def chat(text="hi", **more):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()
send('{"do": "ready"}\\n')
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProbedSandbox]:
    yield from started("bubblewrap", slots=4)


@pytest.fixture(autouse=True)
def nothing_left(sandbox: ProbedSandbox) -> Iterator[None]:
    yield
    await_nothing(lambda: left_behind(None), 5.0)


def run(
    sandbox: ProbedSandbox,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    head: str = HEAD,
    replies: Any = "132",
) -> tuple[Ended, int]:
    """What comes of a relay with *code*, and the turns that it got out of the policy. No task of it
    is left.
    """
    source = (head + code).encode()
    monkeypatch.setattr(relay, "SOURCE", source)
    monkeypatch.setattr(relay, "RELAY", (*relay.RELAY[:3], relay.boot(len(source))))

    async def ran() -> tuple[Ended, int]:
        policy = EnginePolicy(ScriptedEngine(replies=replies), Sampling(seed=1))
        async with Gateway() as gateway, gateway.serve(policy) as endpoint:
            tasks = asyncio.all_tasks()
            try:
                ended = await relay.run(
                    sandbox, endpoint, ["true"], b"", {}, files={}, limits=LIMITS, most=KEEP,
                    most_body=BODY,
                    result_file="x",
                )  # fmt: skip
            finally:
                assert asyncio.all_tasks() == tasks
                assert not endpoint.busy
            return ended, endpoint.turns

    return asyncio.run(ran())


def test_the_frames_of_this_file_are_those_of_the_relay(
    sandbox: ProbedSandbox, monkeypatch: Any
) -> None:
    """The helpers below speak the protocol: else every refusal would pass for the right one."""
    code = """
ask(1, body=chat())
found = [reply()]
frame("done", id=1)
ask(2, body=chat(stream=True, metadata={"x": "x" * 100_000}))
while not found[-1]["end"]:
    found.append(reply())
while True:
    found.append(reply())
    if found[-1]["end"]: break
frame("done", id=2)
ask(3, key="wrong", body=chat()); found.append(reply()); frame("done", id=3)
ask(4, path="/etc/passwd"); found.append(reply()); frame("done", id=4)
ask(5, path="/v1/models", method="GET"); found.append(reply()); frame("done", id=5)
for name in ("stdout", "stderr", "file"):
    frame("output", stream=name, data=base64.b64encode(name.encode()).decode())
statuses = json.dumps([f.get("status", 0) for f in found])
frame("output", stream="stdout", data=base64.b64encode(statuses.encode()).decode())
frame("exited", status=7)
time.sleep(60)
"""
    ended, turns = run(sandbox, code, monkeypatch)
    assert ended.status == 7
    assert ended.stderr == "stderr"
    assert ended.file == "file"
    assert turns == 2
    statuses = [s for s in json.loads(ended.stdout.removeprefix("stdout")) if s]
    assert statuses == [200, 200, 401, 404, 200]


BREAKS = {
    "noise": ("send('noise\\n')", "Invalid JSON"),
    "bytes": ("send(b'\\xff\\xfe\\x00\\n')", "Invalid JSON"),
    "a list": ("send('[]\\n')", "should be an object"),
    "deep": ("send('[' * 100_000 + '\\n')", "Invalid JSON|recursion"),
    "unknown": ("frame('run', argv=['sh'])", "does not match any of the expected tags"),
    "refused late": ("frame('refused', what='program', reason='x')", "expected tags"),
    "a further field": ("frame('end', id=1, x=1)", "Extra inputs"),
    "a number as text": ("frame('end', id='1')", "valid integer"),
    "a number that is none": ("send('{\"do\": \"end\", \"id\": NaN}\\n')", "id"),
    "negative": ("ask(-1)", "greater than or equal to 1"),
    "end of nothing": ("frame('end', id=1)", "'end' of request 1, which is not open"),
    "data of nothing": ("data(1, b'x')", "'data' of request 1"),
    "done twice": ("ask(1, end=False); frame('done', id=1); frame('done', id=1)",
    "'done' of request 1"),
    "a number again": ("ask(1); frame('done', id=1); ask(1)", "request 1 after 1"),
    "data after the end": ("ask(1); data(1, b'x')", "'data' of request 1"),
    "end twice": ("ask(1); frame('end', id=1)", "'end' of request 1"),
    "too many": ("for i in range(1, 300): ask(i, end=False)",
    "request 257 after 256, with 256 open"),
    "no data": ("ask(1, end=False); data(1, b'')", "at least 1 byte"),
    "much data": ("ask(1, end=False); data(1, bytes(49153))", "at most 49152 bytes"),
    "no base64": ("ask(1, end=False); frame('data', id=1, data='?')", "base64|padded"),
    "a long path": ("ask(1, path='/' + 'x' * 3000)", "at most 2048 characters"),
    "a long line": ("send('x' * (1 << 18)); time.sleep(60)", "131072"),
    "more output than is kept": ("frame('output', stream='stdout', data='eHh4' * 400)",
    "longer than the 1000 bytes"),
    "an odd status": ("frame('exited', status=999)", "less than or equal to 255"),
    "output ahead": ("sys.stdout.buffer.write(bytes(50 << 20)); time.sleep(60)",
    "ahead of what was read|131072"),
    "an end": ("sys.exit(0)", "its relay was killed"),
    "a half line": ("send('{\"do\": \"exi'); sys.exit(0)", "Invalid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_invalid_messages_end_the_program(
    name: str, sandbox: ProbedSandbox, monkeypatch: Any
) -> None:
    code, message = BREAKS[name]
    with pytest.raises(relay.Stopped, match=message):
        run(sandbox, code, monkeypatch)


@pytest.mark.parametrize(
    "head, message",
    [
        ("import sys; sys.exit('nothing here')", "nothing here"),
        ("print('hello')", "python3 of 3.9"),
        ('print(\'{"do": "refused", "what": "loopback", "reason": "no device"}\')', "no device"),
        ("raise SystemExit(3)", "status failed"),
    ],
)
def test_a_relay_that_does_not_start_is_a_failure_of_the_sandbox(
    head: str, message: str, sandbox: ProbedSandbox, monkeypatch: Any
) -> None:
    with pytest.raises(InfrastructureError, match=message):
        run(sandbox, "", monkeypatch, head=head)


def test_bodies_are_bounded_alone_and_together(sandbox: ProbedSandbox, monkeypatch: Any) -> None:
    """One that is too large gets 413, one for which there is no room 429; when others are done
    there is room again.
    """
    code = """
piece = bytes(49152)
def fill(id, size):
    ask(id, end=False)
    for i in range(0, size, len(piece)):
        data(id, piece[:size - i])
found = []
fill(1, (1 << 20) + 1); frame("end", id=1); found.append(reply()["status"]); frame("done", id=1)
fill(2, 1 << 20)
fill(3, 1 << 20)
fill(4, 1); frame("end", id=4); found.append(reply()["status"]); frame("done", id=4)
frame("done", id=2)
ask(5, body=chat()); found.append(reply()["status"]); frame("done", id=5)
frame("output", stream="stdout", data=base64.b64encode(json.dumps(found).encode()).decode())
frame("exited", status=0)
time.sleep(60)
"""
    ended, turns = run(sandbox, code, monkeypatch)
    assert json.loads(ended.stdout) == [413, 429, 200]
    assert turns == 1


def test_what_the_relay_does_not_read_waits_bounded(
    sandbox: ProbedSandbox, monkeypatch: Any
) -> None:
    """Replies of 24 MB for a relay that reads nothing: the trainer holds a bounded part ready, and
    cancels the rest.
    """
    most = 0

    class Watched(RunningProgram):
        async def write(self, data: bytes) -> None:
            nonlocal most
            await super().write(data)
            most = max(most, self._unsent)

    monkeypatch.setattr("quintain_sandbox.running.RunningProgram", Watched)
    code = """
for id in range(1, 9):
    ask(id, body=chat(n=4, logprobs=True))
time.sleep(4)
frame("exited", status=0)
time.sleep(60)
"""
    ended, turns = run(sandbox, code, monkeypatch, replies="x" * 3000)
    assert ended.status == 0
    assert turns == 32
    assert relay.UNSENT < most < relay.UNSENT + 8 * 2 * relay.PIECE + len(relay.SOURCE)


def test_a_cancelled_run_leaves_nothing(sandbox: ProbedSandbox, monkeypatch: Any) -> None:
    """Requests that are being sampled are cancelled with it."""
    waits = []
    all_wait = asyncio.Event()

    @contextlib.asynccontextmanager
    async def endpoint() -> AsyncIterator[Any]:
        class Never(ScriptedEngine):
            async def sample(self, ids: Any, sampling: Sampling) -> Any:
                waits.append(1)
                if len(waits) == 8:
                    all_wait.set()
                await asyncio.Event().wait()

        policy = EnginePolicy(Never(replies="x"), Sampling(seed=1))
        async with Gateway() as gateway, gateway.serve(policy) as own:
            yield own

    source = (HEAD + "for i in range(1, 9): ask(i, body=chat(str(i)))\ntime.sleep(60)").encode()
    monkeypatch.setattr(relay, "SOURCE", source)
    monkeypatch.setattr(relay, "RELAY", (*relay.RELAY[:3], relay.boot(len(source))))

    async def ran() -> None:
        async with endpoint() as own:
            tasks = asyncio.all_tasks()
            task = asyncio.create_task(
                relay.run(
                    sandbox,
                    own,
                    ["true"],
                    b"",
                    {},
                    files={},
                    limits=LIMITS,
                    most=KEEP,
                    most_body=BODY,
                )
            )
            await all_wait.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert asyncio.all_tasks() == tasks
            assert not own.busy

    asyncio.run(ran())
