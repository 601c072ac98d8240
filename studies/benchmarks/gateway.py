"""Rollouts per second through the gateway, against the same episodes without it, with engines that
answer at once.

*remote*: the environment takes its turns itself, of the engine `openai`, from a mock server in a
process of its own. *gateway*: an agent on bare aiohttp asks the gateway, and the same engine
answers. *tokens* and *gateway, tokens* are the same with a scripted engine in the process and a
full record of tokens. *agent*: the agent alone, against the mock. Its CPU time is that of a program
beside the trainer, so shares are given without it, too. One process does all but the mock.

    python -m studies.benchmarks.gateway            three minutes
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from .common import arguments, spread, table, write
from .episodes import served

CONCURRENCY = 512
TURNS = {"one turn": 1, "five turns": 5}
EPISODES = {"one turn": 2048, "five turns": 512}
REPLY = "I add the two numbers of the question, 42."


class Side:
    """The environments, and the engines that answer at once."""

    def __init__(self) -> None:
        import aiohttp

        from quintain import Agent, Environment, Limits, Rollout, Task, need, reward
        from quintain_gateway import Gateway

        @reward
        def right(rollout: Rollout) -> float:
            return float(rollout.result)

        class Direct(Environment[Task, float]):
            reward = right
            limits = Limits(turns=5)
            turns: int = 1

            def tasks(self, split: str) -> Iterator[Task]:
                return (Task(prompt=f"What is {i} + {42 - i}?", answer="42") for i in range(64))

            async def rollout(self, task: Task, agent: Agent) -> float:
                agent.user(task.prompt)
                for _ in range(self.turns):
                    turn = await agent.turn()
                    agent.user("Are you sure?")
                return float("42" in turn.reply)

        class Outside(Direct):
            gateway: Gateway = need()
            http: Any = None

            async def rollout(self, task: Task, agent: Agent) -> float:
                async with self.gateway.endpoint(agent) as endpoint:
                    return await converse(
                        self.http, endpoint.base_url, endpoint.api_key, str(task.prompt), self.turns
                    )

        async def converse(
            http: aiohttp.ClientSession, url: str, key: str, prompt: str, turns: int
        ) -> float:
            head = {"Authorization": f"Bearer {key}"}
            messages: list[Any] = [{"role": "user", "content": prompt}]
            for _ in range(turns):
                body = {"model": "m", "messages": messages}
                async with http.post(f"{url}/chat/completions", json=body, headers=head) as answer:
                    reply = json.loads(await answer.read())["choices"][0]["message"]
                messages = [*messages, reply, {"role": "user", "content": "Are you sure?"}]
            return float("42" in reply["content"])

        self.direct, self.outside, self.gateway, self.converse = Direct, Outside, Gateway, converse

    async def rates(self, case: str, episodes: int) -> dict[str, float]:
        """Rollouts per second of wall time, and CPU milliseconds per rollout, of each way."""
        import aiohttp

        from quintain_authoring import ScriptedEngine
        from quintain_engines.openai import OpenAIEngine

        turns, figures = TURNS[case], {}
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            served() as url,
            OpenAIEngine(base_url=url, model="m") as remote,
            self.gateway() as gateway,
            aiohttp.ClientSession(connector=connector) as http,
        ):
            direct = self.direct(turns=turns)
            outside = self.outside(turns=turns, gateway=gateway, http=http)
            scripted = ScriptedEngine(replies=REPLY)
            agents = asyncio.Semaphore(CONCURRENCY)

            async def alone() -> None:
                async with agents:
                    await self.converse(http, url, "", "What is 1 + 41?", turns)

            ways = {
                "remote": (direct, remote),
                "gateway": (outside, remote),
                "tokens": (direct, scripted),
                "gateway, tokens": (outside, scripted),
            }
            for warm in (True, False):  # the first round opens the connections
                for name, (environment, engine) in ways.items():
                    async with timed(name, figures, episodes):
                        await play(
                            environment, engine, min(episodes, CONCURRENCY) if warm else episodes
                        )
                async with timed("agent", figures, episodes):
                    await asyncio.gather(*(alone() for _ in range(episodes)))
        return figures


async def play(environment: Any, engine: Any, episodes: int) -> None:
    """Run and score *episodes*, `CONCURRENCY` at once."""
    from quintain import Sampling
    from quintain.evaluation.evaluation import evaluate

    tasks = list(environment.tasks("train"))
    done = await evaluate(
        environment,
        engine,
        tasks=[tasks[i % 64] for i in range(episodes)],
        sampling=Sampling(max_tokens=64, seed=1),
        concurrency=CONCURRENCY,
    )
    assert not done.failed
    assert all(r.outcome is not None and r.outcome.total == 1 for r in done.rollouts)


@contextlib.asynccontextmanager
async def timed(name: str, figures: dict[str, float], episodes: int) -> AsyncIterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    figures[name] = episodes / (time.perf_counter() - wall)
    figures[f"{name}, CPU ms"] = 1000 * (time.process_time() - cpu) / episodes


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 5)
    side, rows, figures = Side(), [], {}
    for case, count in EPISODES.items():
        measured_rounds = [
            asyncio.run(side.rates(case, max(8, count // (32 if args.quick else 1))))
            for _ in range(rounds)
        ]
        figures[case] = {key: spread(f[key] for f in measured_rounds) for key in measured_rounds[0]}
        for through, direct in (("gateway", "remote"), ("gateway, tokens", "tokens")):
            cpu = f"{direct}, CPU ms"
            shares = {
                "share": [f[through] / f[direct] for f in measured_rounds],
                "CPU share": [f[cpu] / f[f"{through}, CPU ms"] for f in measured_rounds],
                "CPU share without the agent": [
                    f[cpu] / (f[f"{through}, CPU ms"] - f["agent, CPU ms"]) for f in measured_rounds
                ],
            }
            figures[case] |= {
                f"{through}, {name}": spread(values) for name, values in shares.items()
            }
            medians = {
                name: f"{figures[case][f'{through}, {name}']['median']:.0%}" for name in shares
            }
            rates = [f"{figures[case][name]['median']:,.0f}" for name in (direct, through)]
            times = [
                f"{figures[case][f'{name}, CPU ms']['median']:.2f}"
                for name in (direct, through, "agent")
            ]
            rows.append((case, through, *rates, *times, *medians.values()))
    head = (
        "case",
        "way",
        "directly /s",
        "gateway /s",
        "CPU ms",
        "gateway",
        "agent",
        "share",
        "CPU",
        "without agent",
    )
    print(table(head, rows))
    write(
        "gateway", figures, quick=args.quick, about={"rounds": rounds, "concurrency": CONCURRENCY}
    )


if __name__ == "__main__":
    main()
