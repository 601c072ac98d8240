"""A browser as an environment: the policy sees a screenshot of a page in each turn, and clicks.

BrowserGym runs the browser. `Browser` has a page of its own, which shows how a task is made.
`MiniWoB` has the tasks of that benchmark, whose pages are in the package miniwob:

    pip install browsergym-core quintain-vision
    playwright install chromium
    quintain eval examples/pictures/browser.py:Browser --controls --tasks 32
    pip install browsergym-miniwob miniwob
    quintain eval examples/pictures/browser.py:MiniWoB --arg name=click-color --model MODEL
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import playwright.sync_api
from browsergym.core.action.functions import keyboard_type, mouse_click
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.env import BrowserEnv
from browsergym.core.task import AbstractBrowserTask

from quintain import Agent, Environment, Limits, Message, Rollout, Task, control, reward
from quintain.errors import InfrastructureError, UsageError
from quintain_vision import message

WIDTH, HEIGHT = 320, 240
COLOURS = ("red", "green", "blue", "orange")
CLICKS = 2

# No other actions: with `goto` or `mouse_upload_file` a policy would read files of this machine.
ACTIONS = HighLevelActionSet(
    subsets=["custom"], custom_actions=[mouse_click, keyboard_type], strict=True
)
HOW = (
    "Answer with mouse_click(x, y), in pixels from the left and the top, or keyboard_type('text')."
)

# BrowserGym keeps one Playwright in a process, which answers one thread alone.
BROWSERS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="browsers")

PAGE = """
<style>
  body { margin: 0; height: 100vh; display: grid; grid-template: 1fr 1fr / 1fr 1fr; }
  button { margin: 20px; border: 0; border-radius: 12px; }
</style>
<script>
  const wanted = WANTED, orders = ORDERS;
  window.right = 0;
  window.wrong = false;
  function show() {
    document.body.replaceChildren(...orders[window.right].map((colour) => {
      const button = document.createElement("button");
      button.style.background = colour;
      button.onclick = () => {
        if (colour !== wanted[window.right]) window.wrong = true;
        else if (++window.right < wanted.length) show();
      };
      return button;
    }));
  }
