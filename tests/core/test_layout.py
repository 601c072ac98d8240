"""The rules of the source layout (`tools/layout.py`) hold for this checkout, and each finds a
planted violation.
"""

from __future__ import annotations

import ast
import importlib
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..tools import load_tool

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parents[2]


layout = load_tool("layout")
sources = importlib.import_module("sources")  # beside it


@cache
def checkout_here() -> Any:
    """The sources of this checkout, read and parsed once."""
    return layout.read(ROOT)


@pytest.fixture
def checkout() -> Any:
    return checkout_here()


@pytest.mark.parametrize("rule", layout.RULES)
def test_rule_holds(rule: str, checkout: Any) -> None:
    """No rule has a violation."""
    violations = layout.RULES[rule](checkout)

    if violations:
        pytest.fail("\n".join([f"{rule}: {len(violations)} violations", *violations]))


# ---------------------------------------------------------------- each rule finds what is planted
class Planted:
    """The sources of the checkout, with text added to some files of it."""

    def __init__(self, checkout: Any) -> None:
        self.checkout = checkout

    def add(self, path: str, text: str) -> None:
        """Append *text* to a file, or write a new one; nothing is written to the disk."""
        base = ROOT / path.partition("/src/")[0] / "src" if "/src/" in path else ROOT
        base = ROOT / "core" if path.startswith("core/") else base
        kind = {"core": "package", "plugins": "members", "environments": "members"}
        kind |= {"examples": "members"}
        field = kind.get(path.partition("/")[0], "scripts")
        modules = getattr(self.checkout, field)
        module = sources.module_of(ROOT / path, base, f"{text}\n")
        if module.name in modules:
            before = modules[module.name]
            module = replace(before, text=f"{before.text}\n{module.text}")
        self.checkout = replace(self.checkout, **{field: {**modules, module.name: module}})
        if field == "package":
            top = path.removeprefix("core/quintain/").partition("/")[0]
            self.add_to_top(top)

    def change(self, path: str, before: str, after: str) -> None:
        """Replace *before* in a file of the package."""
        name = path.removeprefix("core/").removesuffix(".py").replace("/", ".")
        module = self.checkout.package[name]
        changed = replace(module, text=module.text.replace(before, after, 1))
        package = {**self.checkout.package, name: changed}
        self.checkout = replace(self.checkout, package=package)

    def add_to_top(self, name: str) -> None:
        """Let a file or folder lie directly in the package."""
        self.checkout = replace(self.checkout, top=self.checkout.top | {name})

    def declare(self, package: str, **changes: Any) -> None:
        """Change what the distribution of *package* declares, or add one that depends on the
        package alone.
        """
        before = self.checkout.projects.get(package)
        if before is None:
            before = sources.Project(
                name=package.replace("_", "-"),
                folder=ROOT / "plugins" / package,
                package=package,
                dependencies=sources.requirements(["quintain"]),
                extras={},
                entry_points=(),
            )
        projects = {**self.checkout.projects, package: replace(before, **changes)}
        self.checkout = replace(self.checkout, projects=projects)

    def new(self, rule: str) -> list[str]:
        """Violations that the checkout itself does not have."""
        found = layout.RULES[rule](self.checkout)
        return [violation for violation in found if violation not in standing(rule)]


@pytest.fixture
def planted(checkout: Any) -> Planted:
    return Planted(checkout)


@cache
def standing(rule: str) -> frozenset[str]:
    """The violations of the checkout, found once for all plants."""
    return frozenset(layout.RULES[rule](checkout_here()))


LATE = "def planted():\n    from {} import {}"
TYPE_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import {}"
BY_CALL = "import importlib\ndef planted():\n    return importlib.import_module('quintain.{1}')"
BY_ALIAS = "from importlib import import_module as load\nload('quintain.{1}')"
BY_GETATTR = "import importlib as i\ngetattr(i, 'import_module')('quintain.{1}')"
BY_PKGUTIL = "import pkgutil\npkgutil.resolve_name('quintain.{1}:planted')"
BY_TABLE = "from sys import modules as loaded\nloaded['quintain.{1}']"
BY_TABLE_GET = "import sys\nsys.modules.get('quintain.{1}')"
FORMS = {
    "eager": "from {} import {}",
    "late": LATE,
    "typed": TYPE_ONLY,
    "call": BY_CALL,
    "alias": BY_ALIAS,
    "getattr": BY_GETATTR,
    "pkgutil": BY_PKGUTIL,
    "table": BY_TABLE,
    "table_get": BY_TABLE_GET,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "path, module",
    [
        ("types/task.py", "interfaces"),
        ("rollouts/runner.py", "run"),
        ("learning/batch.py", "evaluation"),
        ("registry/known.py", "tasks"),
        ("run/run.py", "testing"),
        ("errors.py", "types"),
    ],
)
def test_upward_import_is_found(path: str, module: str, form: str, planted: Planted) -> None:
    """Neither an import of a higher layer nor one of a sibling escapes, however late it is or for
    whom.
    """
    dots = "." * (path.count("/") + 1)
    planted.add(f"core/quintain/{path}", form.format(dots, module))

    (found,) = planted.new("layers")

    source = path.removesuffix(".py").replace("/", ".")
    assert found.startswith(f"quintain.{source}:")
    assert f"imports quintain.{module}" in found


