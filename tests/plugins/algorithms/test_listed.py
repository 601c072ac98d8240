"""Algorithms as components: listed without being imported, shown with all they set, compared with
one another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.errors import PluginError
from quintain.interfaces.algorithm import KL
from quintain.learning.algorithms import ALGORITHMS
from quintain.registry import parse_manifest
from quintain.registry.binding import bind
from quintain.registry.discovery import Component, discover
from quintain.registry.lookup import Registry, isolated
from quintain_authoring.devtools.describe import Difference, differences, settings

from ...core.learning.algorithms import INSTALLED

DISTRIBUTIONS = ("quintain", "quintain-algorithms", "quintain-algorithms", "quintain-offline")
COMPONENTS = [c for c in discover() if c.kind == "algorithm" and c.distribution in DISTRIBUTIONS]


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    """What a command says with ``--json``."""
    assert status == main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


# ---------------------------------------------------------------- discovery
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: c.id)
def test_the_manifest_says_what_the_algorithm_says(component: Component) -> None:
    """A listing reads manifests; summary and source in them are the algorithm's own, and so is the
    name.
    """
    registry = Registry([component])
    algorithm, entry = registry.resolve(component), registry.entry(component)

    assert entry is not None
    assert algorithm.name == component.name
    assert algorithm.summary == entry.summary
    assert algorithm.source == entry.source


def test_every_algorithm_is_a_component() -> None:
    """Core's table has no algorithm that `algorithm.use` does not find, and the workspace has those
    of the plugins.
    """
    assert set(ALGORITHMS) == {c.name for c in COMPONENTS if c.distribution == "quintain"}
    assert {"cispo", "ppo", "trpo", "vineppo", "rft", "dpo", "dpo_norm", "simpo", "sft"} <= {
        c.name for c in COMPONENTS
    }


def test_listing_shows_every_algorithm_with_its_source_and_imports_none() -> None:
    """`quintain list algorithms --json`, in an interpreter that can tell what was imported."""
    program = (
        "import sys; from quintain.cli import main; main(['list', 'algorithms', '--json']); "
        "print([m for m in sys.modules if m.startswith(('torch', 'numpy', 'quintain.learning', "
        "'quintain.interfaces.algorithm', 'quintain_')) "
        "and m != 'quintain_authoring' and 'devtools' not in m], file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    listed = {c["name"]: c for c in json.loads(done.stdout)["components"]}
    assert {c.name for c in COMPONENTS} <= set(listed)
    assert all(listed[c.name]["summary"] and listed[c.name]["source"] for c in COMPONENTS)
    assert done.stderr.strip() == "[]"


def test_people_see_sources_of_what_has_some(capsys: pytest.CaptureFixture[str]) -> None:
    """A column for algorithms where it fits, else below the summary; tool formats have no paper."""
    main(["list", "algorithms"])
    out = capsys.readouterr().out
    assert "source" in out.splitlines()[0]
    assert "arXiv 2402.03300" in out
    main(["list", "tool_formats"])
    assert "source" not in capsys.readouterr().out.splitlines()[0]


def test_a_source_is_text() -> None:
    """Like every other key of a manifest."""
    head = 'api = 1\n[[components]]\nkind = "algorithm"\nname = "a"\nsummary = "A."\n'

    assert parse_manifest(head + 'source = "Who 2026"').components[0].source == "Who 2026"
    with pytest.raises(PluginError, match=r"`components\[1\].source` is 3; expected text"):
        parse_manifest(head + "source = 3")


@pytest.mark.more
def test_pieces_of_installed_algorithms_are_found_by_name() -> None:
    """Though nothing of `quintain.learning` or of a plugin is imported; and no installed name is
    that of a piece.
    """
    program = """
from quintain.registry.pieces import find
from quintain.errors import UnknownNameError
try:
    find("objective", "ppo_clipp")
except UnknownNameError as e:
    print("did you mean 'ppo_clip'" in str(e))
