"""What `list`, `info` and `doctor` print fits on a screen of 80 columns."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pytest

from quintain.cli import main
from quintain.registry import current
from quintain_authoring.devtools.docstrings import parameter_docs, plain
from quintain_authoring.devtools.doctor import print_findings, print_sections
from quintain_authoring.devtools.host import section
from quintain_authoring.devtools.listing import SECTIONS
from quintain_authoring.devtools.plugin_checks import Finding
from quintain_authoring.devtools.sections import Section


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colours."""
    for name, value in {
        "COLUMNS": "80",
        "TTY_COMPATIBLE": "1",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }.items():
        monkeypatch.setenv(name, value)


def listed(text: str) -> dict[str, int]:
    """Kinds and numbers of names that a listing shows."""
    return {kind: int(count) for kind, count in re.findall(r"^  (\w+) \((\d+)\) ", text, re.M)}


def test_list_shows_the_kinds_that_a_user_picks_from(capsys: pytest.CaptureFixture[str]) -> None:
    """All names of a kind, with their number, in sections; `--all` shows every kind, and `list KIND`
    the summaries.
    """
    counts = Counter(component.kind for component in current().components())
    picked = set(chain.from_iterable(SECTIONS.values()))

    assert main(["list"]) == 0
    short = capsys.readouterr().out
    assert main(["list", "--all"]) == 0
    whole = capsys.readouterr().out
    main(["list", "environments"])

    assert listed(short) == {kind: n for kind, n in counts.items() if kind in picked}
    assert listed(whole) == counts
    assert "Sums, differences and products" in capsys.readouterr().out


def test_list_fits_a_terminal(capsys: pytest.CaptureFixture[str], screen: None) -> None:
    """Names are wrapped below each other."""
    with patch("sys.stdout.isatty", return_value=True):
        assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 46


def test_list_into_a_pipe_has_one_line_per_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """`grep` finds a name with its kind; no line ends with blanks that fill a table."""
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("  environment")]
    main(["list", "environments"])
    print_sections(
        [
            Section(
                name="host",
                seconds=0.0,
                columns=("axis", "docker"),
                rows=(("files", "-"), ("network", "enforced")),
            )
        ]
    )
    lines += capsys.readouterr().out.splitlines()

    assert [line.rstrip() for line in lines] == lines

    assert {"arithmetic", "gsm8k", "tools"} <= set(re.findall(r"[\w-]+", line))


@pytest.mark.usefixtures("screen")
@pytest.mark.parametrize("name", ["dapo", "ppo", "grpo", "service:judge"])
def test_a_long_description_is_shortened_to_the_screen(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """What an algorithm is made of, or a line per setting; --all has every setting."""
    assert main(["info", name]) == 0
    short = capsys.readouterr().out.splitlines()
    assert main(["info", name, "--all"]) == 0
    whole = capsys.readouterr().out

    assert len(short) <= 25 < len(whole.splitlines())
    assert max(map(len, short)) <= 80
    assert re.fullmatch(rf"shortened: `quintain info {name} --all` has all \d+ settings", short[-1])
    assert "shortened" not in whole
    shown = [
        line.split()[0]
        for line in short
        if re.match(r"[a-z_.]+ +\S", line) and line.split()[0] in whole
    ]
    assert {"judge": "base_url"}.get(name.partition(":")[2], "objective") in shown


def test_a_description_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "dapo"]) == 0
    assert "plan.thinking_budget" in capsys.readouterr().out


@pytest.mark.usefixtures("screen")
def test_a_long_table_has_a_line_per_component(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "rewards"]) == 0
    short = capsys.readouterr().out.splitlines()
    assert main(["list", "rewards", "--all"]) == 0
    whole = capsys.readouterr().out

    names = [c.name for c in current().components("reward")]
    assert names == [line.split()[0] for line in short[:-1]]
    assert max(map(len, short)) <= 80
    assert "`--all` shows" in short[-1]
    assert "quintain-rewards" in whole
    assert len(whole.splitlines()) > len(short)


def test_the_host_is_described_without_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has neither /proc nor the affinity of a process."""
    monkeypatch.delattr("os.sched_getaffinity")
    exists = Path.exists
    monkeypatch.setattr(
        Path,
        "exists",
        lambda path, **k: not str(path).startswith(("/proc", "/sys")) and exists(path),
    )
    rows = {name: text for name, text in section()["rows"] if name in ("CPUs", "memory")}

    assert re.match(r"\d+ of \d+ usable", rows["CPUs"])
    assert re.fullmatch(r"\d+\.\d GiB in all", rows["memory"])


@pytest.mark.usefixtures("screen")
@pytest.mark.parametrize(
    "name", ["dapo", "arithmetic", "math_equal", "objective.cispo", "search", "workers", "hf"]
)
def test_info_has_no_marks_of_restructured_text(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Backquotes, stars and hard line breaks are the source's, not the reader's."""
    assert main(["info", name]) == 0
    out = capsys.readouterr().out

    assert "``" not in out
    assert not re.search(r"(?<![\w*\d ])\*\w+\*", out)
    assert max(map(len, out.splitlines())) <= 80


def test_a_description_of_several_lines_is_whole() -> None:
    """Also that of the only parameter, whose second line is indented deeper."""
    doc = "Sum.\n\n    Args:\n        cap: the ratio, 1 +\n            high; no lower clip.\n"

    assert parameter_docs(doc) == {"cap": "the ratio, 1 + high; no lower clip."}


def test_plain_text_of_a_docstring() -> None:
    """Paragraphs become lines; code keeps its lines."""
    doc = (
        "One ``two``\nand `three` of *four*::\n\n    a = 1\n    b = 2 * a * 3\n\n* an item\n* "
        "another"
    )

    assert (
        plain(doc)
        == "One two and three of four:\n\n    a = 1\n    b = 2 * a * 3\n\n* an item\n* another"
    )


@pytest.mark.usefixtures("screen")
def test_doctor_describes_the_host_and_shows_only_problems(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python, libraries, devices, CPUs, memory and disks first; rows of sound components with
    --all.
    """
    fine = Finding(kind="reward", id="d/fine", seconds=0.1, status="ok")
    broken = Finding(
        kind="reward", id="d/bad", seconds=0.1, status="error", message="no module 'x'"
    )

    print_sections(
        [Section(name="later", seconds=0.0), Section(name="host", seconds=0.0, **section())]
    )
    print_findings([fine, broken], every=False)
    out = capsys.readouterr().out
    host, summary = out.partition("later")[0], out.splitlines()[-1]

    for label in ("Python", "libraries", "device", "CPUs", "memory", "disk"):
        assert re.search(rf"^{label} +\S", host, re.M), host
    assert re.search(r"torch \d", host)
    assert max(map(len, host.splitlines())) <= 80
    assert "d/fine" not in out
    assert "error: reward d/bad: no module 'x'" in out
    assert summary == "1 of 2 components are fine, 1 broken (--all shows each)"
    print_findings([fine, broken], every=True)
    assert "d/fine" in capsys.readouterr().out


def test_a_tracker_shows_its_settings_and_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    """It is an instance, so that its settings are those of its class; hooks of every run have
    neither.
    """
    assert main(["info", "mlflow"]) == 0
    out = capsys.readouterr().out
    assert 'experiment    "quintain"  name of the experiment' in out
    assert '[[trackers]]\nuse = "mlflow"' in out
    assert main(["info", "alerts"]) == 0
    assert "In a recipe" not in capsys.readouterr().out
