"""Components in files of one's own: what a wrong name, a forgotten class or a broken file is
told.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.errors import BindingError, PluginError, UnknownNameError, UsageError
from quintain.interfaces.pieces import KINDS
from quintain.registry.binding import bind
from quintain.registry.local_files import DECORATORS, components_in
from quintain.registry.lookup import Registry, current
from quintain_authoring.devtools.docstrings import doc_of, without_parameters

REVERSE = '''
import quintain
from quintain import Environment, Algorithm, Task, group_reward, objective, reward
from quintain.interfaces.engine import Engine
from quintain.interfaces.service import Service

raise_when_run = 1


@reward
def exact(rollout) -> float:
    return 1.0


@quintain.reward(range=(0, 1))
def close(rollout) -> float:
    return 0.5


@group_reward
async def ranked(rollouts) -> list[float]:
    return [0.0 for _ in rollouts]


@objective(name="mine")
def own(t):
    return -t.advantage * t.logp


class Reverse(Environment[Task, None]):
    """Letters backwards.

    Attributes:
        words: how many.
    """

    reward = exact
    letters = 4
    alphabet = "abc"
    words: int = 3

    def tasks(self, split):
        return [Task(prompt="ab", answer="ba")]


class Harder(Reverse):
    pass


class Radio(Engine):
    pass


class Clock(Service):
    pass


class Plain:
    pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_reverse.py").write_text(REVERSE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own_single.py").write_text(
        "import quintain as q\n\nclass One(q.Environment[q.Task, None]): ..."
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_kind_of_piece_has_its_decorator_here() -> None:
    """A file is read by the names of decorators alone."""
    assert {*KINDS, "per_group"} == set(DECORATORS["algorithm"])


def said(kind: str, name: str, error: type[Exception] = UnknownNameError) -> str:
    with pytest.raises(error) as raised:
        current().load(kind, name)
    return str(raised.value)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("environment", ["Reverse", "Harder"]),
        ("reward", ["exact", "close", "ranked"]),
        ("algorithm", ["own", "algorithm", "variant"]),
        ("engine", ["Radio"]),
        ("service", ["Clock"]),
        ("command", []),
    ],
)
def test_a_file_tells_what_it_defines_without_being_run(
    folder: Path, kind: str, names: list[str]
) -> None:
    path = folder / "never_run.py"
    path.write_text(
        REVERSE
        + (
            "\nalgorithm = Algorithm(name='r')\nvariant = algorithm.replace(epochs=2)\nraise "
            "SystemExit('it was run')\n"
        )
    )
    assert components_in(path, kind) == names


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (
            "environment",
            "own_reverse.py",
            "environment 'own_reverse.py' is a file with several; write one of "
            "own_reverse.py:Reverse, own_reverse.py:Harder",
        ),
        (
            "environment",
            "sub/own_single",
            "no environment 'sub/own_single' is installed, but there is sub/own_single.py; write "
            "sub/own_single.py:One",
        ),
        (
            "reward",
            "sub/own_single.py",
            "reward 'sub/own_single.py' is a file, and it defines none; write "
            "sub/own_single.py:NAME for one that it imports",
        ),
        (
            "environment",
            "own_revers.py:Reverse",
            "environment 'own_revers.py:Reverse': there is no file 'own_revers.py'; did you mean "
            "'own_reverse.py:Reverse'?",
        ),
        (
            "environment",
            "./own_revers.py",
            "environment './own_revers.py': there is no file './own_revers.py'; did you mean "
            "'./own_reverse.py'?",
        ),
        (
            "environment",
            "wholly/other.py:A",
            "environment 'wholly/other.py:A': there is no file 'wholly/other.py'; there is no "
            "folder 'wholly' either",
        ),
        ("reward", "x.py:A", "reward 'x.py:A': there is no file 'x.py'"),
        (
            "environment",
            "own_reverse.py:Revers",
            "environment 'own_reverse.py:Revers': own_reverse.py has no 'Revers'; did you mean "
            "'own_reverse.py:Reverse'?",
        ),
        (
            "reward",
            "own_reverse.py:exakt",
            "reward 'own_reverse.py:exakt': own_reverse.py has no 'exakt'; did you mean "
            "'own_reverse.py:exact'?",
        ),
        (
            "environment",
            "sub/own_single.py:Q",
            "environment 'sub/own_single.py:Q': sub/own_single.py has no 'Q'; did you mean "
            "'sub/own_single.py:One'?",
        ),
    ],
)
def test_what_was_meant(folder: Path, kind: str, name: str, told: str) -> None:
    assert said(kind, name) == told


def test_a_module_is_told_from_one_that_it_imports(folder: Path) -> None:
    """The first is looked for here; the second is to be installed."""
    name = "environment 'own_revers:Reverse'"
    assert said("environment", "own_revers:Reverse", PluginError) == (
        f"{name} cannot be loaded: ModuleNotFoundError: No module named 'own_revers'; did you mean "
        "'own_reverse:Reverse'?"
    )
    assert said("environment", "zzz:Reverse", PluginError) == (
        "environment 'zzz:Reverse' cannot be loaded: ModuleNotFoundError: No module named 'zzz'. "
        "Fix: check its spelling, and that its folder is the working directory or on PYTHONPATH"
    )
    (folder / "own_needy.py").write_text("import not_there_at_all\n")
    assert said("environment", "own_needy.py:A", PluginError) == (
        "environment 'own_needy.py:A' cannot be loaded: ModuleNotFoundError: No module named "
        "'not_there_at_all' (own_needy.py, line 1). Fix: install what provides the module "
        "'not_there_at_all', or correct its name"
    )


def test_a_file_that_fails_says_where(folder: Path) -> None:
    """Nothing about its name, which is right."""
    (folder / "own_half.py").write_text("x = 1\n\ndef half(:\n    pass\n")
    told = "SyntaxError: invalid syntax: `def half(:` (own_half.py, line 3)"
    assert (
        said("environment", "own_half.py:A", PluginError)
        == f"environment 'own_half.py:A' cannot be loaded: {told}"
    )
    assert said("environment", "own_half.py", UsageError) == f"own_half.py is not Python: {told}"
    (folder / "own_zero.py").write_text("x = 1\ny = x / 0\n")
    assert said("reward", "own_zero.py:a", PluginError) == (
        "reward 'own_zero.py:a' cannot be loaded: ZeroDivisionError: division by zero "
        "(own_zero.py, line 2)"
    )


def test_a_constant_is_no_argument(folder: Path) -> None:
    """A field lacks its annotation and nothing else: what to write is said whole."""
    reverse = current().load("environment", "own_reverse.py:Harder")
    with pytest.raises(BindingError) as raised:
        bind(
            reverse,
            {"letters": 5, "alphabet": "xy", "wrods": 2, "reward": "x", "tasks": 1},
            who="environment 'r'",
        )
    constant = "so it is a constant of the class; write"
    assert str(raised.value).splitlines() == [
        "environment 'r' has no argument 'letters': letters has no annotation in Reverse, "
        f"{constant} `letters: int = 4` to make it an argument",
        "environment 'r' has no argument 'alphabet': alphabet has no annotation in Reverse, "
        f"{constant} `alphabet: str = 'abc'` to make it an argument",
        "environment 'r' has no argument 'wrods'; did you mean 'words'?",
        "environment 'r' has no argument 'reward'; known: words",
        "environment 'r' has no argument 'tasks'; known: words",
    ]


def test_info_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose it is, and each field once; without a class, what the file holds."""
    assert main(["info", "own_reverse.py:Reverse"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "own_reverse.py:Reverse  environment (local)"
    assert "Letters backwards." in out
    assert "Attributes:" not in out
    assert out.count("how many.") == 1
    assert main(["info", "own_reverse.py:Harder"]) == 0
    assert "Harder(" not in capsys.readouterr().out, (
        "what a dataclass says of itself is no documentation"
    )
    for name, start in (
        ("sub/own_single.py", "environment 'sub/own_single.py' is a file"),
        (
            "sub/own_single",
            "no environment 'sub/own_single' is installed, but there is sub/own_single.py",
        ),
    ):
        assert main(["info", name]) == 2
        assert capsys.readouterr().err == f"error: {start}; write sub/own_single.py:One\n"


def test_a_section_goes_only_where_all_of_it_is_shown_elsewhere() -> None:
    doc = "First.\n\nArgs:\n    a, b: two.\n    c: more\n        of it.\n\nRaises:\n    E: always."
    assert without_parameters(doc, ["a", "b", "c"]) == "First.\n\nRaises:\n    E: always."
    assert without_parameters(doc, ["a", "b"]) == doc
    assert doc_of(Registry).startswith("Components by kind")


def test_what_a_module_makes_late_may_fail(folder: Path) -> None:
    """As a package does whose parts need what is not installed."""
    (folder / "own_late.py").write_text("def __getattr__(name):\n    import not_there_at_all\n")
    assert said("reward", "own_late.py:a", PluginError) == (
        "reward 'own_late.py:a' cannot be loaded: ModuleNotFoundError: No module named "
        "'not_there_at_all' (own_late.py, line 2). Fix: install what provides the module "
        "'not_there_at_all', or correct its name"
    )


def test_a_command_is_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own_broken.py").write_text("def (")
    assert main(["own_broken"]) == 2
    assert "unknown command 'own_broken'" in capsys.readouterr().err


def test_an_installed_name_is_not_asked_of_files(folder: Path) -> None:
    """A file beside an installed component of its name hides nothing."""
    (folder / "arithmetic.py").write_text("raise SystemExit(1)\n")
    assert current().load("environment", "arithmetic").__name__ == "Arithmetic"


def test_a_file_named_like_an_installed_package_hides_it_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an adapter of the package has it, which imports the package itself."""
    package = tmp_path / "site" / "benchmark_of_others"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text("PROMPTS = ['from the package']\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    file = tmp_path / "benchmark_of_others.py"
    file.write_text(
        "from benchmark_of_others.tasks import PROMPTS\n"
        "from quintain import Environment, Task\n\n"
        "class Own(Environment[Task, None]):\n"
        "    def tasks(self, split):\n"
        "        return [Task(prompt=prompt) for prompt in PROMPTS]\n"
    )

    own = current().load("environment", f"{file}:Own")

    assert [task.prompt for task in own().tasks("train")] == ["from the package"]
    assert own is current().load("environment", f"{file}:Own")
    for name in [n for n in sys.modules if "benchmark_of_others" in n]:
        monkeypatch.delitem(sys.modules, name)
