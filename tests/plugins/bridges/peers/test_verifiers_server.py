"""Episodes on the environment server of verifiers, which runs in an interpreter that has it.

QUINTAIN_VERIFIERS_PYTHON names the interpreter. It needs `uv`, which verifiers starts programs
with.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quintain import Limits, Rollout
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ScriptedEngine
from quintain_bridges.peers import Peer, PeerTasks, VerifiersServer
from quintain_gateway import Gateway

HERE = Path(__file__).parent
LOCAL = {"agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}
PARTS = {"exact": 1.0, "short": 1.0, "letters": 1.0}
SERVE = f"""
from verifiers.v1.serve import serve_env
class Printed:
    put = staticmethod(lambda address: print(address, flush=True))
if __name__ == "__main__":
    env = {{"taskset": {{"id": "served"}}, **{LOCAL}}}
    serve_env(max_workers=1, address="tcp://127.0.0.1:0", address_queue=Printed, config_data=env)
"""


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    found = os.environ.get("QUINTAIN_VERIFIERS_PYTHON")
    if not found:
        pytest.skip("QUINTAIN_VERIFIERS_PYTHON names no interpreter with verifiers 0.4")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    return found


class Short(VerifiersServer):
    """One token, and the episode is at its limit."""

    limits = Limits(turns=5, tokens=1)


def peer(python: str, **args: Any) -> Peer:
    return Peer(kind="verifiers_server", python=python, target="served", args={**LOCAL, **args})


async def played(
    environment: VerifiersServer, script: Any, copies: int = 1
) -> list[Rollout[Any, Any]]:
    """Play the first task of the test split, *copies* times at once."""
    task = next(iter(environment.tasks("test")))
    requests = [
        RolloutRequest(environment=environment, task=task, group_size=1, index=n)
        for n in range(copies)
    ]
    context = RolloutContext(engine=ScriptedEngine(replies=script), retries=0)
    return [group.rollouts[0] for group in await run_groups(requests, context)]


@pytest.mark.slow
def test_the_server_of_verifiers_plays_and_scores(python: str) -> None:
    """Its harness asks, the record has the tokens, and the weighted rewards arrive; failures of it
    are no zero, and it is started again when it ended.
    """

    async def run() -> None:
        async with Gateway() as gateway, peer(python) as service:
            environment = VerifiersServer(peer=service, gateway=gateway)
            counts = [len(list(environment.tasks(s))) for s in ("train", "dev", "test")]
            assert counts == [16, 2, 2]
            for right in await played(environment, "2", copies=3):
                assert [m.content for m in right.messages] == ["Digits.", "1 + 1?", "2"]
                assert right.outcome.total == 1.5
                assert right.outcome.reason == "exact 1, short 1"
                parts = {name: right.outcome.parts[f"score_of_peer.{name}"] for name in PARTS}
                assert parts == PARTS
                (transcript,) = right.transcripts.values()
                assert transcript.sampled == 2  # the digit and the end
            (wrong,) = await played(environment, "three")
            assert wrong.outcome.total == 0.0
            (broken,) = await played(environment, "raise")
            assert broken.termination.kind == "environment_error"
            assert "TaskError" in broken.termination.reason
            (dead,) = await played(environment, "die")
            assert dead.termination.kind == "infrastructure_error"
            assert "the server ended with 3" in dead.termination.reason
            (again,) = await played(environment, "2")
            assert again.outcome.total == 1.5
            (limited,) = await played(Short(peer=service, gateway=gateway), "2")
            assert limited.termination.kind == "truncated"

    asyncio.run(run())


TWO_SEATS = {"id": "user-sim", "assistant": LOCAL["agent"], "user": LOCAL["agent"]}
"""An environment of verifiers in which a modeled user converses with the assistant."""


class UserHandler(BaseHTTPRequestHandler):
    """An endpoint that plays the user: asks, and is content with the first answer."""

    said: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).said.append(asked["messages"][-1]["content"])
        text = "1 + 1?" if len(asked["messages"]) < 4 else "###DONE###"
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "user"}
        delta = {"role": "assistant", "content": text}
        choices = [
            {"index": 0, "delta": delta},
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        ]
        events = [f"data: {json.dumps({**chunk, 'choices': [one]})}\n\n" for one in choices]
        data = "".join([*events, "data: [DONE]\n\n"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.slow
def test_the_policy_plays_one_seat(python: str) -> None:
    """Two seats without a client of their own are refused before an episode, and so is one that
    plays twice; where the other seat has a client, the policy is paid for its own.
    """
    both = Peer(kind="verifiers_server", python=python, target="served", args=TWO_SEATS)
    with pytest.raises(UsageError) as refused:
        both.tasks()
    assert "the policy would play assistant, user; expected one seat" in str(refused.value)
    assert "give the others a client of their own" in str(refused.value)

    async def play(args: Mapping[str, Any]) -> Rollout[Any, Any]:
        service = Peer(kind="verifiers_server", python=python, target="served", args=args)
        async with Gateway() as gateway, service:
            (rollout,) = await played(VerifiersServer(peer=service, gateway=gateway), "2")
            return rollout

    twice = asyncio.run(play({**LOCAL, "id": "best-of-n", "n": 2}))
    assert twice.termination.kind == "environment_error"
    assert "seats of the policy: agent, agent; expected one" in twice.termination.reason

    with ThreadingHTTPServer(("127.0.0.1", 0), UserHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        client = {"type": "eval", "base_url": url, "api_key_var": "NO_KEY"}
        apart = asyncio.run(play({**TWO_SEATS, "user": {**LOCAL["agent"], "client": client}}))
        server.shutdown()
    assert [m.content for m in apart.messages] == ["Digits.", "1 + 1?", "2"]
    assert apart.outcome.total == 1.5
    assert apart.outcome.reason == "exact 1, short 1"
    assert UserHandler.said[-1] == "2"


@pytest.mark.slow
def test_a_server_that_runs_is_connected_to(python: str) -> None:
    """Nothing of it is ours; without an answer of it the episode failed."""

    async def run(address: str, seconds: float) -> Rollout[Any, Any]:
        service = Peer(
            kind="verifiers_server",
            python=python,
            target="served",
            args={**LOCAL, "address": address},
            seconds=seconds,
        )
        async with Gateway() as gateway, service:
            environment = VerifiersServer(peer=service, gateway=gateway)
            (rollout,) = await played(environment, "2")
            return rollout

    with running(python) as address:
        assert asyncio.run(run(address, 60.0)).outcome.total == 1.5
    nobody = asyncio.run(run(address, 2.0)).termination
    assert nobody.kind == "infrastructure_error"
    assert "did not become healthy" in nobody.reason


@contextmanager
def running(python: str) -> Iterator[str]:
    """Run a server of verifiers as its own process; its address."""
    with subprocess.Popen([python, "-c", SERVE], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


def test_each_environment_plays_its_own_kinds() -> None:
    server, library = (
        Peer(kind=kind, python=str(Path(os.devnull)), target="x")
        for kind in ("verifiers_server", "verifiers")
    )
    with pytest.raises(UsageError, match="'verifiers_server'; this environment plays inspect"):
        list(PeerTasks(peer=server).tasks("test"))
    with pytest.raises(UsageError, match="'verifiers'; this environment plays verifiers_server"):
        list(VerifiersServer(peer=library, gateway=Gateway()).tasks("test"))
