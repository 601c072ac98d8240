"""Simulated users of a server that learns from them: delayed and noisy ratings, kills of the server,
one user who rates the opposite of what is right.

The model, the server, the rounds and the guard are the product's own processes. Users ask sums of the
environment `arithmetic` and know the right answer.

    python -m studies.benchmarks.traffic MODEL [--share 1] [--no-guard] [--no-kills]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from quintain import Rollout, Turn
from quintain_env_math.arithmetic import Arithmetic

REQUESTS, USERS, ROUNDS, RATED, NOISE, DELAY = 2000, 20, 4, 0.2, 0.1, 100.0
"""Users are the honest ones. Ratings come *DELAY* requests later on average."""
POISON_REQUESTS, POISON_RATINGS = 0.15, 0.5
"""Shares of the poisoned user in requests and in ratings."""
FLIGHT = 32
LEVELS = "levels=[1,2,3]"
ENVIRONMENT = {"levels": (1, 2, 3), "reworded": 0.6}
GUARD = ["--guard", "arithmetic", "--guard-arg", LEVELS, "--guard-arg", "reworded=0.6"]
GUARD += ["--guard-tasks", "200"]
QUINTAIN = [sys.executable, "-m", "quintain"]


class Server:
    """`quintain serve` as a process, which is killed and started again."""

    def __init__(self, model: str, folder: Path) -> None:
        self._words = [*QUINTAIN, "serve", model, "--port", "0", "--record", str(folder)]
        self._words += ["--follow", "--temperature", "0.7", "--max-tokens", "48"]

    def start(self) -> str:
        """Start it and return its address."""
        self._process = subprocess.Popen(
            self._words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"serving .* at (\S+)", line):
                return found[1]
        raise RuntimeError(f"the server ended with {self._process.wait()}")

    def kill(self) -> None:
        """Kill it, as a machine that fails does."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Users:
    """Their requests, what they were answered, and the ratings that they still owe."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._environment = Arithmetic(**ENVIRONMENT)
        self.tasks = [*islice(self._environment.tasks("train"), REQUESTS)]
        self.due: list[tuple[float, str, dict[str, Any]]] = []
        self.answered: list[str] = []
        self.confirmed: dict[str, float] = {}
        self.right: Counter[str] = Counter()
        self.failed = 0

    async def ask(self, http: aiohttp.ClientSession, url: str, number: int) -> None:
        """Send one request, and decide whether and when its answer is rated."""
        rng, task = self._rng, self.tasks[number]
        poisoned = rng.random() < POISON_REQUESTS
        name = "poison" if poisoned else f"user-{rng.randrange(USERS)}"
        rates = rng.random() < (
            RATED * POISON_RATINGS / POISON_REQUESTS
            if poisoned
            else RATED * (1 - POISON_RATINGS) / (1 - POISON_REQUESTS)
        )
        delay, flips = rng.expovariate(1 / DELAY), rng.random() < NOISE
        body = {"messages": [{"role": "user", "content": task.prompt}]}
        head = {"Authorization": f"Bearer {name}"}
        try:
            async with http.post(f"{url}/chat/completions", json=body, headers=head) as answer:
                got = await answer.json()
        except (aiohttp.ClientError, OSError):
            self.failed += 1  # the server was killed
            return
        text = got["choices"][0]["message"]["content"]
        turn = Turn(text=text, reply=text)
        rollout = Rollout(task=task, turns=(turn,))
        right = (await asyncio.to_thread(self._environment.reward.score, rollout)).total
        self.answered.append(got["id"])
        self.right[f"quarter {number * ROUNDS // REQUESTS + 1}"] += int(right)
        if rates:
            score = 1 - right if poisoned or flips else right
            self.due.append((number + delay, name, {"response_id": got["id"], "score": score}))

    async def rate(self, http: aiohttp.ClientSession, url: str, now: float) -> None:
        """Send the ratings that are due; one that is not confirmed is sent again later."""
        ready = [entry for entry in self.due if entry[0] <= now]
        self.due = [entry for entry in self.due if entry[0] > now]
        for when, name, body in ready:
            head = {"Authorization": f"Bearer {name}"}
            try:
                async with http.post(f"{url}/feedback", json=body, headers=head) as answer:
                    if answer.status == 200:
                        self.confirmed[body["response_id"]] = body["score"]
                    else:
                        raise RuntimeError(await answer.text())
            except (aiohttp.ClientError, OSError):
                self.due.append((when, name, body))


async def quarter(
    users: Users, server: Server, url: str, numbers: Sequence[int], kills: bool
) -> str:
    """Play the requests *numbers*, perhaps with a kill of the server in their middle; return the address
    of the server that runs at the end.
    """
    middle = numbers[len(numbers) // 2]
    async with aiohttp.ClientSession() as http:
        for begin in range(numbers[0], numbers[-1] + 1, FLIGHT):
            part = [n for n in range(begin, begin + FLIGHT) if n <= numbers[-1]]
            asked = asyncio.gather(*(users.ask(http, url, n) for n in part))
            if kills and middle in part:
                await asyncio.sleep(0.05)  # some requests are in flight
                server.kill()
                await asked
                url = await asyncio.to_thread(server.start)
            await asked
            await users.rate(http, url, part[-1])
    return url


def command(*words: str) -> dict[str, Any]:
    """Run `quintain` and return the object that it prints."""
    done = subprocess.run(
        [*QUINTAIN, *words, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"quintain {words[0]}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def accuracy(model: str) -> float:
    """Return the greedy accuracy on the test split."""
    words = ["eval", "arithmetic", "--model", model, "--max-tokens", "48"]
    arguments = ["--arg", LEVELS, "--arg", "reworded=0.6", "--arg", "size=400"]
    return float(command(*words, *arguments)["pass@1"])


def simulate(
    model: str, share: float, lr: float, seed: int, *, guarded: bool, kills: bool
) -> Mapping[str, Any]:
    """Play all requests with a round of training after each quarter; return the figures."""
    folder = Path(tempfile.mkdtemp(prefix="quintain-traffic-"))
    began, users, server = time.monotonic(), Users(seed), Server(model, folder / "record")
    rounds, record = [], str(folder / "record")
    size = REQUESTS // ROUNDS
    try:
        url = server.start()
        for number in range(ROUNDS):
            numbers = range(number * size, (number + 1) * size)
            url = asyncio.run(quarter(users, server, url, numbers, kills))
            words = ["traffic", record, "--model", model]
            words += GUARD if guarded else ["--no-guard"]
            words += ["--share", str(share), "--lr", str(lr), "--max-tokens", "48"]
            rounds.append(command(*words))
        server.kill()
        lines = (folder / "record" / "responses.jsonl").read_text().splitlines()
        written = {json.loads(line)["id"] for line in lines}
        ratings = (folder / "record" / "feedback.jsonl").read_text().splitlines()
        rated = {r["id"]: r["score"] for r in map(json.loads, ratings)}
        names = "decision rows left_out reward_before reward_after mean_score serve".split()
        return {
            "requests": REQUESTS,
            "failed by kills": users.failed,
            "answers lost": len(set(users.answered) - written),
            "ratings confirmed": len(users.confirmed),
            "ratings lost": sum(rated.get(k) != v for k, v in users.confirmed.items()),
            "right of 500": dict(users.right),
            "rounds": [{n: r.get(n) for n in names} for r in rounds],
            "test before": accuracy(model),
            "test after": accuracy(rounds[-1].get("model") or model),
            "share": share,
            "guard": guarded,
            "kills": ROUNDS * kills,
            "lr": lr,
            "seed": seed,
            "seconds": round(time.monotonic() - began),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of the default model for arithmetic")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--no-guard", action="store_true")
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    figures = simulate(
        chosen.model,
        chosen.share,
        chosen.lr,
        chosen.seed,
        guarded=not chosen.no_guard,
        kills=not chosen.no_kills,
    )
    print(json.dumps(figures, indent=1))
