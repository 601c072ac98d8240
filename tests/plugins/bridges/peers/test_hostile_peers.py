"""A library whose process misbehaves: each line that is no step of the protocol is a typed failure
of the infrastructure, and none is a score.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_bridges.peers import Peer, process

PROGRAM = """\
#!/bin/sh
# takes the place of an interpreter: the last word is the mode
for mode; do :; done
if [ "$mode" = tasks ]; then cat '{tasks}'; exit; fi
read -r start
cat '{lines}'
{then}
"""
TASKS = [{"prompt": "1 + 1?", "answer": "2"}]


def peer(folder: Path, lines: str | bytes, tasks: str = "", then: str = "sleep 600") -> Peer:
    """A peer whose process says *lines* once it was told to begin."""
    program = folder / "python"
    files = {"tasks": folder / "tasks", "lines": folder / "lines"}
    files["tasks"].write_text(tasks or json.dumps(TASKS))
    files["lines"].write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    program.write_text(PROGRAM.format(then=then, **files))
    program.chmod(0o755)
    return Peer(kind="verifiers", python=str(program), target="x", seconds=1.0)


def first_step(peer: Peer) -> Any:
    async def run() -> Any:
        async with peer, asyncio.timeout(20), peer.episode(0) as episode:
            return await episode.next()

    return asyncio.run(run())


def step(**fields: Any) -> str:
    return json.dumps({"id": 0, **fields}) + "\n"


def test_an_honest_process_is_understood(tmp_path: Path) -> None:
    """Answers to other episodes are no failure."""
    ask = [{"role": "user", "content": "1 + 1?"}]
    other = json.dumps({"id": 7, "done": {"value": 1.0}}) + "\n"
    assert first_step(peer(tmp_path, other + step(ask=ask))) == {"ask": ask}
    done = {"value": 1.0, "reason": "", "parts": {}}
    assert first_step(peer(tmp_path, step(done={"value": 1}))) == {"done": done}


HOSTILE = {
    "no_json": "<html>\n",
    "no_object": "[1]\n",
    "number": "5\n",
    "null": "null\n",
    "no_id": '{"done": {"value": 1}}\n',
    "id_is_a_list": '{"id": [0], "done": {"value": 1}}\n',
    "deep": "[" * 100_000 + "\n",
    "no_utf8": b"\xff\xfe\n",
    "zeros": b"\0" * 1000 + b"\n",
    "half_a_line": '{"id": 0, "done"',
    "nothing": "",
    "no_step": step(),
    "score_is_a_text": step(done={"value": "1.0"}),
    "score_is_true": step(done={"value": True}),
    "score_is_nan": step(done={"value": float("nan")}),
    "score_is_infinite": step(done={"value": float("inf")}),
    "no_score": step(done={}),
    "score_is_a_list": step(done=[1.0]),
    "part_is_a_text": step(done={"value": 1.0, "parts": {"a": "b"}}),
    "more_than_a_score": step(done={"value": 1.0, "bonus": 2.0}),
    "asks_a_number": step(ask=5),
    "asks_in_an_unknown_role": step(ask=[{"role": "root", "content": "x"}]),
    "asks_without_text": step(ask=[{"role": "user", "content": None}]),
    "asks_no_message": step(ask=["hello"]),
    "lost": step(error="gone", lost=True),
}


@pytest.mark.keeps("no_json", "no_id", "half_a_line", "score_is_nan", "asks_without_text")
@pytest.mark.parametrize("how", HOSTILE)
def test_what_is_no_step_is_infrastructure(how: str, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError) as caught:
        first_step(peer(tmp_path, HOSTILE[how]))
    assert len(str(caught.value)) < 2000


def test_a_line_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LARGEST", 100_000)
    endless = peer(tmp_path, "", then="exec cat /dev/zero")
    with pytest.raises(InfrastructureError, match="its process wrote what cannot be read"):
        first_step(endless)


def test_a_process_that_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="its process ended with 7"):
        first_step(peer(tmp_path, "", then="exit 7"))


def test_a_task_that_is_not_played_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="peer: verifiers: it has tools"):
        first_step(peer(tmp_path, step(error="it has tools", refused=True)))


@pytest.mark.parametrize("tasks", [" ", "5", "[5]", '[{"prompt": 5}]', "[{}]", "[" * 100_000])
def test_a_list_that_is_none_is_named(tasks: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="peer: verifiers lists no tasks"):
        peer(tmp_path, "", tasks=tasks).tasks()
