"""The cache of the default model: trained once, by one process at a time, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.cli.train import _recipe, train
from quintain.console import Screen
from quintain.errors import StorageError, UnknownNameError, UsageError
from quintain.interfaces.environment import Demonstration, Environment
from quintain.interfaces.reward import reward
from quintain.learning.learner import Learner
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain.recipe.extends import bundled_text
from quintain.recipe.resolve import EnvironmentSpec
from quintain.store import take_lock
from quintain.testing import isolated_plugins
from quintain.types.rollout import Rollout
from quintain.types.task import Task
from quintain_starter.cache_key import cache_key, values_of
from quintain_starter.progress import SOONER, WarmStartProgress
from quintain_starter.source import DefaultModel
from quintain_starter.warm_start import WarmStart, WarmStartCheck

ARGS = """
[[environments]]
use = "saying"
[model.start.args]
model = { hidden = 32, layers = 1, heads = 2, kv_heads = 1, head_dim = 16, intermediate = 64 }
lr = 3e-3
batch = 8
check_every = 5
tasks = 8
max_steps = 60
"""
SETTLES = "target = [0.5, 1.0]\nsettle = 3\n"
JUMPS = "target = [0.4, 0.6]\nlr = 1e-2\n"


@reward(range=(0, 1))
def says_it(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == rollout.task.answer)


class Saying(Environment[Task, None]):
    """Say a letter; learned within a few updates."""

    reward = says_it

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(8 if split != "train" else 64):
            yield Task(prompt=f"{split} {i}", answer="a")

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply="a")


class Watched(Screen):
    """Keeps the lines, and does something at each check."""

    def __init__(self, at_check: Callable[[int], None] = lambda check: None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._checks, self._at_check = 0, at_check

    def _print(self, text: str) -> None:
        self.lines.append(text)

    def advance(self, piece: object = None) -> None:
        self._checks += 1
        self._at_check(self._checks)

    def said(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    monkeypatch.setattr("quintain.console.program_name", lambda: "quintain")
    return tmp_path / "models"


@pytest.mark.more
def test_a_warm_start_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check has a forecast where it takes longer than usual; between two that are far apart the
    updates are told.
    """
    screen = Watched()
    monkeypatch.setattr("quintain_starter.progress.PAUSE", -1.0)
    monkeypatch.setattr("quintain_starter.source.USUAL_FROM_RANDOM", (5, 10))
    trained(screen)

    first, *checks, last = screen.said("  loss ")
    assert checks
    assert "at most" not in first
    for number, line in enumerate(checks, 2):
        assert re.search(
            rf"  longer than usual: at most {60 - 5 * number} more updates, about \d+ min$", line
        )
    assert last.endswith("within 50-100 %: ends here")
    assert screen.said("warm start: 1 updates after ")


