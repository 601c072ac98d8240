"""Names to components: found in metadata, loaded once, and a failure says whose it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.errors import PluginError, UnknownNameError
from quintain.registry.discovery import GROUPS, Component, discover
from quintain.registry.lookup import Registry, current, isolated
from quintain.registry.pieces import find
from quintain_authoring.devtools.listing import kind_of


def component(
    name: str, target: str = "json:loads", distribution: str = "one", **more: str
) -> Component:
    return Component(
        kind=more.pop("kind", "reward"), name=name, target=target, distribution=distribution, **more
    )  # type: ignore[arg-type]


def install(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n\nName: not-this\n"
    )
    (info / "entry_points.txt").write_text(entry_points)


def test_core_is_found_through_the_same_door() -> None:
    """Core's own components are entry points, marked as built in."""
    found = {(c.kind, c.name): c for c in discover()}

    assert found["algorithm", "grpo"].origin == "built-in"
    assert found["learner", "torch"].distribution == "quintain"


def test_discovery_reads_metadata_once_per_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy on the path wins; a stale one further down is not seen; odd spellings of a
    name are one name.
    """
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, target in ((first, "new:thing"), (second, "old:thing")):
        folder.mkdir()
        install(
            folder,
            "Odd.Name_x" if folder is first else "odd-name-x",
            f"[quintain.rewards]\nodd = {target} [extra]\n",
        )
    monkeypatch.setattr(sys, "path", [str(first), str(second)])

    assert [(c.name, c.target, c.distribution) for c in discover()] == [
        ("odd", "new:thing", "odd-name-x")
    ]


def test_a_distribution_without_components_hides_a_later_one_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for an import."""
    for name, points in (("a", ""), ("b", "[quintain.rewards]\nold = old:thing\n")):
        (tmp_path / name).mkdir()
        install(tmp_path / name, "plugin", points)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])

    assert [*discover()] == []


