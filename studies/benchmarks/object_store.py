"""What it costs to carry a rollout's packed columns from another process to the run: our frames over
TCP, and Ray's object store, both as ``ray.put`` with ``ray.get`` and as the result of an actor.

CPU time is that of sender and receiver, and of Ray's own processes (raylet, control service), in
milliseconds for each rollout. The columns are pickled before the clock starts: both ways need that.

    python -m studies.benchmarks.object_store
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain import Sampled
from quintain_scale.workers.frames import DONE, FrameStream, packed, pickled

from .common import arguments, table, write

TOKENS = (16, 1_000, 32_000)
ROLLOUTS = {16: 8_000, 1_000: 8_000, 32_000: 1_000}
BATCH = 100
STORE = 1_000 * 2**20


def payload(tokens: int) -> bytes:
    """Return the packed columns of a rollout."""
    rng = random.Random(tokens)
    return pickled(
        packed(
            Sampled(
                ids=tuple(rng.randrange(150_000) for _ in range(tokens)),
                logps=tuple(-rng.random() for _ in range(tokens)),
                versions=(3,) * tokens,
                finish="stop",
                stop=1,
            )
        )
    )


async def sends(port: int, tokens: int, count: int) -> None:
    """Send all rollouts to *port*, then the CPU time that it took."""
    data, gone = payload(tokens), asyncio.Event()
    frames = FrameStream(lambda frame: gone.set(), gone.set)
    await asyncio.get_running_loop().create_connection(lambda: frames, "127.0.0.1", port)
    began = time.process_time()
    for number in range(count):
        frames.send(DONE, number, data, [])
        if number % BATCH == BATCH - 1:
            await asyncio.sleep(0.01)  # as rollouts come, so that no buffer holds all
    frames.send(DONE, -1, time.process_time() - began, [])
    await gone.wait()


async def over_tcp(tokens: int, count: int) -> tuple[float, float, float]:
    """Return the CPU seconds of sender, receiver and of none else."""
    loop, over, sizes = asyncio.get_running_loop(), asyncio.Event(), 0
    theirs = 0.0

    def received(frame: tuple[Any, ...]) -> None:
        nonlocal sizes, theirs
        _, number, data, _ = frame
        if number < 0:
            theirs = data
            over.set()
        else:
            sizes += len(data)

    server = await loop.create_server(lambda: FrameStream(received, over.set), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.process_time()
    command = [sys.executable, "-m", __spec__.name, "--sender", *map(str, (port, tokens, count))]
    sender = await asyncio.create_subprocess_exec(*command)
    await over.wait()
    ours = time.process_time() - began
    sender.kill()
    await sender.wait()
    server.close()
    assert sizes == count * len(payload(tokens))
    return theirs, ours, 0.0


class Puts:
    """An actor that has a rollout."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def puts(self, count: int) -> tuple[list[Any], float]:
        """Put *count* rollouts into the store; return the references, and the CPU time so far."""
        import ray

        return [ray.put(self._data) for _ in range(count)], time.process_time()

    def returns(self) -> bytes:
        """Return a rollout."""
        return self._data

    def seconds(self) -> float:
        """Return the CPU time so far."""
        return time.process_time()


def cpu_of_ray() -> float:
    """Return the CPU seconds of Ray's processes of this machine that are neither driver nor actor."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
            if b"raylet/raylet" in command or b"gcs_server" in command:
                fields = (path.parent / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / os.sysconf("SC_CLK_TCK")


def of_ray(ray: Any, tokens: int, count: int, way: str) -> tuple[float, float, float]:
    """Return the CPU seconds of the actor, of this process and of Ray's own."""
    actor = ray.remote(Puts).remote(payload(tokens))
    before, began, own = ray.get(actor.seconds.remote()), time.process_time(), cpu_of_ray()
    for _ in range(count // BATCH):
        if way == "put":
            references, _ = ray.get(actor.puts.remote(BATCH))
        else:
            references = [actor.returns.remote() for _ in range(BATCH)]
        ray.get(references)
    ours, theirs = time.process_time() - began, ray.get(actor.seconds.remote()) - before
    rest = cpu_of_ray() - own
    ray.kill(actor)
    return theirs, ours, rest


def main() -> None:
    if sys.argv[1:2] == ["--sender"]:
        asyncio.run(sends(*map(int, sys.argv[2:])))
        return
    options = arguments(__doc__).parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init("local", include_dashboard=False, object_store_memory=STORE, num_cpus=1)
    ways: dict[str, Callable[[int, int], tuple[float, float, float]]] = {
        "frames over TCP": lambda tokens, count: asyncio.run(over_tcp(tokens, count)),
        "ray.put, ray.get": lambda tokens, count: of_ray(ray, tokens, count, "put"),
        "result of an actor": lambda tokens, count: of_ray(ray, tokens, count, "result"),
    }
    figures: dict[str, dict[str, dict[str, float]]] = {}
    rows = []
    for tokens in TOKENS:
        figures[str(tokens)] = {}
        for way, measure in ways.items():
            count = BATCH if options.quick else ROLLOUTS[tokens]
            parts = [1000 * seconds / count for seconds in measure(tokens, count)]
            one = dict(zip(("sender", "run", "ray"), parts, strict=True)) | {"all": sum(parts)}
            figures[str(tokens)][way] = one
            rows.append([f"{tokens:,}", way, *(f"{ms:.3f}" for ms in one.values())])
    ray.shutdown()
    print(table(["tokens", "way", "sender", "run", "of Ray", "CPU ms together"], rows))
    write("object_store", figures, quick=options.quick, about={"rollouts": ROLLOUTS})


if __name__ == "__main__":
    main()