@pytest.mark.more
def test_the_time_left_includes_the_checks_and_no_update_is_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update takes 1 s and a check 10 s here; a line says how often training went back, and to
    where.
    """
    now = [0.0]
    monkeypatch.setattr("quintain_starter.progress.time.monotonic", lambda: now[0])
    screen = Watched()
    settings = WarmStart(target=(0.5, 0.6), settle=1, check_every=10, max_steps=110)
    progress = WarmStartProgress(screen, settings, usual=(10, 20))

    def train(steps: int, accuracy: float, **state: int) -> None:
        for step in range(steps - 9, steps + 1):
            now[0] += 1.0
            progress.updated(step)
        check(steps, accuracy, **state)

    def check(steps: int, accuracy: float, *, inside: int = 0, halvings: int = 0) -> None:
        now[0] += 10.0
        progress.checked(
            WarmStartCheck(
                steps=steps,
                accuracy=accuracy,
                loss=None,
                lr=1.0,
                rough=False,
                inside=inside,
                halvings=halvings,
            )
        )

    check(0, 0.0)
    train(10, 0.2)
    train(20, 0.95, halvings=1)
    now[0] += 21.0
    train(20, 0.3, halvings=1)
    train(30, 0.7, inside=1, halvings=1)

    assert screen.lines == [
        "warm start: 0 updates  dev 0.0%",
        "warm start: 1.0 s an update. It ends when 50-90 % of dev are right, usually after 10 "
        "to 20 updates (about 1 min)",  # 7 and 17 updates, 1 and 2 checks
        "warm start: 10 updates  dev 20.0%",
        "warm start: 20 updates  dev 95.0%  above 90 %: goes back to 10 updates and halves the "
        "learning rate",
        "warm start: 20 updates (10 taken back) after 1:21",
        "warm start: 20 updates (10 taken back)  dev 30.0%  longer than usual: at most 90 more "
        "updates, about 7 min",
        "warm start: 30 updates (10 taken back)  dev 70.0%  within 50-90 %: ends here",
    ]


def test_a_model_that_is_good_enough_is_said_to_be_so_in_the_words_of_the_range() -> None:
    """No line contradicts another: what is within the range that was printed is not above it."""
    for accuracy, words in (
        (0.55, "within 50-90 %"),
        (0.87, "within 50-90 %"),
        (0.95, "above 90 %"),
    ):
        screen = Watched()
        progress = WarmStartProgress(screen, WarmStart(target=(0.5, 0.6)), usual=(10, 20))
        check = WarmStartCheck(
            steps=0, accuracy=accuracy, loss=None, lr=0.0, rough=False, inside=1, halvings=0
        )
        progress.checked(check)
        assert screen.lines == [
            f"warm start: 0 updates  dev {accuracy:.1%}  {words}: stays as it is"
        ]


def source_and_request(
    screen: Screen, settings: str = SETTLES
) -> tuple[DefaultModel, ModelRequest]:
    own = {line.partition(" =")[0] for line in settings.splitlines()}
    shared = "".join(
        line + "\n" for line in ARGS.splitlines() if line.partition(" =")[0] not in own
    )
    recipe = Recipe.parse(shared + settings)
    source = ModelSource.of(recipe)
    assert isinstance(source, DefaultModel)
    return source, ModelRequest.of(
        recipe, screen, [EnvironmentSpec(name="saying", component=Saying)]
    )


def trained(screen: Screen, settings: str = SETTLES) -> Path:
    source, request = source_and_request(screen, settings)
    return source.train_once(request)


def taken(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """Weights and report of a cached model, times aside; it leaves the cache."""
    report = json.loads((folder / "quintain.json").read_text())["warm_start"]
    del report["seconds"]
    weights = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)
    return weights, report


def test_a_run_loads_what_is_cached(cache: Path) -> None:
    """The source trains and caches the first time, and loads the same weights the second time."""
    first, second = Watched(), Watched()
    weights = []
    for screen in (first, second):
        source, request = source_and_request(screen)
        weights.append([p.detach().clone() for p in source.load(request).module.parameters()])

    assert not first.said("is in the cache")
    assert second.said("the default model for saying is in the cache")
    assert all((a == b).all() for a, b in zip(*weights, strict=True))


@pytest.mark.slow
def test_stopped_training_leaves_nothing_and_begins_again(cache: Path) -> None:
    """Weights, report and every check are those of undisturbed training."""
    undisturbed = taken(trained(Watched()))

    def stop(check: int) -> None:
        if check == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(Watched(stop))

    assert not list(cache.iterdir())
    assert undisturbed == taken(trained(Watched()))


@pytest.mark.slow
def test_a_second_process_waits_for_the_first(cache: Path) -> None:
    """It says who trains the model, and takes the model that is in the cache then."""
    folder = trained(Watched())
    away = folder.rename(folder.with_name("away"))
    lock = take_lock(cache.parent / "locks" / f"{folder.name}.lock")
    assert lock is not None

    def finish() -> None:
        time.sleep(1.0)
        away.rename(folder)
        lock.close()

    screen = Watched()
    other = threading.Thread(target=finish)
    other.start()
    assert folder == trained(screen)
    other.join()
    (note,) = screen.said("waiting for it")
    assert f"process {os.getpid()} on " in note
    assert "trains this model" in note
    assert screen.said("is in the cache")
    assert not screen.said("warm start:")


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(Learner, "supervised_step", lambda *args: pytest.fail("trained"))
    with pytest.raises(StorageError, match="name another cache with QUINTAIN_CACHE"):
        trained(Watched())


@pytest.mark.more
def test_what_the_warm_start_says() -> None:
    screen = Watched()
    trained(screen, SETTLES)
    assert screen.lines[:2] == [
        "there is no default model for saying with these settings: a warm start trains one first, "
        "5 to 25 minutes",
        "warm start of the default model for saying ...",
    ]
    assert screen.lines[2:4] == [
        "Step 1 of 2: teach the form of an answer by demonstrations (stops at 50-100 % right on "
        "dev in 3 checks in a row, or after 60 updates). Step 2: reinforcement learning.",
        "it begins from random weights: 0 % for the first hundred updates or so is normal",
    ]
    assert re.fullmatch(
        r"warm start: \d+\.\d s an update. It ends when 50-100 % of dev are right, at the latest "
        r"after 60 updates \(about \d+ min\)",
        screen.lines[4],
    )
    for n, line in enumerate(screen.lines[-3:-1], 1):
        assert line.endswith(f"  within the range {n}/3")
    assert screen.lines[-1].endswith("  within 50-100 %: ends here")
    assert SOONER not in screen.lines


@pytest.mark.slow
def test_a_long_warm_start_says_what_makes_it_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the bound; the option in it is one that the starter takes."""
    monkeypatch.setattr("quintain_starter.progress.LONG", 0.0)
    screen = Watched()
    trained(screen, SETTLES)

    assert "at the latest after" in screen.lines[4]
    assert screen.lines[5] == SOONER
    key, _, value = SOONER.split("'")[1].partition("=")
    assert key == "model.start.args.target"
    assert DefaultModel(target=tuple(json.loads(value))).target == (0.03, 0.6)
    screen = Watched()
    trained(screen, JUMPS)
    assert screen.said(" %: goes back to ")
    assert SOONER in screen.lines
    screen = Watched()
    trained(screen, "target = [0.03, 0.6]\n")
    assert SOONER not in screen.lines


