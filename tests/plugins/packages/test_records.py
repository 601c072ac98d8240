"""Registries, what `quintain add` is given, and wheels that are not what a registry says."""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from quintain import InfrastructureError
from quintain.cli import main
from quintain.errors import PluginError, UnknownNameError, UsageError
from quintain.registry import KINDS, UNNAMED
from quintain_packages.installer import Sources, needed_by
from quintain_packages.ledger import Added, drop_environment, read_ledger, write_ledger
from quintain_packages.plan import make_plan
from quintain_packages.records import PluginRecord, find, read_registry, record_lines
from quintain_packages.remove import distribution_of
from quintain_packages.wanted import Wanted
from quintain_packages.wheel_file import WheelFile, check_contract, faults, overwritten

from .made_wheels import MANIFEST, POINTS, make_wheel, orchard, record

RECORD = PluginRecord(
    name="quintain-orchard", api=1, licence="MIT", provides=("environment:fruit",)
)


def test_ours_lists_this_repository(tmp_path: Path) -> None:
    """With the needs of the manifests. A record is read as it was written."""
    records = read_registry()
    assert find(records, "Quintain_Packages").needs == ("network",)
    assert {record.check for record in records} == {"tests"}
    written = "\n".join(line for record in records for line in record_lines(record))
    (tmp_path / "registry.toml").write_text(written)
    assert read_registry(str(tmp_path / "registry.toml")) == records


@pytest.mark.parametrize(
    "text, expected",
    [
        ("plugin = 1", "expected a list of tables"),
        ("[[plugin]]\nname =", "not TOML"),
        ('[[plugin]]\nname = "x"', r"1 \(x\): no key 'api'"),
        (record(hashs="[]"), "unknown key 'hashs'; did you mean 'hashes'"),
        (record(hashes='["md5:1"]'), "'md5:1' is no hash"),
        (record(check='"tested"'), "check is 'tested'; did you mean 'tests'"),
        (record(api='"1"'), "api is '1'; expected int"),
    ],
)
def test_a_faulty_registry_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "registry.toml").write_text(text)
    with pytest.raises(UsageError, match=expected):
        read_registry(str(tmp_path / "registry.toml"))


def test_a_registry_may_be_pinned(tmp_path: Path) -> None:
    """By the hash of the file, which an address may have, too."""
    path = tmp_path / "registry.toml"
    path.write_text(record())
    pin = f"#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert [r.name for r in read_registry(f"{path}{pin}")] == ["quintain-orchard"]
    assert [r.name for r in read_registry(f"{path.as_uri()}{pin}")] == ["quintain-orchard"]
    with pytest.raises(UsageError, match="was asked for"):
        read_registry(f"{path}#sha256={'0' * 64}")
    with pytest.raises(UsageError, match="use https"):
        read_registry("http://example.org/registry.toml")


def test_a_registry_at_an_address(tmp_path: Path) -> None:
    """It is read over HTTP on this machine; one that does not answer is named."""
    (tmp_path / "registry.toml").write_text(record())
    with served(tmp_path) as address:
        records = read_registry(f"{address}/registry.toml")
        assert [r.name for r in records] == ["quintain-orchard"]
        with pytest.raises(InfrastructureError, match="404"):
            read_registry(f"{address}/none.toml")
    with pytest.raises(InfrastructureError, match="refused"):
        read_registry(f"{address}/registry.toml")


def test_every_address_on_the_way_is_checked(tmp_path: Path) -> None:
    """A registry may be sent on to this machine, and not over an address that others can change,
    although the answer would come from this machine again.
    """
    (tmp_path / "registry.toml").write_text(record())
    with served(tmp_path) as last:
        with served(tmp_path, {"/r": f"{last}/registry.toml"}) as first:
            assert [r.name for r in read_registry(f"{first}/r")] == ["quintain-orchard"]
        # An address of this machine that is not among those that are allowed.
        on = {"/r": f"{last}/registry.toml"}
        with (
            served(tmp_path, on, "127.0.0.2") as between,
            served(tmp_path, {"/r": f"{between}/r"}) as first,
            pytest.raises(UsageError, match=f"{between}/r: anybody on the way can change it"),
        ):
            read_registry(f"{first}/r")