def test_import_of_the_root_is_found(planted: Planted) -> None:
    """The root's lazy names are for users; inside the package only its two constants may be
    imported.
    """
    planted.add("core/quintain/models/load.py", "from .. import API_VERSION, __version__")
    assert not planted.new("layers")

    planted.add("core/quintain/models/load.py", "def planted():\n    from quintain import Task")
    assert "reaches up" in planted.new("layers")[0]


def test_root_names_are_defined_there(checkout: Any) -> None:
    """What may be imported from the root is defined there, before anything is imported from the
    package.
    """
    root = checkout.package["quintain"]
    assigned = {layout.dotted(t) for n in root.top if isinstance(n, ast.Assign) for t in n.targets}

    assert (
        assigned | {n.name for n in root.top if isinstance(n, ast.FunctionDef)} >= layout.ROOT_NAMES
    )


def test_part_without_a_layer_is_found(planted: Planted) -> None:
    """A new folder or module at the top says where it belongs."""
    planted.add("core/quintain/misc.py", "")

    assert planted.new("layers") == ["quintain.misc has no layer"]
    assert planted.new("root_files") == ["quintain/misc.py"]


def test_folder_of_data_at_the_top_is_found(planted: Planted) -> None:
    """A folder without modules needs a place, too."""
    planted.add_to_top("planted")

    assert planted.new("root_files") == ["quintain/planted"]


def test_folder_of_a_move_is_none(tmp_path: Path) -> None:
    """What Python compiled stays where a folder was moved away; it is no part of the package."""
    package = tmp_path / "core" / "quintain"
    for file in ("moved/__pycache__/old.cpython-311.pyc", "moved/inner/__pycache__/old.pyc"):
        (package / file).parent.mkdir(parents=True)
        (package / file).touch()
    assert layout.read(tmp_path).top == frozenset()

    (package / "moved/data.json").touch()
    assert layout.read(tmp_path).top == {"moved"}


@pytest.mark.parametrize(
    "form", ["from {} import {}", LATE, TYPE_ONLY], ids="eager late typed".split()
)
@pytest.mark.parametrize(
    "folder, name",
    [
        ("core/quintain/run", "quintain.run"),
        ("plugins/judge/src/quintain_judge", "quintain_judge"),
        ("environments/chat/src/quintain_env_chat", "quintain_env_chat"),
        ("examples/planted/src/planted", "planted"),
    ],
)
def test_circle_is_found(folder: str, name: str, form: str, planted: Planted) -> None:
    """Three modules of one folder that import one another in a circle."""
    for here, there in ("ab", "bc", "ca"):
        planted.add(f"{folder}/planted_{here}.py", form.format(".", f"planted_{there}"))

    (circle,) = planted.new("cycles")

    assert circle == f"{name}.planted_a <-> {name}.planted_b <-> {name}.planted_c"


def test_circle_of_members_is_found(planted: Planted) -> None:
    """Two plugins that need each other are one, also where no two of their files form a circle."""
    planted.add("plugins/planted_a/src/planted_a/one.py", "from planted_b.two import planted")
    planted.add("plugins/planted_a/src/planted_a/other.py", "")
    planted.add("plugins/planted_b/src/planted_b/two.py", "")
    planted.add("plugins/planted_b/src/planted_b/more.py", "import planted_a.other")

    assert planted.new("cycles") == ["planted_a <-> planted_b"]


def test_components_of_a_graph() -> None:
    """Two circles that share a node are one component; a chain is none."""
    edges = {"a": "b", "b": "ac", "c": "b", "d": "a", "e": "f", "f": ""}

    found = layout.strong_components(edges)

    assert [{"a", "b", "c"}] == [c for c in found if len(c) > 1]
    assert sorted("abcdef") == sorted(node for c in found for node in c)


def test_run_that_names_a_learner_is_found(planted: Planted) -> None:
    """A run gets its learner from the registry."""
    planted.add("core/quintain/run/run.py", LATE.format("..", "learning"))

    assert planted.new("run_without_registry")


