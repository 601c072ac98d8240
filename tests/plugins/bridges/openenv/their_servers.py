"""Servers of OpenEnv, for an interpreter that has it: ``python their_servers.py KIND PORT``."""

import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    text: str


class Told(Observation):
    hint: str = ""


class Numbers(Environment):
    """Guess the seed's number, 0 to 9. The server ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._secret, self._state = 0, State()

    def reset(self, seed=0, episode_id=None, **more):
        self._secret = (more.get("index", 0) if "index" in more else seed or 0) % 10
        self._state = State(episode_id=episode_id)
        return Told(hint="Guess a number from 0 to 9.")

    def step(self, action, timeout_s=None, **more):
        self._state.step_count += 1
        if action.text == "crash":
            raise ValueError("the environment broke")
        if action.text == "unscored":
            return Told(hint="?", done=True)
        guess = int(action.text) if action.text.isdecimal() else -1
        hint = "right" if guess == self._secret else "higher" if guess < self._secret else "lower"
        return Told(hint=hint, done=hint == "right", reward=float(hint == "right"))

    @property
    def state(self):
        return self._state


class Listed(Numbers):
    """The same with a list of tasks."""

    def list_splits(self):
        return [{"name": "train", "type": "train"}, {"name": "held-out", "type": "test"}]

    def num_tasks(self, split):
        return {"train": 8, "held-out": 2}[split]

    def list_tasks(self, split):
        return list(range(self.num_tasks(split)))

    def get_task(self, split, index):
        return {"index": index}


class Sums(MCPEnvironment):
    """A tool that adds; the reward is 1 for a sum above 9."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("sums")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **more):
        self._state = State(episode_id=episode_id)
        return Observation(metadata={"status": "ready"})

    def _step_impl(self, action, timeout_s=None, **more):
        return Observation(metadata={"error": "tools only"})

    async def step_async(self, action, timeout_s=None, **more):
        seen = await super().step_async(action, timeout_s=timeout_s, **more)
        if isinstance(seen, CallToolObservation) and isinstance(action, CallToolAction):
            seen.reward = float(sum(action.arguments.values()) > 9)
        return seen

    @property
    def state(self):
        return self._state


APPS = {
    "numbers": lambda: create_app(Numbers, Guess, Told, env_name="numbers", max_concurrent_envs=8),
    "one": lambda: create_app(Numbers, Guess, Told, env_name="one", max_concurrent_envs=1),
    "listed": lambda: create_app(Listed, Guess, Told, env_name="listed", max_concurrent_envs=8),
    "sums": lambda: create_app(
        Sums, CallToolAction, CallToolObservation, env_name="sums", max_concurrent_envs=8
    ),
}

if __name__ == "__main__":
    kind, port = sys.argv[1:]
    uvicorn.run(APPS[kind](), host="127.0.0.1", port=int(port), log_level="warning")