</script>
<body onload="show()"></body>
"""


@dataclass(frozen=True, kw_only=True)
class Clicks(Task):
    """Buttons to click, one after the other.

    Attributes:
        wanted: their colours.
        orders: the colours on the page before each click, in the order of reading.
    """

    wanted: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]


class Buttons(AbstractBrowserTask):
    """The page of a task, as BrowserGym has it. It ends with the last right click or a wrong one."""

    def __init__(self, seed: int, task: Clicks) -> None:
        super().__init__(seed)
        self.task = task
        self.viewport, self.slow_mo = {"width": WIDTH, "height": HEIGHT}, 0

    def setup(self, page: playwright.sync_api.Page) -> tuple[str, dict[str, Any]]:
        content = PAGE.replace("WANTED", json.dumps(self.task.wanted))
        page.set_content(content.replace("ORDERS", json.dumps(self.task.orders)))
        return self.task.prompt, {}

    def validate(
        self, page: playwright.sync_api.Page, chat_messages: list[Any]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        right, wrong = page.evaluate("[window.right, window.wrong]")
        done = right == len(self.task.wanted)
        return float(done), done or wrong, "", {}


@reward(range=(0, 1))
def clicked(rollout: Rollout[Clicks, float]) -> float:
    """Return the reward of the last step."""
    return rollout.result


class Browser(Environment[Clicks, float]):
    """Click two buttons, which change their places after the first click."""

    reward, limits = clicked, Limits(turns=4)

    def tasks(self, split: str) -> Iterator[Clicks]:
        for number in range({"train": 1000, "dev": 100, "test": 100}[split]):
            random = Random(f"{split} {number}")
            wanted = tuple(random.sample(COLOURS, CLICKS))
            orders = tuple(tuple(random.sample(COLOURS, len(COLOURS))) for _ in wanted)
            prompt = f"Click the {wanted[0]} button, then the {wanted[1]} one."
            name = f"{split}-{number}"
            yield Clicks(prompt=prompt, id=name, wanted=wanted, orders=orders)

    async def rollout(self, task: Clicks, agent: Agent) -> float:
        return await played(partial(Buttons, task=task), 0, agent)

    @control(scores="max")
    def oracle(self, task: Clicks, messages: Sequence[Message]) -> str:
        """Click the middle of the button that is wanted next."""
        step = sum(m.role == "assistant" for m in messages)
        return click(task.orders[step].index(task.wanted[step]))

    @control()
    def blind_guess(self, task: Clicks, messages: Sequence[Message]) -> str:
        """Click any button: right in one of 16 tasks."""
        return click(Random(f"{task.id} {len(messages)}").randrange(len(COLOURS)))


def click(place: int) -> str:
    """Return the action that clicks the middle of the button at *place*, in the order of reading."""
    x, y = (2 * (place % 2) + 1) * WIDTH // 4, (2 * (place // 2) + 1) * HEIGHT // 4
    return f"mouse_click({x}, {y})"


@dataclass(frozen=True, kw_only=True)
class Seeded(Task):
    """A task of MiniWoB, which is made of its seed."""

    seed: int


class MiniWoB(Environment[Seeded, float]):
    """A task of MiniWoB++, such as ``click-color``. It has no oracle, so no controls."""

    reward, limits = clicked, Limits(turns=10)
    name: str = "click-color"

    def __post_init__(self) -> None:
        miniwob(self.name)

    def tasks(self, split: str) -> Iterator[Seeded]:
        first = {"train": 200, "dev": 0, "test": 100}[split]
        for seed in range(first, first + (1000 if split == "train" else 100)):
            yield Seeded(prompt=f"{self.name} {seed}", seed=seed)

    async def rollout(self, task: Seeded, agent: Agent) -> float:
        return await played(miniwob(self.name), task.seed, agent)


def miniwob(name: str) -> Any:
    """Return what makes the task *name* of a seed; its page is a file of the package miniwob.

    Raises:
        UsageError: there is no task of this name.
    """
    found = {task.subdomain: task for task in import_module("browsergym.miniwob").ALL_MINIWOB_TASKS}
    if name not in found:
        raise UsageError(f"name is {name!r}; expected one of {', '.join(found)}")
    pages = files("miniwob") / "html" / "miniwob"
    return partial(found[name], base_url=f"{Path(str(pages)).as_uri()}/")


async def played(task: Any, seed: int, agent: Agent) -> float:
    """Play an episode of *task*, which makes a task of BrowserGym, and return its last reward."""
    browser = BrowserEnv(
        task,
        action_mapping=ACTIONS.to_python_code,
        # Its own screenshot leaves the page with another size in Chromium 156.
        use_raw_page_output=True,
        pw_context_kwargs={"offline": True},
        pre_observation_delay=0.05,
    )
    earned = 0.0
    try:
        seen, _ = await in_browser(partial(browser.reset, seed=seed))
        agent.user([await screen(browser, f"{seen['goal']} {HOW}")])
        async for turn in agent.turns():
            seen, earned, ended, *_ = await in_browser(partial(browser.step, turn.reply))
            if ended:
                break
            error = seen["last_action_error"][:300]
            agent.user([await screen(browser, error or "The page now:")])
    finally:
        await in_browser(browser.close)
    return earned


async def screen(browser: BrowserEnv, text: str) -> Message:
    """Return a message of the user with a screenshot, and *text* below it."""
    picture = {"type": "image", "image": await in_browser(lambda: browser.page.screenshot())}
    return message("user", [picture, {"type": "text", "text": f"\n{text}"}])


async def in_browser(call: Any) -> Any:
    """Return what *call* returns in the thread of the browsers.

    Raises:
        InfrastructureError: the browser failed.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(BROWSERS, call)
    except playwright.sync_api.Error as e:
        raise InfrastructureError(f"the browser failed: {e}") from e
