"""What every test may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

# To rewrite the assertions of all tests, and the modules of hypothesis, takes several seconds in
# each process: what is compiled until the tests begin is kept on disk.
_NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False

import hypothesis  # noqa: E402

from .lanes import examples, is_drawn, is_further, leave_more  # noqa: E402
from .small_run import make_small_run  # noqa: E402

# Before any library is imported: no network, no telemetry, no window, and threads that leave a core
# to the rest.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A job in the background begins with Ctrl-C ignored, and so would every process that a test starts
# and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in each run, so that a change is judged by what it did; QUINTAIN_FUZZ=1 looks
# for new ones.
for name, same in (("same", True), ("fuzz", False)):
    hypothesis.settings.register_profile(
        name,
        examples(100),
        derandomize=same,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("fuzz" if os.environ.get("QUINTAIN_FUZZ") else "same")

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that draw a sample of the tests."""
    parser.addoption(
        "--draw",
        type=float,
        metavar="SHARE",
        help="of the tests marked more or slow, run this share alone",
    )
    parser.addoption("--draw-seed", default="0", metavar="TEXT", help="which ones")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say how the same sample is drawn again."""
    if (share := config.getoption("draw")) is None:
        return []
    return [f"draw: --draw={share:g} --draw-seed={config.getoption('draw_seed')}"]


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Cases that the mark ``keeps`` of a test does not name are not in `make test`."""
    made = yield
    if isinstance(made, list):
        leave_more(made)
    return made


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is drawn. Where several processes share the files, the longest come first: begun
    last, one would keep its process busy while the others have nothing left.
    """
    if (share := config.getoption("draw")) is not None:
        seed = config.getoption("draw_seed")
        left_out = [
            item for item in items if is_further(item) and not is_drawn(item.nodeid, share, seed)
        ]
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    if hasattr(config, "workerinput"):
        text = (ROOT / "tests" / "durations.toml").read_text(encoding="utf-8")
        seconds = tomllib.loads(text)
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """A million objects are made that stay until the end: no later garbage collection looks at
    them, which would take half a second wherever a test or the tested code asks for one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        _, middle, _ = gc.get_threshold()
        # not below that of `frozen_heap`, which would count the frozen objects at each step of a run
        gc.set_threshold(20_000, middle, 500)


def pytest_collection_finish() -> None:
    """Tests that write modules do so too often for the time stamps of bytecode."""
    sys.dont_write_bytecode = _NO_BYTECODE


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data that ``QUINTAIN_DATA`` names; the test is skipped without it."""
    folder = os.environ.get("QUINTAIN_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("QUINTAIN_DATA does not name a folder with real data")
    return Path(folder)


@pytest.fixture
def small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_curves: None
) -> Callable[..., Path]:
    """Make the working directory of a small run: called with the arguments of `make_small_run`
    without the folder, it is a temporary one.
    """

    def make(recipe: str, **settings: Any) -> Path:
        monkeypatch.chdir(tmp_path)
        return make_small_run(tmp_path, recipe, **settings)

    return make


@pytest.fixture
def own_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the pieces of algorithms that a test defines or imports."""
    from quintain.interfaces import pieces

    monkeypatch.setattr(pieces, "_PIECES", dict(pieces._PIECES))


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch, _plain_environment: None) -> None:
    """Runs do not draw their curves, which takes longer than a few steps; all other hook plugins
    observe them.
    """
    from quintain.registry.lookup import current

    others = [
        component.id for component in current().components("hooks") if component.name != "curves"
    ]
    monkeypatch.setenv("QUINTAIN_PLUGINS", ",".join(others))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugin switches of the caller's shell do not reach the tests."""
    for name in ("QUINTAIN_PLUGINS", "QUINTAIN_STRICT_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _own_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds to the registry is gone after it: the next test of the process may list all
    components.
    """
    from quintain.registry.lookup import current

    monkeypatch.setattr(current(), "_added", list(current()._added))