HIDDEN = [
    "import importlib\ndef planted(x):\n    return importlib.import_module(x)",
    "from importlib import import_module as load\nload(x)",
    "from importlib import import_module\nload = import_module",
    "import importlib.metadata as m\nm.import_module(f'quintain.{x}')",
    "import importlib\nvars(importlib)['import_module']('quintain.run')",
    "import importlib\ngetattr(importlib, x)('quintain.run')",
    "import importlib.util as u\nu.spec_from_file_location('a', 'b.py')",
    "__import__('quintain', fromlist=['run'])",
    "import builtins\nbuiltins.__import__(x)",
    "from importlib import import_module\nimport_module('.run', x)",
    "import pkgutil\npkgutil.resolve_name(x)",
    "import runpy\nrunpy.run_module('quintain.run')",
    "import sys\nsys.modules[x]",
    "import sys\nlist(sys.modules.values())",
    "import sys\ngetattr(sys, 'modules')[x]",
    "from sys import modules\nmodules.get(x)",
    "import sys\nlook(sys)",
    "exec('from quintain.run import Run')",
    "eval(x)",
    "import builtins\ngetattr(builtins, 'exec')(x)",
    "__builtins__['exec'](x)",
]
"""Each loads a module that the source does not name."""


@pytest.mark.parametrize("text", HIDDEN)
@pytest.mark.parametrize(
    "path",
    [
        "core/quintain/types/task.py",
        "plugins/planted/src/planted.py",
        "environments/planted/src/planted.py",
        "examples/planted/src/planted.py",
    ],
)
def test_computed_import_is_found(path: str, text: str, planted: Planted) -> None:
    """An import by a computed name would pass under every other rule."""
    planted.add(path, text)

    assert len(planted.new("computed_imports")) == 1


def test_import_that_the_source_names_is_no_computed_one(planted: Planted) -> None:
    """Other rules read these; to ask whether a module is there loads none."""
    planted.add(
        "plugins/planted/src/planted.py",
        "import importlib.metadata, importlib.util, sys\n"
        "importlib.import_module('json')\n"
        "importlib.import_module('.inner', __name__)\n"
        "importlib.util.find_spec(x)\n"
        "importlib.metadata.version(x)\n"
        "'torch' in sys.modules\n"
        "sys.modules['json'].dumps\n"
        "model.eval()\n"
        "sys.exit()",
    )

    assert not planted.new("computed_imports")


@pytest.mark.parametrize("library", ["numpy", "torch.nn", "click"])
@pytest.mark.parametrize(
    "path", ["types/rollout.py", "registry/lookup.py", "run/loop.py", "__init__.py"]
)
def test_library_in_the_base_is_found(path: str, library: str, planted: Planted) -> None:
    """The base imports no numeric library, not even inside a function."""
    planted.add(f"core/quintain/{path}", f"def planted():\n    import {library}")

    (found,) = planted.new("base_imports")

    assert f"imports {library}" in found


@pytest.mark.parametrize(
    "text",
    [
        "from ..models.head import token_logprobs",
        "from ..models import planted",  # a lazy name, which its module's import brings
        "from importlib import import_module\nimport_module('quintain.models.planted_two')",
        "class Planted:\n    import quintain.models.planted_two",
    ],
)
def test_module_that_brings_a_library_into_the_base_is_found(text: str, planted: Planted) -> None:
    """What the base imports of the package brings no numeric library either."""
    planted.add("core/quintain/models/planted_one.py", "import torch")
    planted.add("core/quintain/models/planted_two.py", "from . import planted_one")
    planted.add(
        "core/quintain/models/__init__.py",
        "if TYPE_CHECKING:\n    from .planted_two import planted as planted",
    )
    planted.add("core/quintain/run/loop.py", text)

    found = planted.new("base_loads")

    assert found
    assert all("quintain.run.loop" in line and "imports torch" in line for line in found)


@pytest.mark.parametrize("form", [LATE, TYPE_ONLY], ids="late typed".split())
def test_library_that_is_not_loaded_with_the_base_passes(form: str, planted: Planted) -> None:
    """Inside a function or for type checkers the base may name a module that needs torch."""
    planted.add("core/quintain/run/loop.py", form.format("..models", "head"))

    assert not planted.new("base_loads")


def test_comments_docstrings_and_line_ends_cost_nothing() -> None:
    """The size of code does not depend on how it is laid out or explained."""
    dense = "def f(a):\n    if (b := a.c): return [b, 1]\n"
    airy = '''
# Why.
def f(a):
    """Say what.

    And why.
    """
    if (  # a reason
        b := a.c
    ):

        return [b, 1]
'''

    assert 21 == len(layout.code_lines(dense)) == len(layout.code_lines(airy))
    assert len(layout.code_lines("x = 'no docstring'")) == 3