def test_other_entry_points_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Console scripts and unknown groups of ours are no components."""
    install(
        tmp_path,
        "mixed",
        "[console_scripts]\nx = a:b\n[quintain.future]\ny = a:b\n[quintain.rewards]\nCaseD.x = "
        "a:b\n",
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert [c.name for c in discover()] == ["CaseD.x"]


@pytest.mark.parametrize("text", ["environment", "Environments", "quintain.environments"])
def test_kinds_are_singular_or_plural(text: str) -> None:
    """People type either."""
    assert kind_of(text) == "environment"


def test_unknown_kind() -> None:
    """A misspelled kind shows the nearest."""
    with pytest.raises(UnknownNameError, match="did you mean 'reward"):
        kind_of("rewadrs")


def test_load_imports_once_and_late() -> None:
    """Nothing is imported before it is asked for."""
    sys.modules.pop("this", None)
    registry = Registry([component("ok"), component("zen", target="antigravity_is_not_here:x")])

    assert registry.load("reward", "ok") is registry.load("reward", "one/ok")
    assert registry.load("reward", "ok").__name__ == "loads"


def test_clash_names_both_owners() -> None:
    """A bare name that two distributions use is an error; with the distribution it always works."""
    registry = Registry(
        [component("same"), component("same", "json:dumps", "two"), component("other")]
    )

    with pytest.raises(
        PluginError, match="claimed by one and two; say which: 'one/same' or 'two/same'"
    ):
        registry.load("reward", "same")
    assert registry.load("reward", "Two/same").__name__ == "dumps"
    assert registry.load("reward", "other").__name__ == "loads"


def test_same_name_of_another_kind_is_no_clash() -> None:
    """Names are per kind."""
    registry = Registry([component("x"), component("x", kind="service", distribution="two")])

    assert registry.load("service", "x") is registry.load("reward", "x")


@pytest.mark.parametrize("name, near", [("okk", "'ok'"), ("onee/ok", "'one/ok'")])
def test_unknown_name(name: str, near: str) -> None:
    """The nearest known name and where to see them all."""
    with pytest.raises(
        UnknownNameError, match=rf"did you mean {near}\? `quintain list reward` shows all"
    ):
        Registry([component("ok")]).load("reward", name)


@pytest.mark.parametrize(
    "target, cause, fix",
    [
        ("not_installed_at_all:x", PluginError, "correct the entry point or install it again"),
        ("json:no_such_name", AttributeError, "upgrade one"),
    ],
)
def test_broken_component_names_owner_cause_and_fix(
    target: str, cause: type[Exception], fix: str
) -> None:
    """The original exception is chained; the message names distribution, target and the next
    step.
    """
    registry = Registry([component("bad", target, version="2.0"), component("good")])

    with pytest.raises(PluginError, match="reward 'bad' of one 2.0 cannot be loaded") as e:
        registry.load("reward", "bad")

    assert isinstance(e.value.__cause__, cause)
    assert target.partition(":")[0] in str(e.value)
    assert fix in str(e.value)
    assert registry.load("reward", "good")


def test_plugin_that_exits_does_not_take_us_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.exit` while importing is a broken plugin."""
    (tmp_path / "exits_on_import.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(PluginError, match="SystemExit: 3"):
        Registry([component("bad", "exits_on_import:x")]).load("reward", "bad")


def test_explicit_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:Attribute` works from the working directory, as scripts need, and leaves the path as
    it was.
    """
    (tmp_path / "my_script_module.py").write_text("class Thing:\n    class Inner: ...\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    assert current().load("environment", "my_script_module:Thing.Inner").__name__ == "Inner"
    assert before == sys.path


@pytest.mark.parametrize(
    "name",
    [
        "arithmetic",
        "quintain-env-math/arithmetic",
        "others/arithmetic",
    ],
)
def test_a_name_of_a_known_plugin_that_is_not_installed(name: str) -> None:
    """The pip line of a known plugin is in the error, also for its qualified names, but not for
    those of others.
    """
    with pytest.raises(UnknownNameError) as e:
        Registry([component("only")]).find("environment", name)
    assert ("pip install quintain-env-math" in str(e.value)) == (not name.startswith("others"))


def test_isolated() -> None:
    """Inside the block only what was given is installed; afterwards everything is back."""
    outside = current()
    with isolated(component("only"), keep=["Quintain"]) as registry:
        registry.add("reward", "mine", min)
        names = {c.name for c in current().components()}

        assert {"only", "mine", "grpo"} <= names
        assert "arithmetic" not in names
        assert min is current().load("reward", "mine")
    assert current() is outside


def test_local_object_hides_an_installed_one() -> None:
    """What a test registers is what it gets."""
    registry = Registry([component("x"), component("x", distribution="two")])
    registry.add("reward", "x", max)

    assert max is registry.load("reward", "x")


def test_a_known_plugin_that_is_not_installed() -> None:
    """The error for an algorithm of this repository names its distribution; that for a piece names
    those with more.
    """
    with isolated(keep=["quintain"]):
        with pytest.raises(
            UnknownNameError, match="'cispo' is in a plugin .*: pip install quintain-algorithms"
        ):
            current().load("algorithm", "cispo")
        with pytest.raises(
            UnknownNameError, match="more come with: pip install quintain-algorithms"
        ):
            find("objective", "no_such_objective")


def test_groups_are_the_contract() -> None:
    """The names of the entry-point groups are part of the public contract."""
    assert GROUPS == {
        "environment": "quintain.environments",
        "reward": "quintain.rewards",
        "algorithm": "quintain.algorithms",
        "engine": "quintain.engines",
        "learner": "quintain.learners",
        "cluster": "quintain.clusters",
        "curriculum": "quintain.curricula",
        "model": "quintain.models",
        "schedule": "quintain.schedules",
        "service": "quintain.services",
        "tool_format": "quintain.tool_formats",
        "command": "quintain.commands",
        "hooks": "quintain.plugins",
    }


@pytest.mark.parametrize(
    "words", ["doctor bad-one", "check bad-one", "eval bad-one --engine @oracle", "check one"]
)
def test_a_distribution_without_entry_points_is_named(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own name and, as `quintain new` prefixes it, by that of the component."""
    for name in ("bad_one", "quintain_one"):
        install(tmp_path, name, "")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(words.split()) == 2
    name = "bad-one" if "bad-one" in words else "quintain-one"
    assert (
        f"{name} is installed and declares no entry point of a group quintain.*"
        in capsys.readouterr().err
    )