SHORT = "model.start.args.max_steps=2"  # few demonstrations enter the hash


@pytest.mark.more
def test_a_run_with_another_reward_says_that_its_model_is_trained_anew(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward decides what is right on `dev`. The run and `--dry-run` say it in one line."""

    class Trained(Exception):
        """Training began."""

    def begin(*args: object, **settings: object) -> None:
        raise Trained

    monkeypatch.setattr("quintain_starter.source.warm_start", begin)
    words = ["a warm start trains one first", "another reward is another default model"]

    def planned(*options: str) -> str:
        assert main(["train", "quickstart", "--dry-run", *options]) == 0
        return capsys.readouterr().err

    told = planned("--reward", "exact_match", "--set", SHORT)
    (line,) = [text for text in told.splitlines() if words[0] in text]
    assert words[1] in line
    changed = planned("--set", SHORT)
    assert words[0] in changed
    assert words[1] not in changed
    assert words[0] not in planned()

    screen = Watched()
    recipe = Recipe.parse(bundled_text("quickstart"), [SHORT, "environments.0.reward=exact_match"])
    source = ModelSource.of(recipe)
    assert isinstance(source, DefaultModel)
    with pytest.raises(Trained):
        source.train_once(ModelRequest.of(recipe, screen))
    assert screen.lines[0] == line


def test_a_dry_run_starts_no_service_for_the_default_model(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then it cannot say whether the model is in the cache."""
    assert main(["train", "search", "--dry-run"]) == 0
    assert "unless it is in the cache, a warm start trains it first" in capsys.readouterr().err


def test_the_base_model_is_untrained(capsys: pytest.CaptureFixture[str]) -> None:
    """It depends on the seed alone, and takes no adapters."""
    source, request = source_and_request(Watched())
    base = source.load_base(request)
    assert base.parameters < 100_000
    assert main(["sft", "arithmetic", "--set", "model.lora.r=4", "--json"]) == 2
    assert "leave model.lora out" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_missing_plugin_is_named() -> None:
    """The model `default` and the command `start` say what to install."""
    with isolated_plugins(), pytest.raises(UnknownNameError, match="pip install quintain-starter"):
        ModelSource.of(Recipe.parse('[[environments]]\nuse = "saying"\n'))


def test_start_trains_what_train_then_finds(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`quintain start` takes the settings of the quickstart, so that `quintain train` need not
    train it again.
    """
    model = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=64}"
    settings = [
        f"model={model}",
        "max_steps=2",
        "check_every=2",
        "tasks=4",
        "settle=1",
        "target=[0.0, 0.5]",
    ]
    words = [word for pair in settings for word in ("--start-arg", pair)]
    assert main(["start", "arithmetic", "--seed", "7", "--arg", "slips=0.5", *words]) == 0
    shown = capsys.readouterr()
    # bars of the libraries
    assert "Writing" not in shown.err
    assert "\r" not in shown.err
    (_, command), *_ = [
        line.split("next: quintain ") for line in shown.out.splitlines() if "next" in line
    ]
    argv = shlex.split(command.partition(", or: ")[0])
    with train.make_context("train", argv[1:]) as context:
        choices = {
            k: v for k, v in context.params.items() if k in ("env", "model", "overrides", "seed")
        }
    recipe = _recipe(None, **choices)
    screen, source = Watched(), ModelSource.of(recipe)
    assert isinstance(source, DefaultModel)
    assert source.train_once(ModelRequest.of(recipe, screen)).parent == cache
    assert screen.said("is in the cache")
    assert source.seed == 7
    assert recipe.learner.lr == 6e-5


def test_settings_of_the_warm_start_are_checked() -> None:
    with pytest.raises(
        UsageError, match=r"\[model.start\] has no argument 'lrr'; did you mean 'lr'"
    ):
        ModelSource.of(Recipe.parse(f"{ARGS}lrr = 1\n"))


@pytest.mark.slow
def test_signals_and_kills_of_real_processes(tmp_path: Path) -> None:
    """`quintain start`, ended by each signal in turn, then left alone, ends with the weights of one
    undisturbed.
    """
    undisturbed = tmp_path / "undisturbed"
    assert started(undisturbed, None)[0] == 0
    disturbed = tmp_path / "disturbed"
    for number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)):
        ended, err = started(disturbed, number)
        assert status == ended
        assert "Traceback" not in err
        assert not list((disturbed / "models").glob("*"))
    assert started(disturbed, None)[0] == 0
    (first,), (second,) = (
        [*(place / "models").glob("*/model.safetensors")] for place in (undisturbed, disturbed)
    )
    assert first.read_bytes() == second.read_bytes()


def started(cache: Path, number: signal.Signals | None) -> tuple[int, str]:
    """Status and standard error of `quintain start`, sent signal *number* at its second check."""
    model = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=64}"
    settings = [f"model={model}", "max_steps=240", "check_every=4", "tasks=4", "batch=4"]
    words = [word for pair in settings for word in ("--start-arg", pair)]
    run = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    run += "import sys; from quintain.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", run, "start", "arithmetic", *words]
    env = {**os.environ, "QUINTAIN_CACHE": str(cache)}
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if number is not None and sum("warm start: " in x for x in lines) == 2:
                process.send_signal(number)
                number = None
    return process.returncode, "".join(lines)


SETTING = """
from quintain import Demonstration, Environment, Rollout, Task, reward
from helping import ask

@reward
def short(rollout: Rollout) -> float:
    return float(len(rollout.reply) < 5)

class Setting(Environment[Task, None]):
    reward = short
    level: int = 1

    def tasks(self, split):
        return [Task(prompt=f"{split} {i}") for i in range(9)]

    def demonstrations(self, split):
        return [Demonstration(prompt=str(i), reply="a") for i in range(100)]

    async def rollout(self, task, agent):
        agent.user(ask() + task.prompt)
        await agent.turn()
"""


KEYS = """
import json, os, sys
from quintain.console import Screen
from quintain.recipe import ModelRequest, Recipe, ModelSource
from quintain.recipe.extends import bundled_text

def key(environment, settings):
    recipe = Recipe.parse(f'[[environments]]\\nuse = "{environment}"', settings)
    request, source = ModelRequest.of(recipe, Screen()), ModelSource.of(recipe)
    return source._folders([spec.make({}) for spec in request.specs], request)[1].name

key("arithmetic", [])  # the processes below inherit what this imports
for text, helper, settings in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    open("setting.py", "w").write(text)
    open("helping.py", "w").write(helper)
    print(key("setting.py:Setting", settings), flush=True)
    os._exit(0)
"""


@pytest.mark.more
def test_the_cache_key_has_all_that_shapes_the_model(tmp_path: Path) -> None:
    """Fields, the code of the environment, its reward and its helper, and any demonstration; not
    the run's seed.
    """
    helper, text = "def ask() -> str:\n    return ''\n", SETTING
    changes: list[tuple[str, str, list[str]]] = [
        (text, helper, []),
        (text, helper, ["run.seed=1"]),
        (text, helper, ["environments.0.args.level=2"]),
        (text, helper, ["environments.0.limits.tokens=7"]),
        (text, helper, ["environments.0.system='Be brief.'"]),
        (text, helper, ["environments.0.reward='1 - format_tags'"]),
        (text, helper, ["model.start.args.seed=1"]),
        (text, helper, ["model.start.args.lr=1e-4"]),
        (text.replace("< 5", "< 6"), helper, []),
        (text.replace("ask() + task.prompt", "task.prompt"), helper, []),
        (text.replace("range(100)", "range(101)"), helper, []),
        (text, helper.replace("''", "'now'"), []),
    ]
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    # each variant in a process of its own, without files of bytecode
    argv = [sys.executable, "-B", "-c", KEYS]
    done = subprocess.run(
        argv, cwd=tmp_path, input=json.dumps(changes), capture_output=True, text=True
    )
    keys = done.stdout.split()
    assert len(changes) == len(keys), done.stderr
    assert keys[0] == keys[1]
    assert len(changes) - 1 == len(set(keys))


def test_the_cache_key_reads_demonstrations_and_code_without_files() -> None:
    """Data that changes behind equal code, and classes of a notebook, change the key too."""
    data = ["a"] * 100

    class Stored(Saying):
        def demonstrations(self, split: str) -> Iterable[Demonstration]:
            return [Demonstration(prompt="p", reply=reply) for reply in data]

    def key(environment: Environment[Any, Any]) -> str:
        return cache_key([environment], {}, values_of([environment], examples=1000, tasks=8))

    before = key(Stored())
    assert before == key(Stored())
    data[99] = "b"
    assert before != key(Stored())

    def notebook(body: str) -> Environment[Any, Any]:
        names: dict[str, Any] = {"__name__": "cell", "Saying": Saying}
        exec(
            f"class Cell(Saying):\n    async def rollout(self, task, agent):\n        {body}\n",
            names,
        )
        environment: Environment[Any, Any] = names["Cell"]()
        return environment

    assert key(notebook("return 1")) == key(notebook("return 1")) != key(notebook("return 2"))


@pytest.mark.slow
def test_training_again_replaces_the_cached_model(cache: Path) -> None:
    """`quintain start --again` does not take what is in the cache."""
    source, request = source_and_request(Watched())
    folder = source.train_once(request)
    (folder / "model.safetensors").write_bytes(b"")
    screen = Watched()
    source, request = source_and_request(screen)
    assert folder == source.train_once(request, again=True)
    assert screen.said("warm start:")
    assert (folder / "model.safetensors").stat().st_size > 10_000
    assert [folder] == list(cache.iterdir())


@pytest.mark.slow
def test_what_a_kill_left_is_removed_and_what_is_written_stays(cache: Path) -> None:
    """Half-written folders go when their model, or any other, is trained; not those of a process
    that writes.
    """
    name = trained(Watched()).name
    shutil.rmtree(cache / name)
    left, other, busy = (
        cache / f".{n}.tmp-{os.getpid()}" for n in (name, "other-0123", "busy-0123")
    )
    for folder in (left, other, busy):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    lock = take_lock(cache.parent / "locks" / "busy-0123.lock")
    assert lock is not None
    trained(Watched())
    lock.close()
    assert {name, busy.name} == {p.name for p in cache.iterdir()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    place = tmp_path / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(place)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_full_cache_disk_is_one_error(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever write the disk refuses, the error names the cache's variable and nothing is left
    half written.
    """
    monkeypatch.setenv("QUINTAIN_CACHE", str(small_disk))
    with pytest.raises(StorageError, match="no room.*QUINTAIN_CACHE"):
        trained(Watched())
    assert not list((small_disk / "models").glob("*"))
    (small_disk / "fill").write_bytes(
        b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize)
    )
    with pytest.raises(StorageError, match="no room.*QUINTAIN_CACHE"):
        trained(Watched())


@pytest.mark.slow
def test_a_size_limit_of_the_process_is_one_error() -> None:
    """A limit on file sizes ends like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StorageError, match="no room.*QUINTAIN_CACHE"):
            trained(Watched())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.ci
def test_sigterm_prints_no_traceback(tmp_path: Path) -> None:
    """It ends the main task alone, so no task of the engine fails with an exception that nobody
    retrieves.
    """
    status, err = started(tmp_path, signal.SIGTERM)
    assert status == 130
    assert "Traceback" not in err
    assert "never retrieved" not in err