def test_a_wheel_without_a_hash_comes_over_https(tmp_path: Path) -> None:
    """Or from this machine; nothing is asked before."""
    place = "http://example.org/quintain_orchard-1.0-py3-none-any.whl"
    for wanted, listed in (
        (Wanted(name="quintain-orchard", url=place), None),
        (Wanted(name="quintain-orchard"), replace(RECORD, url=place)),
    ):
        with pytest.raises(UsageError, match="wheel http://example.org/.*use https"):
            make_plan(wanted, listed, Sources(no_index=True), tmp_path)


@contextmanager
def served(
    folder: Path, sent_on: Mapping[str, str] | None = None, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve *folder* on this machine; a path of *sent_on* is answered with its address."""

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if (place := (sent_on or {}).get(self.path)) is None:
                super().do_GET()
                return
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()

    with ThreadingHTTPServer((host, 0), partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_names_are_found_or_suggested() -> None:
    """A distribution, in any spelling, or the only one that has a component of the name."""
    other = replace(RECORD, name="quintain-basket", provides=("reward:fruit", "reward:plum"))
    assert find([RECORD, other], "Quintain.Orchard") is RECORD
    assert find([RECORD, other], "plum") is other
    with pytest.raises(UsageError, match="quintain-orchard, quintain-basket; name one"):
        find([RECORD, other], "fruit")
    with pytest.raises(UnknownNameError, match="did you mean 'quintain-orchard'"):
        find([RECORD], "quintain-orchid")


def test_what_add_is_given(tmp_path: Path) -> None:
    wheel = orchard(tmp_path)
    assert Wanted.parse("fruit") == Wanted(name="fruit")
    assert Wanted.parse("fruit == 1.0") == Wanted(name="fruit", version="1.0")
    direct = Wanted(name="fruit", url=wheel.as_uri())
    assert Wanted.parse(f"fruit @ {wheel}") == direct
    digest = "a" * 64
    assert Wanted.parse(f"fruit @ {wheel}#sha256={digest}").sha256 == f"sha256:{digest}"
    for wrong in ("fruit>=1", "", "fruit @ nowhere.whl", f"fruit @ {wheel}#md5=1"):
        with pytest.raises(UsageError):
            Wanted.parse(wrong)


def test_a_sound_wheel_has_no_faults(tmp_path: Path) -> None:
    """It says the same of itself, and only what is named runs."""
    wheel = WheelFile(orchard(tmp_path))
    assert faults(wheel, RECORD) == []
    assert faults(wheel, wheel.own_record()) == []
    assert (wheel.runs_unasked(), wheel.programs()) == ([], [])


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"name": "quintain-basket"}, "its name is 'quintain-orchard'"),
        ({"version": "2.0"}, "its version is '1.0', and the registry says '2.0'"),
        ({"licence": "GPL-3.0"}, "its licence is 'MIT'"),
        ({"provides": ()}, "its manifest has environment fruit alone"),
        ({"provides": ("environment:fruit", "reward:x")}, "the registry has reward x alone"),
    ],
)
def test_a_wheel_is_what_the_registry_says(
    changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    (fault,) = faults(WheelFile(orchard(tmp_path)), replace(RECORD, **changes))  # type: ignore[arg-type]
    assert expected in fault


def test_a_wheel_hides_nothing(tmp_path: Path) -> None:
    """A component without a row in the manifest, and a need that the registry does not say."""
    hooks = POINTS + "\n[quintain.plugins]\nspy = quintain_orchard\n"
    hidden = WheelFile(orchard(tmp_path / "a", points=hooks))
    assert faults(hidden, RECORD) == ["its entry points have hooks spy alone"]
    needy = WheelFile(orchard(tmp_path / "b", manifest=MANIFEST + 'needs = ["network"]\n'))
    assert faults(needy, RECORD) == ["it needs network, which the registry does not say"]
    bare = WheelFile(make_wheel(tmp_path / "c", "quintain-orchard", {"x/__init__.py": ""}))
    assert "every plugin has quintain.toml" in faults(bare, RECORD)[0]
    newer = WheelFile(orchard(tmp_path / "d", manifest=MANIFEST.replace("api = 1", "api = 2")))
    assert "`api` is 2, and this Quintain speaks 1" in faults(newer, RECORD)[0]


def test_what_runs_unasked_is_said(tmp_path: Path) -> None:
    """Hooks, plugins of pytest, and files that every start of Python reads."""
    points = POINTS + "[quintain.plugins]\nspy = q\n[pytest11]\np = q\n[console_scripts]\nc = q:m\n"
    wheel = WheelFile(orchard(tmp_path, points=points, more={"spy.pth": "import os"}))
    assert wheel.runs_unasked() == [
        "hooks spy in every run",
        "spy.pth at every start of Python",
        "p in every run of pytest",
    ]
    assert wheel.programs() == ["c"]


@pytest.mark.parametrize("kind", UNNAMED)
def test_each_kind_that_nobody_names_is_said(kind: str, tmp_path: Path) -> None:
    """Renderers and adapters, for one, are taken because they are installed."""
    (group,) = (group for group, one in KINDS.items() if one == kind)
    wheel = WheelFile(orchard(tmp_path, points=f"{POINTS}[{group}]\nspy = q\n"))
    assert wheel.runs_unasked() == [f"{kind} spy {UNNAMED[kind]}"]


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    """Modules, also those that a wheel keeps apart, and programs; a folder may be shared."""
    more = {
        "shared/new.py": "",
        "quintain_orchard-1.0.data/purelib/taken.py": "",
        "quintain_orchard-1.0.data/scripts/python": "",
    }
    points = POINTS + "[console_scripts]\nquintain = quintain_orchard:main\nnew = x:y\n"
    wheel = WheelFile(orchard(tmp_path / "wheels", points=points, more=more))
    packages, programs = tmp_path / "packages", tmp_path / "bin"
    for path in (packages / "shared", programs):
        path.mkdir(parents=True)
    for path in (packages / "taken.py", programs / "python", programs / "quintain"):
        path.write_text("")
    assert overwritten(wheel, folders_at(packages, programs)) == ["taken.py", "python", "quintain"]


@pytest.mark.parametrize(
    "name",
    [
        "quintain_orchard-1.0.data/data/lib/packages/quintain/x.py",
        "quintain_orchard-1.0.data/headers/x.h",
    ],
)
def test_files_beside_packages_are_not_replaced(name: str, tmp_path: Path) -> None:
    """Those of every folder that pip installs into."""
    wheel = WheelFile(orchard(tmp_path / "wheels", more={name: ""}))
    folders = folders_at(tmp_path / "lib" / "packages", tmp_path / "bin")
    assert overwritten(wheel, folders) == []
    path = name.split("/", 2)[2]
    place = folders[name.split("/")[1]] / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("")
    assert overwritten(wheel, folders) == [path]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("nowhere/../quintain/x.py", "no place of a file in a wheel"),
        ("../x.py", "no place of a file in a wheel"),
        ("/x.py", "no place of a file in a wheel"),
        ("a.data", "no place of a file in a wheel"),
        ("a.data/elsewhere/x.py", "no place of a file in a wheel"),
        ("a.data/purelib/../../x.py", "no place of a file in a wheel"),
        ("a.data/purelib/quintain_orchard/quintain.toml", "two of its files are installed as"),
        ("a.data/purelib/other-1.0.dist-info/entry_points.txt", "would describe a distribution"),
        ("a.data/purelib/other.egg-info", "would describe a distribution"),
    ],
)
def test_a_name_that_hides_where_a_file_goes_is_refused(
    name: str, expected: str, tmp_path: Path
) -> None:
    wheel = WheelFile(orchard(tmp_path / "wheels", more={name: ""}))
    with pytest.raises(PluginError, match=expected):
        overwritten(wheel, folders_at(tmp_path / "packages", tmp_path / "bin"))


def test_a_wheel_has_one_folder_of_metadata(tmp_path: Path) -> None:
    """pip refuses others, too."""
    more = {"other-1.0.dist-info/entry_points.txt": "[pytest11]\np = q\n"}
    (fault,) = faults(WheelFile(orchard(tmp_path, more=more)), RECORD)
    assert "2 folders .dist-info; expected one" in fault


def test_entry_points_are_read_as_they_are_installed(tmp_path: Path) -> None:
    """Also those of a section that is indented, which another reader takes for a continuation."""
    points = f"{POINTS}  [pytest11]\n  p = q\n  [console_scripts]\n  c = q:m\n"
    wheel = WheelFile(orchard(tmp_path, points=points))
    assert wheel.runs_unasked() == ["p in every run of pytest"]
    assert (wheel.programs(), wheel.components) == (["c"], {("environment", "fruit")})


def test_what_python_starts_with_is_said(tmp_path: Path) -> None:
    """Wherever in the wheel it is."""
    library = Path(sysconfig.get_path("purelib")).relative_to(sysconfig.get_path("data"))
    more = {
        "sitecustomize.py": "",
        "usercustomize/__init__.py": "",
        "quintain_orchard/sitecustomize.py": "",
        f"quintain_orchard-1.0.data/data/{library}/spy.pth": "",
    }
    assert WheelFile(orchard(tmp_path, more=more)).runs_unasked() == [
        "sitecustomize.py at every start of Python",
        "usercustomize/__init__.py at every start of Python",
        f"{library}/spy.pth at every start of Python",
    ]


def folders_at(packages: Path, programs: Path) -> dict[str, Path]:
    """Folders that files are installed into."""
    base = packages.parent.parent
    return {
        "purelib": packages,
        "platlib": packages,
        "scripts": programs,
        "data": base,
        "headers": base / "include",
    }


def test_a_later_contract_is_refused_before_a_download(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pip install --upgrade quintain"):
        check_contract(replace(RECORD, api=2))


def test_search_reads_all_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In names, descriptions, tags and components; a kind narrows it."""
    assert main(["search", "GAMES multi-turn", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)["plugins"]}
    assert "quintain-env-games" in names
    assert main(["search", "sandbox", "--kind", "reward", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["plugins"]
    assert all(any(p.startswith("reward:") for p in row["provides"]) for row in found)
    assert main(["search", "no such words"]) == 1
    assert main(["search", "sandbox", "--kind", "rewards"]) == 2
    assert "did you mean 'reward'" in capsys.readouterr().err


def test_what_is_installed_is_not_installed_again(capsys: pytest.CaptureFixture[str]) -> None:
    """And a pin of another version says what to do."""
    assert main(["add", "quintain-env-games"]) == 0
    assert "is installed; nothing to do" in capsys.readouterr().out
    assert main(["add", "quintain-env-games==9.9"]) == 2
    assert "`quintain remove quintain-env-games` first" in capsys.readouterr().err


def test_needs_are_found_by_name() -> None:
    """Of distributions that are installed."""
    assert "quintain-packages" in needed_by("quintain-workers")
    assert needed_by("quintain-packages") == []


def test_what_was_added_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what has no component: this distribution stands for one that `add` installed."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(UnknownNameError):
        distribution_of("pytest")
    write_ledger({"pytest": Added(brought=("pluggy",))})
    assert read_ledger() == {"pytest": Added(brought=("pluggy",))}
    assert distribution_of("PyTest") == "pytest"


def test_a_virtual_environment_stays_while_a_plugin_has_it(tmp_path: Path) -> None:
    """Plugins with the same requirements have one."""
    (tmp_path / "pyvenv.cfg").write_text("")
    place = str(tmp_path)
    assert drop_environment(place, {"quintain-basket": Added(environment=place)}) == ""
    assert tmp_path.is_dir()
    assert drop_environment(place, {"quintain-basket": Added()}) == place
    assert not tmp_path.exists()
