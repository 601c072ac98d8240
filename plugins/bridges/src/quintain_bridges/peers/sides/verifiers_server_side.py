"""The environment server of verifiers 0.4, to which this process is the client: the server plays
whole episodes, asks the policy at its endpoint, and scores.
"""

import asyncio
import multiprocessing
import queue
from itertools import islice

from side import Lost, main
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve import EnvClient, serve_env
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_taskset, resolve_env_config

NO_KEY = "QUINTAIN_NO_KEY"
"""A variable that is not set: the key of an episode is in a header, as servers read keys from their
own variables.
"""
NOT_OURS = ("InterceptionError", "ProviderError", "SandboxError", "TunnelError")
"""Errors of what an episode runs on."""
ONE_SEAT = (
    "a request has one endpoint, at which the turns of several seats cannot be told apart: give the "
    "others a client of their own"
)


class EnvironmentServer:
    """A server at *address*, or one that is started with the environment *env*.

    Args:
        seconds: that it may be silent.
    """

    def __init__(self, env, address, seconds):
        self._env, self._address, self._seconds = env, address, seconds
        self._starting = asyncio.Lock()
        self._client = self._process = self._watcher = self._gone = None

    async def played(self, data, endpoint):
        """Return the episode of a task, which the policy at *endpoint* plays.

        Raises:
            Lost: there is no server, or it went away.
        """
        async with self._starting:
            if self._client is None:
                await self._connect()
        client, gone = self._client, self._gone
        policy = EvalClientConfig(
            base_url=endpoint["url"],
            api_key_var=NO_KEY,
            headers={"Authorization": f"Bearer {endpoint['key']}", "x-api-key": endpoint["key"]},
        )
        run = asyncio.ensure_future(client.run(policy, "policy", SamplingConfig(), data))
        try:
            await asyncio.wait({run, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not run.done():
                raise Lost(gone.result())
            return run.result()
        finally:
            run.cancel()  # which ends the episode at the server, too

    async def _connect(self):
        address = self._address or await asyncio.to_thread(self._start)
        client = EnvClient(address)
        try:
            await client.wait_for_server_startup(timeout=self._seconds)
        except TimeoutError as e:
            raise Lost(str(e)) from e
        self._client, self._gone = client, asyncio.get_running_loop().create_future()
        self._watcher = asyncio.create_task(self._watch(client, self._gone))

    def _start(self):
        spawn = multiprocessing.get_context("spawn")
        addresses, (ours, theirs) = spawn.Queue(), spawn.Pipe()
        self._process = spawn.Process(
            target=serve_env,
            kwargs={
                "max_workers": 1,
                "address": "tcp://127.0.0.1:0",
                "address_queue": addresses,
                "death_pipe": theirs,
                "config_data": self._env,
            },
        )
        self._process.start()
        theirs.close()
        self._death_pipe = ours  # it ends with this process
        while self._process.is_alive():
            try:
                return addresses.get(timeout=0.5)
            except queue.Empty:
                continue
        raise Lost(f"the server ended with {self._process.exitcode} before it had an address")

    async def _watch(self, client, gone):
        """Ask whether the server is there; else end what waits for it, and forget it."""
        while True:
            await asyncio.sleep(min(1.0, self._seconds))
            if self._process is not None and not self._process.is_alive():
                reason = f"the server ended with {self._process.exitcode}"
                break
            if not await client.health(timeout=self._seconds):
                reason = f"the server did not answer within {self._seconds:g} s"
                break
        self._client = None
        gone.set_result(reason)
        await client.close()


def load(target, settings):
    global server
    env = dict(settings["args"])
    address = env.pop("address", "")
    env["taskset"] = {**env.get("taskset", {}), "id": target}
    resolved = resolve_env_config(env)
    seats = [n for n, agent in agent_config_fields(resolved).items() if agent.client is None]
    if len(seats) > 1 and not address:  # else the settings of the server say who plays
        raise ValueError(f"the policy would play {', '.join(seats)}; expected one seat. {ONE_SEAT}")
    taskset = load_taskset(resolved.taskset)
    server = EnvironmentServer(env, address, settings["seconds"])
    tasks = list(islice(taskset, settings["limit"]))
    shown = [
        {"prompt": t.data.prompt_text, "answer": getattr(t.data, "answer", None)} for t in tasks
    ]
    return [task.data.model_dump(mode="json") for task in tasks], shown


async def play(data, policy):
    return verdict(await server.played(data, policy.endpoint), policy.endpoint["url"])


def verdict(episode, url):
    """Return the reward of the one seat that the policy at *url* plays."""
    if not episode.ok:
        errors = [*episode.errors, *(e for t in episode.traces if not t.ok for e in t.errors)]
        said = f"{errors[-1].type}: {errors[-1].message}" if errors else "it is not complete"
        raise (Lost if errors and errors[-1].type in NOT_OURS else RuntimeError)(said)
    seats = [t for t in episode.traces if t.agent.config.client.base_url == url]
    if others := [t.agent.name for t in seats if not t.agent.trainable]:
        raise RuntimeError(
            f"the policy plays {others[0]}, which is not to be trained: give it a client of its own"
        )
    if len(seats) != 1:
        names = ", ".join(t.agent.name for t in seats) or "none"
        raise RuntimeError(f"seats of the policy: {names}; expected one. {ONE_SEAT}")
    (seat,) = seats
    rewards = seat.rewards
    if not rewards or None in rewards.values():
        return {"value": None, "reason": f"rewards {rewards}"}
    parts = {name: reward.score for name, reward in rewards.items()}
    said = ", ".join(f"{name} {score:g}" for name, score in parts.items())
    parts |= {name: value for name, value in seat.metrics.items() if value is not None}
    return {"value": seat.reward, "reason": said, "parts": parts}


if __name__ == "__main__":
    main(load, play)
