"""Start-up is gated as a ratio of CPU time to a bare interpreter: neither a slow nor a busy machine
fails it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ..lanes import mostly_slow

HEAVY = ("torch", "transformers", "datasets", "numpy", "pyarrow", "aiohttp")
PLUGINS = 100

# Measured 2 and 22, where a bare interpreter takes 16 ms; 0.43 s are then a ratio of 27. Importing
# may add 0.06 s: far below.
IMPORT_GATE = 5.0
LIST_GATE = 27.0


def seconds(*command: str, env: dict[str, str] | None = None) -> float:
    """CPU seconds of *command*."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ratio(*command: str, env: dict[str, str] | None = None, pairs: int = 5) -> float:
    """Median over paired runs of *command* against ``python -c pass``."""
    seconds(*command, env=env)  # writes the bytecode
    return statistics.median(
        seconds(*command, env=env) / seconds("-c", "pass", env=env) for _ in range(pairs)
    )


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a hundred installed plugins that cannot be imported."""
    folder = tmp_path_factory.mktemp("site")
    for i in range(PLUGINS):
        write_plugin(folder, i)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def write_plugin(folder: Path, i: int) -> None:
    package, info = folder / f"fake_{i}", folder / f"fake_{i}-1.{i}.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('a listing imported me')\n")
    (package / "quintain.toml").write_text(
        'api = 1\nlicence = "MIT"\ntags = ["fake"]\n'
        f'[[components]]\nkind = "environment"\nname = "fake{i}"\nsummary = "Number {i}."\n'
        f'[[components]]\nkind = "reward"\nname = "fake_reward{i}"\nsummary = "Number {i}."\n'
    )
    readme = "A line of the README.\n" * 200
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: fake-{i}\nVersion: 1.{i}\n\n{readme}"
    )
    (info / "RECORD").write_text("")
    (info / "entry_points.txt").write_text(
        f"[quintain.environments]\nfake{i} = fake_{i}:Env\n\n[quintain.rewards]\nfake_reward{i} = "
        f"fake_{i}:score\n"
    )


def test_importing_quintain_is_cheap() -> None:
    """`import quintain` costs little more than the interpreter itself."""
    assert ratio("-c", "import quintain") < IMPORT_GATE


def test_public_names_bring_no_heavy_library() -> None:
    """Importing every public name of the floors that authors use brings neither torch nor its
    friends.
    """
    program = (
        "import sys, quintain; [getattr(quintain, n) for n in quintain.__all__]; "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )

    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout

    assert out.strip() == "[]"


@pytest.mark.parametrize("module", ["loop", "collect"])
def test_training_loop_brings_no_heavy_library(module: str) -> None:
    """The loop and the collection of rollouts need neither torch nor numpy to be read or tested."""
    program = (
        f"import sys, quintain.run.{module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    )

    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout

    assert out.strip() == "[]"


def test_help_imports_no_command() -> None:
    """`quintain --help` shows the table of commands and imports none of them."""
    program = (
        "import sys; from quintain.cli import main; main(['--help']); "
        "print([m for m in sys.modules if m.startswith('quintain.cli.')], file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert done.stderr.strip() == "[]"
    assert "doctor" in done.stdout


@pytest.mark.more
def test_list_with_a_hundred_plugins_is_quick(hundred: dict[str, str]) -> None:
    """`quintain list` stays under its gate with a hundred plugins installed."""
    assert ratio("-m", "quintain", "list", env=hundred) < LIST_GATE


def test_list_imports_none_of_a_hundred_plugins(hundred: dict[str, str]) -> None:
    """All hundred are listed though importing any of them would end the process."""
    command = [sys.executable, "-m", "quintain", "list", "environments", "--json"]

    done = subprocess.run(command, check=True, capture_output=True, text=True, env=hundred)

    fakes = [
        c for c in json.loads(done.stdout)["components"] if c["distribution"].startswith("fake-")
    ]
    assert len(fakes) == PLUGINS
    assert {""} == {c["error"] for c in fakes}
    assert next(c["summary"] for c in fakes if c["name"] == "fake7") == "Number 7."


SPIED = """
import os, sys

class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.write(2, b"[torch]")
            os._exit(0)

sys.meta_path.insert(0, Spy())
from quintain.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.keeps("train")
@pytest.mark.parametrize(
    "words",
    mostly_slow(
        [
            ("train", "--name", "x"),
            ("eval", "arithmetic", "--model", "m"),
            ("chat", "m", "--once", "hi"),
            ("serve",),
            ("sft", "arithmetic"),
            ("start", "arithmetic"),
            ("export", "m", "out"),
            ("preference", "rows.jsonl", "--model", "m"),
            ("reward", "train", "rows.jsonl", "--model", "m", "--out", "out"),
        ],
        ["train", "eval", "serve", "reward"],
        name=lambda words: words[0],
    ),
    ids=lambda words: words[0],
)
def test_a_terminal_shows_a_line_before_torch_is_imported(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Importing torch takes seconds; with --json there is no such line."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")

    shown = on_terminal(tmp_path, *words)

    assert shown.startswith("quintain: loading ...\r\n")
    assert shown.endswith("[torch]")
    if words[0] in ("train", "eval"):
        assert "loading" not in on_terminal(tmp_path, *words, "--json")


def on_terminal(place: Path, *words: str) -> str:
    """What a terminal shows of ``quintain`` with *words*, up to the import of torch."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SPIED, *words], cwd=place, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the terminal is closed
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    process.wait()
    return shown.decode()