@pytest.mark.parametrize("neighbour", ["..run.planted_one", "..run.planted_two"])
def test_code_behind_the_reading_order_counts(neighbour: str, planted: Planted) -> None:
    """In a module that one of its files imports, and in one that is two imports away."""
    planted.add("core/quintain/run/planted_two.py", "a = 1\n" * 20_000)
    planted.add("core/quintain/run/planted_one.py", "from ..run.planted_two import a\n")
    assert not planted.new("large_reading")

    planted.add("core/quintain/run/loop.py", f"from {neighbour} import a")
    found = planted.new("large_reading")
    assert found
    assert all("quintain.run has most of them" in line for line in found)


def test_a_large_kernel_names_the_folder_and_the_way_out(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many tokens as the limit pass; more of them name the largest folder and what to do."""
    here = layout.tokens(layout.kernel(planted.checkout))
    monkeypatch.setattr(layout, "KERNEL_TOKENS", here + 30)
    planted.add("core/quintain/types/planted.py", "a = 1\n" * 10)
    assert not planted.new("large_kernel")

    planted.add("core/quintain/types/planted.py", "a = 1\n" * 20_000)
    (found,) = planted.new("large_kernel")
    assert "quintain.types has most of them" in found
    assert "simplify what a step needs" in found


def test_long_file_is_found(planted: Planted) -> None:
    """A file of 5,000 tokens passes, one more does not; comments do not count."""
    planted.add("core/quintain/models/planted.py", "a = 1  # one\n" * 1666 + "a\n" * 2)
    assert not planted.new("long_files")

    planted.add("core/quintain/models/planted.py", "a")
    (found,) = planted.new("long_files")
    assert "has 5,001 tokens" in found


def test_long_function_is_found(planted: Planted) -> None:
    """700 tokens pass beside any signature and docstring; one more does not."""
    head = "def planted(\n    a,\n    b,\n):\n    '''One.\n\n    Two.\n    '''\n"
    planted.add("core/quintain/models/planted_a.py", head + "    a\n" * 700)
    assert not planted.new("long_functions")

    planted.add(
        "core/quintain/models/planted_b.py",
        "class Planted:\n    async def planted(a):\n" + "        a\n" * 701,
    )
    (found,) = planted.new("long_functions")
    assert "planted has 701 tokens" in found


@pytest.mark.parametrize("folder", ["studies", "tools"])
def test_sizes_of_scripts_count(folder: str, planted: Planted) -> None:
    """The limits hold for what is not installed, too."""
    planted.add(f"{folder}/planted.py", "def planted():\n" + "    a = 1\n" * 2_000)

    (function,), (file,) = planted.new("long_functions"), planted.new("long_files")

    assert function.startswith(f"{folder}.planted:1 planted has")
    assert file.startswith(f"{folder}.planted has")


def test_virtual_environment_among_the_sources_is_left_out(tmp_path: Path) -> None:
    """Folders whose name begins with a dot hold none of our sources."""
    (tmp_path / "tools" / ".peers").mkdir(parents=True)
    (tmp_path / "tools" / ".peers" / "theirs.py").write_text("a = 1\n")
    (tmp_path / "tools" / "ours.py").write_text("a = 1\n")

    assert list(sources.modules(tmp_path / "tools", tmp_path)) == ["tools.ours"]


def test_class_defined_twice_is_found(planted: Planted) -> None:
    """One class name means one thing in the package, private and nested classes included."""
    planted.add("core/quintain/types/planted.py", "class _Planted:\n    pass")
    planted.add("core/quintain/run/planted.py", "def f():\n    class _Planted:\n        pass")

    (found,) = planted.new("repeated_classes")

    assert found.startswith("class _Planted: ")


@pytest.mark.parametrize("name", ["Engine", "Turn", "Run", "BestSandbox"])
def test_class_of_another_member_is_found(name: str, planted: Planted) -> None:
    """A plugin takes no class name that the package or another plugin gives a meaning."""
    planted.add("plugins/planted/src/planted.py", f"class {name}:\n    pass")

    found = planted.new("repeated_classes")

    assert any(line.startswith(f"class {name}: ") and "planted:1" in line for line in found)


def test_private_class_of_another_member_passes(planted: Planted) -> None:
    """A private class is known inside its member only, and has to be the only one there."""
    for member in "ab":
        planted.add(f"plugins/planted_{member}/src/planted_{member}/one.py", "class _Row: ...")
    assert not planted.new("repeated_classes")

    planted.add("plugins/planted_a/src/planted_a/two.py", "class _Row: ...")
    assert planted.new("repeated_classes") == ["class _Row: planted_a.one:1, planted_a.two:1"]


@pytest.mark.parametrize(
    "text",
    [
        "from {} import _planted",
        "from {} import _planted as planted",
        "import {}\n{}._planted",
        "import {} as other\ndef f():\n    return other._planted",
        "import {} as other\ngetattr(other, '_planted')",
        "from {}._planted import planted",
    ],
)
@pytest.mark.parametrize(
    "path, owner",
    [
        ("core/quintain/run/planted.py", "quintain.run.run"),
        ("plugins/judge/src/quintain_judge/planted.py", "quintain_judge.service"),
        ("plugins/judge/src/quintain_judge/planted.py", "quintain_tools.mcp.client"),
        ("environments/chat/src/quintain_env_chat/planted.py", "quintain_judge"),
    ],
)
def test_private_name_across_modules_is_found(
    path: str, owner: str, text: str, planted: Planted
) -> None:
    """A name with a leading underscore stays in its module, be the other one in the same member or
    in another.
    """
    planted.add(path, text.replace("{}", owner))

    assert planted.new("private_names")


def test_private_name_of_a_neighbour_is_found(planted: Planted) -> None:
    """Relative imports of private names, too."""
    planted.add("plugins/judge/src/quintain_judge/planted.py", "from . import service as s\ns._x")
    planted.add("core/quintain/run/planted.py", "from .run import _planted")

    uses, imported = sorted(planted.new("private_names"))[::-1]

    assert uses == "quintain_judge.planted:2 uses quintain_judge.service._x"
    assert imported == "quintain.run.planted:1 imports quintain.run.run._planted"


def test_private_names_of_others_pass(planted: Planted) -> None:
    """Names between double underscores and those of libraries are no business of the rule."""
    text = "import os, sys\nfrom quintain import __version__\nsys._getframe()\nos._exit(0)"
    planted.add("core/quintain/run/planted.py", text)
    planted.add("plugins/planted/src/planted.py", text)

    assert not planted.new("private_names")
    assert not planted.new("private_attributes")


@pytest.mark.parametrize(
    "text, owner",
    [
        ("session._episode.players", "session._episode"),
        ("s._episode._tasks", "s._episode"),
        ("def f(suite):\n    suite._started = {}", "suite._started"),
        ("def f(s):\n    return getattr(s, '_episode', None)", "s._episode"),
        ("from quintain import Task\nTask._planted", "Task._planted"),
        ("class A:\n    def f(self, other):\n        return other._theirs", "other._theirs"),
        ("class A:\n    def f(self):\n        return self._a._theirs", "self._a._theirs"),
    ],
)
@pytest.mark.parametrize(
    "path", ["core/quintain/run/planted.py", "environments/planted/src/planted.py"]
)
def test_private_attribute_of_a_foreign_object_is_found(
    path: str, text: str, owner: str, planted: Planted
) -> None:
    """An attribute with a leading underscore stays in the module that defines its class."""
    planted.add(path, text)

    found = {violation.rpartition(" ")[2] for violation in planted.new("private_attributes")}

    assert owner in found


def test_private_attributes_of_own_objects_pass(planted: Planted) -> None:
    """Of the object itself, of others of a class in the module, and of named tuples."""
    planted.add(
        "plugins/planted/src/planted.py",
        """
class A:
    _all = []

    def __init__(self):
        self._a = 1
        type(self)._all.append(self)
        super()._inherited
        self._inherited

    def __eq__(self, other):
        return self._a == other._a


def of(record):
    A._all
    return A()._a, record._replace(a=1)
""",
    )

    assert not planted.new("private_attributes")


@pytest.mark.parametrize(
    "call",
    [
        "operator.attrgetter('_theirs')",
        "operator.attrgetter('name', 'run._theirs')",
        "read('_theirs')",
        "operator.methodcaller('_theirs', 1)",
        "setattr(other, '_theirs', 1)",
        "hasattr(other, '_theirs')",
        "delattr(other, '_theirs')",
        "object.__setattr__(other, '_theirs', 1)",
    ],
)
def test_private_attribute_by_its_name_as_text_is_found(call: str, planted: Planted) -> None:
    """Functions that take the name of an attribute are no way around."""
    planted.add(
        "plugins/planted/src/planted.py",
        f"import operator\nfrom operator import attrgetter as read\ndef f(other):\n    {call}",
    )

    (found,) = planted.new("private_attributes")

    assert found == f"planted:4 uses {call}"


def test_own_private_attributes_by_text_pass(planted: Planted) -> None:
    """A frozen class sets its own so; public names are no business of the rule."""
    planted.add(
        "plugins/planted/src/planted.py",
        "from operator import attrgetter\nclass A:\n    def __post_init__(self):\n        "
        "object.__setattr__(self, '_a', 1)\nattrgetter('_a', 'public')\nhasattr(A(), '_a')",
    )

    assert not planted.new("private_attributes")


BASES = {
    "by name": "from planted_base import Base\nclass Sub(Base):",
    "by module": "import planted_base\nclass Sub(planted_base.Base):",
    "from its module": "from planted_base.inner.home import Base as B\nclass Sub(B):",
    "of parameters": "from planted_base import Base\nclass Sub(Base[int]):",
    "of a base": "from planted_base import Base\nclass Middle(Base): ...\nclass Sub(Middle):",
}
USES = {
    "self": ("def f(self):\n        return self._read", "_read"),
    "set": ("def f(self):\n        self._read = 1", "_read"),
    "cls": ("@classmethod\n    def f(cls):\n        return cls._listed", "_listed"),
    "super": ("def f(self):\n        super()._method()", "_method"),
    "getattr": ("def f(self):\n        getattr(self, '_read')", "_read"),
    "defined again": ("def _method(self): ...", "_method"),
    "declared again": ("_read: int", "_read"),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("use, name", USES.values(), ids=USES)
def test_private_state_of_a_base_class_is_found(
    base: str, use: str, name: str, planted: Planted
) -> None:
    """What a base class in another folder keeps to itself is not for its subclasses either."""
    planted.add(
        "plugins/planted_base/src/planted_base/__init__.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .inner import Base",
    )
    planted.add("plugins/planted_base/src/planted_base/inner/__init__.py", "from .home import Base")
    planted.add(
        "plugins/planted_base/src/planted_base/inner/home.py",
        "class Base:\n    _listed = ()\n    def __init__(self):\n        self._read = 0\n    "
        "def _method(self): ...",
    )
    planted.add("plugins/planted/src/planted.py", f"{base}\n    {use}")

    (found,) = planted.new("inherited_privates")

    assert found.endswith(f"uses Base.{name} in Sub")


def test_private_state_of_a_base_class_of_core_is_found(planted: Planted) -> None:
    """As a curriculum of one's own would use what `Mixture` keeps, which is imported lazily."""
    planted.add("core/quintain/tasks/mixture.py", "class Shuffle:\n    _planted = 1")
    planted.add(
        "core/quintain/tasks/__init__.py",
        "if TYPE_CHECKING:\n    from .mixture import Shuffle as Shuffle",
    )
    planted.add(
        "plugins/planted/src/planted.py",
        "from quintain.tasks import Shuffle\nclass Own(Shuffle):\n    def f(self):\n        "
        "return self._planted",
    )

    assert planted.new("inherited_privates") == ["planted:4 uses Shuffle._planted in Own"]


def test_private_state_of_a_base_class_beside_it_passes(planted: Planted) -> None:
    """The classes of a folder may share; a library's base is no business of the rule."""
    planted.add("plugins/planted/src/planted/base.py", "class Base:\n    _read = 1")
    planted.add(
        "plugins/planted/src/planted/sub.py",
        "from json import JSONDecoder\nfrom .base import Base\nclass Sub(Base, JSONDecoder):\n"
        "    def f(self):\n        return self._read, self._own",
    )

    assert not planted.new("inherited_privates")


# ---------------------------------------------------------------- what distributions declare
@pytest.mark.parametrize("form", ["import {}", "def f():\n    import {}"], ids=["eager", "late"])
@pytest.mark.parametrize(
    "library, distribution",
    [
        ("torch.nn", "torch"),
        ("PIL.Image", "pillow"),
        ("quintain_judge", "quintain-judge"),
        ("pydantic", "pydantic"),
    ],
)
def test_undeclared_import_is_found(
    library: str, distribution: str, form: str, planted: Planted
) -> None:
    """A dependency of a dependency leaves one day, also another member."""
    planted.add("plugins/planted/src/planted/__init__.py", form.format(library))
    planted.declare("planted")

    (found,) = planted.new("undeclared_imports")

    assert found.endswith(f"imports {library}: planted does not declare {distribution}")


def test_declared_imports_pass(planted: Planted) -> None:
    """By a dependency, by an extra, by an extra of the package, and the standard library."""
    planted.add(
        "plugins/planted/src/planted/__init__.py",
        "import json, pydantic_core, torch\nimport planted.inner\ndef f():\n    import PIL",
    )
    planted.declare(
        "planted",
        dependencies=sources.requirements(["quintain[train]>=0.1", "pydantic>=2"]),
        extras={"images": sources.requirements(["Pillow>=10"])},
    )

    assert not planted.new("undeclared_imports")
    assert not planted.new("unnamed_extras")


def test_undeclared_import_of_core_is_found(planted: Planted) -> None:
    """The package is a distribution like the others."""
    planted.add("core/quintain/store/planted.py", "def f():\n    import aiohttp")

    (found,) = planted.new("undeclared_imports")

    assert found.endswith("quintain does not declare aiohttp")


def plugin_with_extra(planted: Planted, module: str, extra: str) -> None:
    """Plant a distribution whose extra `pictures` has pillow, and whose component, in *module*,
    names *extra* in its manifest.
    """
    planted.add("plugins/planted/src/planted/__init__.py", "")
    planted.add("plugins/planted/src/planted/eager.py", "import PIL")
    planted.add("plugins/planted/src/planted/around.py", "from . import eager")
    planted.add("plugins/planted/src/planted/late.py", "def f():\n    from . import eager")
    entry_point = sources.EntryPoint("quintain.rewards", "neat", f"planted.{module}", extra)
    planted.declare(
        "planted",
        extras={"pictures": sources.requirements(["pillow"])},
        entry_points=(entry_point,),
    )


@pytest.mark.parametrize("module", ["eager", "around"])
def test_component_that_needs_an_extra_and_names_none_is_found(
    module: str, planted: Planted
) -> None:
    """Its import fails where the distribution is installed without extras."""
    plugin_with_extra(planted, module, "")

    (found,) = planted.new("unnamed_extras")

    assert found == ("quintain.rewards 'neat' of planted needs pillow: planted.eager:1 imports PIL")


@pytest.mark.parametrize("module, extra", [("around", "pictures"), ("late", "")])
def test_component_that_can_be_imported_passes(module: str, extra: str, planted: Planted) -> None:
    """With the extra that its manifest names, or because it imports when it is used."""
    plugin_with_extra(planted, module, extra)

    assert not planted.new("unnamed_extras")


def test_extra_that_does_not_exist_is_found(planted: Planted) -> None:
    """The message would name a pip line that installs nothing."""
    plugin_with_extra(planted, "late", "images")

    assert planted.new("unnamed_extras") == [
        "quintain.rewards 'neat' of planted names the extra 'images', which planted has not"
    ]


def test_package_that_needs_an_extra_is_found(planted: Planted) -> None:
    """Each component imports the package around it first."""
    planted.add("plugins/planted/src/planted/__init__.py", "import PIL")
    planted.declare("planted", extras={"pictures": sources.requirements(["pillow"])})

    assert planted.new("unnamed_extras") == ["package planted needs pillow: planted:1 imports PIL"]


def test_extra_of_another_member_is_found(planted: Planted) -> None:
    """What a module of another member needs has to be asked for, too, as an extra of it."""
    plugin_with_extra(planted, "late", "")
    planted.add("plugins/planted_user/src/planted_user/__init__.py", "import planted.around")
    planted.declare("planted_user", dependencies=sources.requirements(["planted"]))
    assert planted.new("unnamed_extras") == [
        "package planted_user needs pillow: planted.eager:1 imports PIL"
    ]

    planted.declare("planted_user", dependencies=sources.requirements(["planted[pictures]"]))
    assert not planted.new("unnamed_extras")


def test_module_that_no_extra_can_import_is_found(planted: Planted) -> None:
    """Who installs one extra gets the modules of that extra whole."""
    planted.add("plugins/planted/src/planted/__init__.py", "")
    planted.add("plugins/planted/src/planted/both.py", "import PIL, torch")
    extras = {"pictures": ["pillow"], "train": ["torch"]}
    planted.declare("planted", extras={k: sources.requirements(v) for k, v in extras.items()})

    assert planted.new("unreachable_modules") == [
        "planted.both cannot be imported with any one extra of planted"
    ]


@pytest.mark.parametrize("place", layout.ELSEWHERE)
def test_programs_of_other_interpreters_exist(place: str, checkout: Any) -> None:
    """What is left out of the rule about imports is there."""
    assert any(f"{name}.".startswith(f"{place}.") for name in checkout.installed)


@pytest.mark.parametrize("owners", [[], ["planted"]], ids=["nobody", "one"])
def test_kind_with_one_guest_is_found(owners: list[str], planted: Planted) -> None:
    """A new kind of component has two distributions that implement it."""
    discovery = "core/quintain/registry/discovery.py"
    planted.change(discovery, "GROUPS = {", "GROUPS = {'door': 'quintain.doors',")
    for owner in owners:
        planted.declare(owner, entry_points=(sources.EntryPoint("quintain.doors", "a", owner),))

    assert f"kind door: only {', '.join(owners) or 'nobody'} has components" in planted.new(
        "lonely_kinds"
    )


@pytest.mark.parametrize(
    "text, found",
    [
        ("from ..recipe.tables import StopTable", "imports quintain.recipe.tables.StopTable"),
        ("from ..recipe.tables import Recipe", "imports quintain.recipe.tables.Recipe"),
        ("def f(plan):\n    return plan.record['stop']", "uses plan.record"),
        ("def f(self):\n    return self.plan.record.get('stop')", "uses self.plan.record"),
        ("def f(plan):\n    record = plan.record", "uses plan.record"),
        ("def f(recipe):\n    return recipe.stop.steps", "uses recipe.stop"),
    ],
)
def test_raw_recipe_in_a_run_is_found(text: str, found: str, planted: Planted) -> None:
    """A run knows its plan."""
    planted.add("core/quintain/run/planted.py", text)

    (violation,) = planted.new("raw_recipe")

    assert f" {found}: " in violation


def test_recipe_that_is_handed_on_passes(planted: Planted) -> None:
    """As a whole, to those who store or show it."""
    planted.add(
        "core/quintain/run/planted.py",
        "def f(plan, recipe):\n    g(plan.record, recipe)\n    return {'recipe': plan.record}",
    )

    assert not planted.new("raw_recipe")


@pytest.mark.parametrize(
    "text",
    [
        "from quintain.types.task import Task",
        "from quintain.types import task",
        "import quintain.rollouts.runner",
        "def f():\n    from quintain.learning.batch import Batch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from quintain.interfaces.engine "
        "import Engine",
        "from importlib import import_module\nimport_module('quintain.registry.lookup')",
        "from quintain import planted",
        "from quintain.testing import *",
        "import quintain\nquintain.planted",
        "import quintain\nquintain.registry.lookup.load",
        "import quintain.testing as t\nt.planted",
    ],
)
@pytest.mark.parametrize("sample", ["plugins/planted", "environments/planted", "examples/planted"])
def test_sample_that_imports_a_private_module_is_found(
    sample: str, text: str, planted: Planted
) -> None:
    """Plugins, environments and examples use public names of public modules, as anyone else's
    code.
    """
    planted.add(f"{sample}/src/planted.py", text)

    assert planted.new("member_imports")


def test_sample_that_imports_public_names_passes(planted: Planted) -> None:
    """Names in the `__all__` of a public module, however imported."""
    text = (
        "import quintain\nfrom quintain import Task, testing\nfrom quintain.learning import "
        "Learner\nimport torch"
    )
    planted.add(
        "plugins/planted/src/planted.py",
        f"{text}\nquintain.Task, testing.rollout, quintain.learning.Learner",
    )

    assert not planted.new("member_imports")


def test_public_module_without_all_is_found(checkout: Any) -> None:
    """What a public module offers is written down."""
    learning = checkout.package["quintain.learning"]
    without = replace(learning, text=learning.text.replace("__all__", "everything"))
    changed = replace(checkout, package={**checkout.package, learning.name: without})

    assert layout.RULES["undeclared_exports"](changed) == ["quintain.learning has no __all__"]


@pytest.mark.parametrize(
    "text",
    [
        "from quintain_tools.mcp.stdio_wire import StdioWire",
        "from quintain_tools.mcp import stdio_wire",
        "import quintain_tools.mcp.stdio_wire",
        "import quintain_tools.mcp as m\nm.planted",
        "from quintain_tools.mcp import planted",
        "def f():\n    from quintain_tools.mcp.client import planted",
        "from importlib import import_module\nimport_module('quintain_tools.mcp.stdio_wire')",
    ],
)
def test_private_module_of_another_member_is_found(text: str, planted: Planted) -> None:
    """One plugin takes from another the names in the `__all__` of a module, as from the package."""
    planted.add("environments/planted/src/planted.py", text)

    assert planted.new("member_imports")


def test_public_names_of_another_member_pass(planted: Planted) -> None:
    """Names in the `__all__` of its package or of a module that has one."""
    planted.add(
        "environments/planted/src/planted.py",
        "import quintain_tools.mcp\nfrom quintain_tools.mcp import Mcp\nquintain_mcp.McpServer\n"
        "from quintain_tools.search.server import MAX_HITS\nfrom .planted_two import anything",
    )

    assert not planted.new("member_imports")


# ---------------------------------------------------------------- exceptions
def test_each_exception_has_a_day_and_a_reason() -> None:
    """Who meets one can tell whether it still holds."""
    for excepted in layout.EXCEPTIONS.values():
        for reason in excepted.values():
            day, why = reason.split(": ", 1)
            assert date.fromisoformat(day)
            assert len(why.split()) >= 3


def test_exceptions_are_for_rules_that_there_are() -> None:
    """A rule that has another name now takes its exceptions along."""
    assert set(layout.EXCEPTIONS) <= set(layout.RULES)


def test_exception_that_nothing_needs_is_found(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception goes with what it is for; the line where that stands does not matter."""
    text = "quintain.planted_one imports what its source does not name"
    standing("computed_imports")  # read and kept before the exception is planted
    known = layout.EXCEPTIONS["computed_imports"]
    monkeypatch.setitem(
        layout.EXCEPTIONS, "computed_imports", {**known, text: "2026-11-23: a planted one"}
    )
    assert planted.new("computed_imports") == [
        f"no longer so, so that its exception can go: {text}"
    ]

    planted.add("core/quintain/planted_one.py", "\n\nexec(x)")
    assert not planted.new("computed_imports")
