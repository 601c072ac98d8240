"""The rules of the source layout (`tools/layout.py`) hold for this checkout, and each finds a planted violation."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..tools import load_tool

ROOT = Path(__file__).resolve().parents[2]


layout = load_tool("layout")

KERNEL_LINES = 4_500
"""The ratchet: lines of the kernel. Lower it as the kernel shrinks; never raise it."""

SLACK = 40
"""How many lines the kernel may shrink before the ratchet must follow."""

PENDING: dict[str, int] = {
    "package lines": 19_054,
}
"""Rules that do not hold yet, with the number of violations (or lines) that still stand. Numbers only fall; at zero the
entry goes."""


@pytest.fixture(scope="module")
def checkout() -> Any:
    return layout.read(ROOT)


@pytest.mark.parametrize("rule", layout.RULES)
def test_rule_holds(rule: str, checkout: Any) -> None:
    """No rule has more violations than are pending, and none stays pending once it holds."""
    violations, pending = layout.RULES[rule](checkout), PENDING.get(rule, 0)

    if len(violations) > pending:
        pytest.fail("\n".join([f"{rule}: {len(violations)} violations, {pending} pending", *violations]))
    assert violations or not pending, f"no violation is left: take {rule!r} out of PENDING"


def test_kernel_only_shrinks(checkout: Any) -> None:
    """The kernel keeps to its ratchet, and the ratchet follows it down."""
    limit = PENDING.get("kernel lines", KERNEL_LINES)

    assert "" == layout.budget(layout.lines(layout.kernel(checkout)), limit, SLACK)
    assert KERNEL_LINES <= layout.KERNEL_CAP


def test_package_is_small(checkout: Any) -> None:
    """The package without its plugins keeps to its number of lines."""
    limit = PENDING.get("package lines", layout.PACKAGE_CAP)

    assert "" == layout.budget(layout.lines(checkout.package.values()), limit)


def test_pending_entries_are_needed(checkout: Any) -> None:
    """An entry of PENDING names a rule; one for a number of lines goes once the cap is met."""
    budgets = {
        "kernel lines": (layout.kernel(checkout), layout.KERNEL_CAP),
        "package lines": (checkout.package.values(), layout.PACKAGE_CAP),
    }

    assert set(PENDING) <= {*layout.RULES, *budgets}
    for name, (modules, cap) in budgets.items():
        assert name not in PENDING or layout.lines(modules) > cap, f"take {name!r} out of PENDING"


# ---------------------------------------------------------------- each rule finds what is planted
Plant = Callable[[str, str], None]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources that the rules read."""
    for pattern in ("core/quintain", "plugins/*/src", "environments/*/src", "examples/*/src"):
        for folder in ROOT.glob(pattern):
            shutil.copytree(folder, tmp_path / folder.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def plant(copy: Path) -> Plant:
    """Append lines to a file of the copy, or write a new one."""

    def plant(path: str, text: str) -> None:
        file = copy / path
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(f"{before}\n{text}\n", encoding="utf-8")

    return plant


@cache
def standing(rule: str) -> frozenset[str]:
    """The violations of the checkout, found once for all plants."""
    return frozenset(layout.RULES[rule](layout.read(ROOT)))


def new(rule: str, copy: Path) -> list[str]:
    """Violations in the copy that the checkout does not have."""
    return [violation for violation in layout.RULES[rule](layout.read(copy)) if violation not in standing(rule)]


LATE = "def planted():\n    from {} import {}"
TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import {}"
BY_CALL = "import importlib\ndef planted():\n    return importlib.import_module('quintain.{1}')"


@pytest.mark.parametrize("form", ["from {} import {}", LATE, TYPE_ONLY, BY_CALL], ids="eager late typed call".split())
@pytest.mark.parametrize(
    "path, module",
    [
        ("types/task.py", "interfaces"),
        ("rollouts/runner.py", "training"),
        ("learning/batch.py", "engines"),
        ("engines/embedded/cache.py", "learning"),
        ("training/run.py", "testing"),
        ("errors.py", "types"),
    ],
)
def test_upward_import_is_found(path: str, module: str, form: str, copy: Path, plant: Plant) -> None:
    """Neither an import of a higher layer nor one of a sibling escapes, however late it is or for whom."""
    dots = "." * (path.count("/") + 1)
    plant(f"core/quintain/{path}", form.format(dots, module))

    (found,) = new("layers", copy)

    source = path.removesuffix(".py").replace("/", ".")
    assert found.startswith(f"quintain.{source}:")
    assert f"imports quintain.{module}" in found


def test_import_of_the_root_is_found(copy: Path, plant: Plant) -> None:
    """The root's lazy names are for users; inside the package only its two constants may be imported."""
    plant("core/quintain/models/load.py", "from .. import API_VERSION, __version__")
    assert not new("layers", copy)

    plant("core/quintain/models/load.py", "def planted():\n    from quintain import Task")
    assert "reaches up" in new("layers", copy)[0]


def test_root_names_are_defined_there(checkout: Any) -> None:
    """What may be imported from the root is defined there, before anything is imported from the package."""
    root = checkout.package["quintain"]
    assigned = {layout.dotted(t) for n in root.top if isinstance(n, ast.Assign) for t in n.targets}

    assert assigned | {n.name for n in root.top if isinstance(n, ast.FunctionDef)} >= layout.ROOT_NAMES


def test_part_without_a_layer_is_found(copy: Path, plant: Plant) -> None:
    """A new folder or module at the top says where it belongs."""
    plant("core/quintain/misc.py", "")

    assert ["quintain.misc has no layer"] == new("layers", copy)
    assert ["quintain/misc.py"] == new("root_files", copy)


@pytest.mark.parametrize("form", ["from {} import {}", LATE, TYPE_ONLY], ids="eager late typed".split())
def test_circle_is_found(form: str, copy: Path, plant: Plant) -> None:
    """Three modules of one folder that import one another in a circle."""
    for here, there in ("ab", "bc", "ca"):
        plant(f"core/quintain/training/planted_{here}.py", form.format(".", f"planted_{there}"))

    (circle,) = new("cycles", copy)

    assert "quintain.training.planted_a <-> quintain.training.planted_b <-> quintain.training.planted_c" == circle


def test_components_of_a_graph() -> None:
    """Two circles that share a node are one component; a chain is none."""
    edges = {"a": "b", "b": "ac", "c": "b", "d": "a", "e": "f", "f": ""}

    found = layout.strong_components(edges)

    assert [{"a", "b", "c"}] == [c for c in found if len(c) > 1]
    assert sorted("abcdef") == sorted(node for c in found for node in c)


@pytest.mark.parametrize("module", ["learning", "engines"])
def test_training_that_names_a_learner_or_engine_is_found(module: str, copy: Path, plant: Plant) -> None:
    """Training gets its learner and engine from the registry."""
    plant("core/quintain/training/run.py", LATE.format("..", module))

    assert new("training_without_registry", copy)


def test_computed_import_is_found(copy: Path, plant: Plant) -> None:
    """An import by a computed name would pass under every other rule."""
    plant("core/quintain/types/task.py", "import importlib\ndef planted(x):\n    return importlib.import_module(x)")

    assert new("computed_imports", copy)


@pytest.mark.parametrize("library", ["numpy", "torch.nn", "click"])
@pytest.mark.parametrize("path", ["types/rollout.py", "registry/lookup.py", "training/loop.py", "__init__.py"])
def test_library_in_the_kernel_is_found(path: str, library: str, copy: Path, plant: Plant) -> None:
    """The kernel imports no numeric library, not even inside a function."""
    plant(f"core/quintain/{path}", f"def planted():\n    import {library}")

    (found,) = new("kernel_imports", copy)

    assert f"imports {library}" in found


def test_kernel_one_line_too_long_is_found(copy: Path) -> None:
    """The last line that the ratchet allows passes and the next one does not."""
    file = copy / "core" / "quintain" / "training" / "loop.py"
    limit = layout.lines(layout.kernel(layout.read(copy)))
    assert not layout.budget(limit, limit, SLACK)

    file.write_text(file.read_text() + "# one more\n")

    assert "1 more than" in layout.budget(layout.lines(layout.kernel(layout.read(copy))), limit, SLACK)


def test_ratchet_follows_the_kernel_down() -> None:
    """More than forty lines below the ratchet, the ratchet must be lowered."""
    assert not layout.budget(4_460, 4_500, SLACK)
    assert layout.budget(4_459, 4_500, SLACK).startswith("lower the ratchet to 4,459")


def test_long_file_is_found(copy: Path, plant: Plant) -> None:
    """A file of 500 lines passes, one of 501 does not."""
    plant("core/quintain/models/planted.py", "\n" * 498)
    assert not new("long_files", copy)

    plant("core/quintain/models/planted.py", "")
    assert new("long_files", copy)


def test_long_function_is_found(copy: Path, plant: Plant) -> None:
    """Sixty lines pass beside any signature and docstring; one more does not."""
    head = "def planted(\n    a,\n    b,\n):\n    '''One.\n\n    Two.\n    '''\n"
    plant("core/quintain/models/planted_a.py", head + "    a += 1\n" * 60)
    assert not new("long_functions", copy)

    plant("core/quintain/models/planted_b.py", "class Planted:\n    async def planted(a):\n" + "        a += 1\n" * 61)
    (found,) = new("long_functions", copy)
    assert "planted has 61 lines" in found


@pytest.mark.parametrize("folder", ["benchmarks", "experiments", "tools"])
def test_sizes_of_scripts_count(folder: str, copy: Path, plant: Plant) -> None:
    """The caps hold for what is not installed, too, but not for a virtual environment inside it."""
    (copy / folder / ".peers").mkdir(parents=True)
    text = "def planted():\n" + "    a = 1\n" * 61 + "\n" * 500
    plant(f"{folder}/.peers/planted.py", text)
    assert not new("long_functions", copy) and not new("long_files", copy)

    plant(f"{folder}/planted.py", text)
    (function,), (file,) = new("long_functions", copy), new("long_files", copy)
    assert f"{folder}.planted:2 planted has 61 lines" == function and file.startswith(f"{folder}.planted has")


def test_class_defined_twice_is_found(copy: Path, plant: Plant) -> None:
    """One class name means one thing in the package, private and nested classes included."""
    plant("core/quintain/types/planted.py", "class _Planted:\n    pass")
    plant("core/quintain/training/planted.py", "def f():\n    class _Planted:\n        pass")

    (found,) = new("repeated_classes", copy)

    assert found.startswith("class _Planted: ")


@pytest.mark.parametrize(
    "text",
    [
        "from .run import _planted",
        "from .run import _planted as planted",
        "from . import run\nrun._planted",
        "from . import run as other\ndef f():\n    return other._planted",
        "import quintain.training.run\nquintain.training.run._planted",
        "import quintain.training.run as run\nrun._planted()",
    ],
)
def test_private_name_across_modules_is_found(text: str, copy: Path, plant: Plant) -> None:
    """A name with a leading underscore stays in its module."""
    plant("core/quintain/training/planted.py", text)

    assert new("private_names", copy)


def test_private_names_of_others_pass(copy: Path, plant: Plant) -> None:
    """Names between double underscores, attributes of objects and other libraries are no business of the rule."""
    plant(
        "core/quintain/training/planted.py", "import sys\nfrom .. import __version__\nsys._getframe()\nx = object()._y"
    )

    assert not new("private_names", copy)


@pytest.mark.parametrize(
    "text",
    [
        "from quintain.types.task import Task",
        "from quintain.types import task",
        "import quintain.rollouts.runner",
        "def f():\n    from quintain.learning.batch import Batch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from quintain.interfaces.engine import Engine",
        "from importlib import import_module\nimport_module('quintain.registry.lookup')",
        "from quintain import planted",
        "from quintain.testing import *",
        "import quintain\nquintain.planted",
        "import quintain\nquintain.registry.lookup.load",
        "import quintain.testing as t\nt.planted",
    ],
)
@pytest.mark.parametrize("sample", ["plugins/planted", "environments/planted", "examples/planted"])
def test_sample_that_imports_a_private_module_is_found(sample: str, text: str, copy: Path, plant: Plant) -> None:
    """Plugins, environments and examples use public names of public modules, as anyone else's code."""
    (copy / sample / "src").mkdir(parents=True)
    plant(f"{sample}/src/planted.py", text)

    assert new("member_imports", copy)


def test_sample_that_imports_public_names_passes(copy: Path, plant: Plant) -> None:
    """Names in the `__all__` of a public module, however imported."""
    (copy / "plugins" / "planted" / "src").mkdir(parents=True)
    text = "import quintain\nfrom quintain import Task, testing\nfrom quintain.learning import Learner\nimport torch"
    plant("plugins/planted/src/planted.py", f"{text}\nquintain.Task, testing.rollout, quintain.learning.Learner")

    assert not new("member_imports", copy)


def test_public_module_without_all_is_found(copy: Path, plant: Plant) -> None:
    """What a public module offers is written down."""
    file = copy / "core" / "quintain" / "testing" / "__init__.py"
    file.write_text(file.read_text().replace("__all__", "everything"))

    assert ["quintain.testing has no __all__"] == new("undeclared_exports", copy)
