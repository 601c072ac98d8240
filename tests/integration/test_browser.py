"""The example with a browser: what the policy sees is the page, and what it clicks is clicked."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quintain import Message
from quintain.errors import UsageError
from quintain_authoring import ScriptedEngine, run_episode
from quintain_vision import parts, stored

EXAMPLES = Path(__file__).parents[2] / "examples" / "pictures"
CHROMIUM = shutil.which("chromium")
FOUND = importlib.util.find_spec("browsergym") is not None
MINIWOB = importlib.util.find_spec("miniwob") is not None

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not FOUND, reason="pip install browsergym-core browsergym-miniwob"),
    pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium"),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module of the example, with this machine's Chromium where Playwright looks for its own."""
    import playwright

    driver = Path(playwright.__file__).parent / "driver" / "package" / "browsers.json"
    listed = {b["name"]: b for b in json.loads(driver.read_text())["browsers"]}
    place = tmp_path_factory.mktemp("browsers")
    folder = place / f"chromium-{listed['chromium']['revision']}" / "chrome-linux"
    folder.mkdir(parents=True)
    (folder / "chrome").symlink_to(str(CHROMIUM))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(place))
        patch.setenv("QUINTAIN_CACHE", str(place / "cache"))
        patch.syspath_prepend(str(EXAMPLES))
        assert os.environ["PLAYWRIGHT_BROWSERS_PATH"] == str(place)
        yield import_module("browser")


def played(environment: Any, task: Any, script: Any) -> Any:
    rollout = run_episode(environment, task, ScriptedEngine(replies=script))
    assert rollout.outcome is not None, rollout.termination
    return rollout


def middle(message: Message, wanted: Callable[[tuple[int, ...]], bool], top: int = 0) -> str:
    """The action that clicks the middle of the pixels that are *wanted*, below the row *top*."""
    (digest,) = [part["digest"] for part in parts(message.content) if part["type"] == "image"]
    image = stored(digest)
    found = [
        (x, y)
        for y in range(top, image.height)
        for x in range(image.width)
        if wanted(image.getpixel((x, y)))
    ]
    xs, ys = zip(*found, strict=True)
    return f"mouse_click({(min(xs) + max(xs)) // 2}, {(min(ys) + max(ys)) // 2})"


def test_a_policy_that_looks_at_the_screenshots_is_right(example: Any) -> None:
    """It finds the colour in the pixels of each turn; without looking again it fails."""
    environment = example.Browser()
    task = next(t for t in environment.tasks("test") if t.orders[0] != t.orders[1])
    rgb = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "orange": (255, 165, 0)}

    def looks(messages: Sequence[Message]) -> str:
        colour = rgb[task.wanted[sum(m.role == "assistant" for m in messages)]]
        return middle(messages[-1], lambda pixel: pixel == colour)

    assert played(environment, task, looks).outcome.total == 1.0
    assert played(environment, task, lambda m: environment.oracle(task, m)).outcome.total == 1.0
    wrong = played(environment, task, lambda m: example.click(task.orders[0].index(task.wanted[1])))
    assert wrong.outcome.total == 0.0
    assert len(wrong.turns) == 1


def test_other_actions_are_an_error_that_the_policy_reads(example: Any) -> None:
    """No address, no file of this machine, and silence scores 0."""
    environment = example.Browser()
    task = next(iter(environment.tasks("test")))
    said = ["goto('file:///etc/passwd')", "mouse_upload_file(9, 9, '/etc/passwd')", "", "page"]
    rollout = played(environment, task, said)
    assert rollout.outcome.total == 0.0
    errors = [m.content.rpartition("\n")[2] for m in rollout.messages if m.role == "user"][1:]
    assert errors[:2] == [
        "NameError: Invalid action type 'goto'.",
        "NameError: Invalid action type 'mouse_upload_file'.",
    ]
    assert not any("page now" in error for error in errors)


@pytest.mark.skipif(not MINIWOB, reason="pip install browsergym-miniwob miniwob")
def test_a_task_of_miniwob(example: Any) -> None:
    """The button of `click-test` is found in the screenshot, below the words of the task."""
    environment = example.MiniWoB(name="click-test")
    task = next(iter(environment.tasks("test")))
    rollout = played(
        environment, task, lambda m: middle(m[-1], lambda pixel: max(pixel) < 250, top=55)
    )
    assert rollout.outcome.total == 1.0
    assert "Click the button" in rollout.messages[0].content
    with pytest.raises(UsageError, match="expected one of .*click-color"):
        example.MiniWoB(name="no-such-task")