print(find("objective", "ppo_clip"), find("correction", "none").name, find("advantage", "advantage.ema").name)
print(find("optimizer_step", "natural"), find("aggregation", "winners"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert (done.stdout.splitlines()) == [
        "True",
        "objective.ppo_clip() none ema",
        "optimizer_step.natural() aggregation.winners()",
    ]
    assert not any("." in c.name for c in COMPONENTS)


# ---------------------------------------------------------------- algorithms as data
@pytest.mark.parametrize("name", INSTALLED)
def test_settings_make_the_algorithm_again(name: str) -> None:
    """What `settings` gives is what `Algorithm.replace` takes."""
    row = INSTALLED[name]
    again = INSTALLED["sft" if name != "sft" else "scalerl"].replace(**settings(row))

    assert settings(again) == settings(row)
    assert differences(again, row) == ()


def test_dapo_differs_from_grpo_in_these() -> None:
    """The algorithm in a list: clip-higher, token mean, no KL, dynamic sampling, overlong
    punishment.
    """
    found = {
        d.setting: (d.left, d.right) for d in differences(ALGORITHMS["dapo"], ALGORITHMS["grpo"])
    }

    assert found.pop("objective.high") == (0.28, None)
    assert found.pop("aggregation") == ({"use": "token"}, {"use": "sequence"})
    assert tuple(a["use"] for a in found.pop("group_filter")) == ("varied", "minimum")
    left, right = found.pop("kl")
    assert left is None
    assert right["where"] == "loss"
    assert right["estimator"] == "k3"
    assert right["coefficient"] == 0.04
    assert found.pop("plan.resample") == ("dynamic", "none")
    assert found == {"overlong": (0.2, 0.0)}


def test_what_does_nothing_is_no_difference() -> None:
    """The ratio_to of an objective without a ratio, and how a KL term is estimated that is off."""
    rloo = ALGORITHMS["rloo"]

    assert differences(rloo.replace(ratio_to="mu"), rloo) == ()
    assert differences(rloo.replace(kl=KL(where="loss", estimator="k3")), rloo) == ()
    assert tuple(
        d.setting
        for d in differences(ALGORITHMS["dr_grpo"].replace(advantage="leave_one_out"), rloo)
    ) == ("objective",)


def test_differences_mirror() -> None:
    """Read from the other side they are the same ones."""
    for a, b in permutations(INSTALLED.values(), 2):
        swapped = tuple(
            Difference(setting=d.setting, left=d.right, right=d.left) for d in differences(b, a)
        )
        assert set(map(str, differences(a, b))) == set(map(str, swapped)), (a.name, b.name)


def test_services_of_a_served_algorithm_are_no_settings() -> None:
    """What a slot holds is the run's affair."""
    algorithm = ALGORITHMS["grpo"]

    assert settings(algorithm) == settings(algorithm.with_services({}))
    assert "services" in settings(algorithm)


# ---------------------------------------------------------------- info
def test_info_shows_all_that_an_algorithm_sets(capsys: pytest.CaptureFixture[str]) -> None:
    """Pieces with their arguments and what those mean, KL, plan, what the paper sampled with,
    notes.
    """
    (found,) = told(capsys, "info", "grpo")["components"]
    fields = {f["name"]: f for f in found["fields"]}

    assert found["source"] == "Shao et al. 2024, arXiv 2402.03300"
    assert fields["objective"]["default"] == "ppo_clip"
    assert tuple(fields["objective.low"][k] for k in ("default", "type", "doc")) == (
        0.2,
        "float",
        "below 1.",
    )
    assert fields["kl.coefficient"]["default"] == 0.04
    assert fields["plan.resample"]["default"] == "none"
    assert None is fields["optimizer_step"]["default"]
    assert settings(ALGORITHMS["grpo"])["objective"] == found["settings"]["objective"]
    assert ALGORITHMS["grpo"].published == found["published"]
    assert list(ALGORITHMS["grpo"].notes()) == found["notes"] != []


def test_info_of_an_algorithm_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as a table."""
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["info", "grpo"]) == 0
    out = capsys.readouterr().out

    for expected in (
        "source: Shao",
        "published with: group 64",
        "note: k3 in the loss",
        "objective.low",
        "0.2",
        "KL k3 in",
    ):
        assert expected in out
    assert '[algorithm]\nuse = "grpo"' in out


@pytest.mark.parametrize(
    "name", ["objective.ppo_clip", "ppo_clip", "quintain/objective.ppo_clip", "algorithm:ppo_clip"]
)
def test_info_of_a_piece(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """By its own name, too, where no algorithm has it; and how a recipe takes it."""
    assert main(["info", name]) == 0
    out = capsys.readouterr().out

    assert "objective.ppo_clip" in out
    assert '[algorithm.args.objective]\nuse = "ppo_clip"' in out


def test_a_name_of_an_algorithm_and_a_piece_is_the_algorithm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``cispo`` is what `algorithm.use` takes."""
    assert [c["name"] for c in told(capsys, "info", "cispo")["components"]] == ["cispo"]


def test_info_against(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what differs, for programs and for people."""
    found = told(capsys, "info", "dapo", "--against", "cispo")
    assert found["left"]["name"] == "dapo"
    assert found["right"]["name"] == "cispo"
    expected = differences(ALGORITHMS["dapo"], INSTALLED["cispo"])
    assert [d.setting for d in expected] == [d["setting"] for d in found["differences"]]
    assert "active" not in json.dumps(found)

    monkeypatch.setenv("COLUMNS", "200")
    main(["info", "dapo", "--against", "cispo"])
    out = capsys.readouterr().out
    assert "ppo_clip (low 0.2, high 0.28)" in out
    assert "cispo (cap 5)" in out
    assert "aggregation" not in out
    main(["info", "dapo", "--against", "dapo"])
    assert "They do the same." in capsys.readouterr().out


def test_info_against_what_is_no_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error that says what was wanted; a broken one is a failure."""
    for name in ("workers", "objective.ppo_clip"):
        error = told(capsys, "info", "grpo", "--against", name, status=2)["error"]["message"]
        assert f"--against compares whole algorithms, and {name!r} is none" in error
    assert (
        "did you mean 'cispo'"
        in told(capsys, "info", "grpo", "--against", "cispoo", status=2)["error"]["message"]
    )
    broken = Component(kind="algorithm", name="broken", target="no_such_module:X", distribution="d")
    with isolated(broken, keep=["quintain", "quintain-authoring"]):
        assert (
            "no_such_module"
            in told(capsys, "info", "grpo", "--against", "broken", status=1)["error"]["message"]
        )


def test_info_of_an_algorithm_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A file needs no packaging, and no manifest to have a summary."""
    file = tmp_path / "gentle.py"
    file.write_text(
        "from quintain.learning.algorithms import GRPO\n"
        "GENTLE = GRPO.replace(name='gentle', summary='Clips early.', source='me', "
        "objective={'low': 0.05})\n"
    )
    (found,) = told(capsys, "info", f"{file}:GENTLE")["components"]
    assert found["kind"] == "algorithm"
    assert found["summary"] == "Clips early."
    assert found["source"] == "me"
    assert found["settings"]["objective"]["low"] == 0.05

    against = told(capsys, "info", f"algorithm:{file}:GENTLE", "--against", "grpo")["differences"]
    assert [(d["setting"], d["left"], d["right"]) for d in against] == [
        ("objective.low", 0.05, 0.2)
    ]


@pytest.mark.usefixtures("own_pieces")
def test_a_file_is_imported_once_for_its_algorithm_and_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second copy would claim the same names again; another file of that name is another
    module.
    """
    source = (
        "from quintain import objective\nfrom quintain.learning.algorithms import GRPO\n\n"
        "@objective\ndef NAME(t):\n    return t.logp\n\n"
        "ALGORITHM = GRPO.replace(name='row', objective=NAME)\n"
    )
    files = {name: tmp_path / name / "method_of_mine.py" for name in ("steep", "steeper")}
    for name, file in files.items():
        file.parent.mkdir()
        file.write_text(source.replace("NAME", name))
    registry = Registry([])
    for name, file in files.items():
        algorithm = registry.load("algorithm", f"{file}:ALGORITHM")
        assert algorithm.objective is registry.load("environment", f"{file}:ALGORITHM").objective
        assert algorithm.objective is bind(algorithm, {"objective": f"{file}:{name}"}).objective
        assert name == algorithm.objective.name
    for module in ("method_of_mine", "quintain_file_method_of_mine"):
        monkeypatch.delitem(sys.modules, module)
