"""What is read of task folders: ``task.toml``, reward files, archives, old folders, and refusals."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from string import printable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain_env_agent.harbor import (
    Harbor,
    HarborAgent,
    RewardFileError,
    TaskFolder,
    UnsupportedTask,
)
from quintain_env_agent.harbor.archives import task_folders, unpack
from quintain_env_agent.harbor.config import filled, mebibytes, mode_of, read_config, unsupported
from quintain_env_agent.harbor.environment import without_network
from quintain_env_agent.harbor.folder import folders
from quintain_env_agent.harbor.reward_files import chosen, not_fetched, rewards_of
from quintain_env_agent.harbor.terminal_bench import convert
from quintain_gateway import Gateway
from quintain_sandbox import BuildContext, Containers

from .task_files import TOML, archive, old_task, task, write

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_a_config_has_the_defaults_of_the_format() -> None:
    """An empty file is a task: no limit for the policy, 600 s for the verifier, a network."""
    config = read_config("", "here")
    assert config.agent.timeout_sec is None
    assert config.verifier.timeout_sec == 600.0
    assert config.environment.network == "public"
    assert config.environment.build_timeout_sec == 600.0
    assert mode_of(config, config) == "shared"
    assert config.steps == []
    assert unsupported(config) == []


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("allow_internet = false", "no-network"),
        ("allow_internet = true", "public"),
        ("allow_internet = true\nnetwork_mode = 'no-network'", "no-network"),
        ("network_mode = 'public'", "public"),
    ],
)
def test_the_new_key_for_the_network_counts_before_the_old(text: str, network: str) -> None:
    assert read_config(f"[environment]\n{text}", "here").environment.network == network


@pytest.mark.parametrize(
    ("text", "mib"), [("2G", 2048.0), ("512M", 512.0), ("1.5gb", 1536.0), ("1048576", 1.0), ("8K", 8 / 1024)]
)  # fmt: skip
def test_sizes_of_old_files_are_mebibytes(text: str, mib: float) -> None:
    assert mebibytes(text) == mib
    assert read_config(f"[environment]\nmemory = '{text}'", "x").environment.memory_mb == mib


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[verifier]\ntimeout_sec = 'long'", "verifier.timeout_sec"),
        ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1", "verifier"),
        ("[[steps]]\nname = '../x'", "steps.0.name"),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'", "steps"),
        ("artifacts = ['/app/../etc']", "artifacts.0.source"),
        ("[agent", "not TOML"),
    ],
)
def test_a_wrong_key_is_named(text: str, where: str) -> None:
    with pytest.raises(UsageError, match=where.replace(".", r"\.")) as error:
        read_config(text, "tasks/x/task.toml")
    assert str(error.value).startswith("tasks/x/task.toml: ")


@given(st.text(alphabet=printable))
def test_any_text_is_a_config_or_a_usage_error(text: str) -> None:
    try:
        read_config(text, "here")
    except UsageError as e:
        assert str(e).startswith("here: ")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[environment]\nos = 'windows'", "os = 'windows'"),
        ("[environment]\ngpus = 1", "a GPU"),
        ("[environment]\nmcp_servers = [{ name = 'a', url = 'http://x' }]", "MCP servers"),
        ("[environment]\nnetwork_mode = 'allowlist'", "a network of listed hosts"),
        ("[environment]\nnetwork_mode = 'public'\n[agent]\nnetwork_mode = 'no-network'", "between phases"),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'", "the service 'db'"),
        ("artifacts = [{ source = '/x', service = 'db' }]", "the service 'db'"),
    ],
)  # fmt: skip
def test_what_does_not_run_here_is_named(text: str, what: str) -> None:
    (said,) = unsupported(read_config(text, "here"))
    assert what in said


def test_a_verifier_of_its_own_may_have_another_network() -> None:
    """Its container is another one, so nothing changes in one."""
    text = "[environment]\nallow_internet = false\n[verifier]\nenvironment_mode = 'separate'\n"
    assert unsupported(read_config(text + "network_mode = 'public'", "here")) == []


def test_variables_are_filled_from_the_recipe_or_their_default() -> None:
    texts = {"A": "x${ONE}y", "B": "${TWO:-2}", "C": "plain"}
    assert filled(texts, {"ONE": "1"}, "t") == {"A": "x1y", "B": "2", "C": "plain"}
    with pytest.raises(UsageError, match="t needs the variable ONE"):
        filled(texts, {}, "t")


# rewards


@pytest.mark.parametrize(
    ("text", "as_json", "kind"),
    [
        (None, None, "missing"),
        (b"", None, "empty"),
        (b" \n", None, "empty"),
        (b"yes", None, "unreadable"),
        (b"\xff", None, "unreadable"),
        (b"nan", None, "not finite"),
        (b"1e999", None, "not finite"),
        (b"1", b"", "empty"),
        (b"1", b"{", "unreadable"),
        (b"1", b"[" * 100_000, "unreadable"),
        (b"1", b"1", "unreadable"),
        (b"1", b"{}", "unreadable"),
        (b"1", b'{"reward": "1"}', "not a number"),
        (b"1", b'{"reward": 1, "failures": []}', "not a number"),
        (b"1_0", None, "unreadable"),
        ("\uff11".encode(), None, "unreadable"),
        ("\u0661".encode(), None, "unreadable"),
        (b"true", None, "unreadable"),
        (b"0x1", None, "unreadable"),
        (b"\xef\xbb\xbf", None, "empty"),
        (b"1", b'{"reward": true}', "not a number"),
        (b"1", b'{"reward": 0.5, "passed": false}', "not a number"),
        (b"1", b'{"reward": 1, "reward": 0}', "unreadable"),
        (b"1", b'{"reward": NaN}', "not finite"),
        (b"1", b'{"reward": 1e999}', "not finite"),
        (b"1", b'{"reward": 1' + b"0" * 400 + b"}", "not finite"),
    ],
)
def test_a_reward_file_without_finite_numbers_is_a_failure(
    text: bytes | None, as_json: bytes | None, kind: str
) -> None:
    """Never a zero; and ``reward.json`` counts where there are both."""
    with pytest.raises(RewardFileError) as error:
        rewards_of(text, as_json)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    ("text", "as_json"),
    [(b"\xef\xbb\xbf0.5\n", None), (b"+.5", None), (None, b'\xef\xbb\xbf{"reward": 0.5}')],
)
def test_a_byte_order_mark_and_signs_are_no_fault(
    text: bytes | None, as_json: bytes | None
) -> None:
    assert rewards_of(text, as_json) == {"reward": 0.5}


@pytest.mark.parametrize(
    "output",
    [
        "curl: (6) Could not resolve host: astral.sh",
        "bash: uvx: command not found",
        "/tests/test.sh: line 9: uv: command not found\n",
        "E: Unable to locate package curl",
        "Err:1 http://deb.debian.org\n  Temporary failure resolving 'deb.debian.org'",
        "/usr/bin/python3: No module named pytest",
        "ERROR: No matching distribution found for pytest==8.4.1",
        "wget: unable to resolve host address 'example.org'",
        "npm error getaddrinfo ENOTFOUND registry.npmjs.org",
        "error: Failed to fetch: `https://pypi.org/simple/pytest/`",
    ],
)
def test_a_verifier_says_that_it_could_not_fetch_its_tools(output: str) -> None:
    assert not_fetched(f"begin\n{output}\nend") in output
    assert not_fetched(f"{output}\n=== test session starts ===\ncollected 2 items") == ""


@pytest.mark.parametrize(
    "output", ["", "1 failed, 2 passed", "expected hello, found nothing", "AssertionError: curl"]
)
def test_a_failed_test_is_no_failure_of_the_set_up(output: str) -> None:
    assert not_fetched(output) == ""


def test_tasks_that_get_no_network_are_counted_before_the_run(tmp_path: Path) -> None:
    public = TOML.replace("allow_internet = false", "allow_internet = true")
    fetching = "#!/bin/bash\ncurl -LsSf https://example.org/install.sh | sh\n"
    task(tmp_path / "a", task_dot_toml=public, tests__test_dot_sh=fetching)
    task(tmp_path / "b", task_dot_toml=public)
    task(tmp_path / "c")
    found = list(folders(tmp_path))
    said = without_network(found, network=False)
    assert said.startswith("2 of 3 tasks ask for a network and get none")
    assert "the tests of 1 fetch tools" in said
    assert without_network(found, network=True) == ""
    assert without_network(found[2:], network=False) == ""


@given(FINITE)
def test_a_number_in_a_text_file_is_the_reward(value: float) -> None:
    assert rewards_of(f" {value!r}\n".encode(), None) == {"reward": value}


@given(st.dictionaries(st.text(min_size=1), FINITE, min_size=1))
def test_numbers_in_a_json_file_are_rewards_by_name(values: dict[str, float]) -> None:
    assert rewards_of(b"0", json.dumps(values).encode()) == values


@given(st.binary())
def test_any_bytes_are_a_finite_reward_or_a_failure(content: bytes) -> None:
    for files in ((content, None), (None, content)):
        try:
            assert all(math.isfinite(value) for value in rewards_of(*files).values())
        except RewardFileError as e:
            assert e.kind in ("empty", "unreadable", "not a number", "not finite")


def test_the_reward_that_counts_has_the_key_or_is_the_only_one() -> None:
    assert chosen({"reward": 0.5, "speed": 1.0}, "reward") == 0.5
    assert chosen({"score": 0.25}, "reward") == 0.25
    with pytest.raises(RewardFileError, match="set `key`"):
        chosen({"a": 1.0, "b": 1.0}, "reward")


# folders


def test_a_tree_has_the_tasks_below_it_in_order(tmp_path: Path) -> None:
    """Also old ones; what lies below a task is its own."""
    task(tmp_path / "b" / "two")
    task(tmp_path / "b" / "two" / "environment" / "inner")
    old_task(tmp_path / "a")
    assert [folder.name for folder in folders(tmp_path)] == ["a", "b/two"]
    assert [folder.name for folder in folders(tmp_path / "b" / "two")] == ["two"]
    with pytest.raises(UsageError, match="no folder with"):
        list(folders(write(tmp_path / "empty", {"x": ""})))


def test_a_folder_says_what_it_needs(tmp_path: Path) -> None:
    folder = TaskFolder(task(tmp_path / "t"), "t")
    folder.check()
    assert folder.instruction() == "Write hello into out.txt.\n"
    assert folder.level == 1.0
    assert folder.solution() == tmp_path / "t" / "solution"
    image = folder.image()
    assert isinstance(image, BuildContext)
    assert image.folder == tmp_path / "t" / "environment"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"instruction_dot_md": " \n"}, "instruction.md is empty"),
        ({"task_dot_toml": "[environment]\ngpus = 2"}, "a GPU"),
        ({"environment__docker-compose_dot_yaml": "services: {main: {}, db: {}}"}, "several services"),
        ({"environment__docker-compose_dot_yaml": "services: {main: {ports: [80]}}"}, "ports"),
        ({"environment__docker-compose_dot_yaml": "a: ]"}, "not YAML"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_run_says_why(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        TaskFolder(task(tmp_path, **changed), "t").check()


def test_missing_parts_are_named(tmp_path: Path) -> None:
    place = task(tmp_path)
    (place / "tests" / "test.sh").unlink()
    with pytest.raises(UsageError, match=r"tests/test\.sh"):
        TaskFolder(place, "t").check()
    (place / "environment" / "Dockerfile").unlink()
    write(place, {"tests/test.sh": ""})
    with pytest.raises(UsageError, match="no Dockerfile"):
        TaskFolder(place, "t").check()
    write(place, {"task.toml": "[environment]\ndocker_image = 'x:1'"})
    named = TaskFolder(place, "t")
    named.check()
    assert named.image() == "x:1"


def test_steps_have_their_own_parts(tmp_path: Path) -> None:
    """With those of the task where a step has none."""
    steps = "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n"
    place = write(
        task(tmp_path, task_dot_toml=TOML + steps),
        {"steps/one/instruction.md": "First.", "steps/two/instruction.md": "Second.",
         "steps/two/tests/test.sh": "", "steps/two/solution/solve.sh": ""},
    )  # fmt: skip
    folder = TaskFolder(place, "t")
    folder.check()
    one, two = folder.steps
    assert [folder.instruction(step) for step in folder.parts] == ["First.", "Second."]
    assert folder.solution(one) == place / "solution"
    assert folder.solution(two) == place / "steps" / "two" / "solution"
    assert folder.tests(two) == [place / "tests", place / "steps" / "two" / "tests"]


def test_a_verifier_of_its_own_is_built_from_the_tests(tmp_path: Path) -> None:
    """Where they have a Dockerfile; else it is a fresh container of the policy's image."""
    folder = TaskFolder(task(tmp_path / "a"), "a")
    assert folder.verifier_image() == (folder.image(), False)
    built = TaskFolder(task(tmp_path / "b", tests__Dockerfile="FROM x"), "b")
    context, bundled = built.verifier_image()
    assert bundled
    assert isinstance(context, BuildContext)
    assert context.folder == tmp_path / "b" / "tests"


# archives


@pytest.mark.parametrize("mode", ["w:gz", "w", "w:xz"])
def test_an_archive_is_a_task(tmp_path: Path, mode: str) -> None:
    """Unpacked once: the second time nothing is written."""
    file = tmp_path / "hello.tar"
    file.write_bytes(archive(task(tmp_path / "t"), mode))
    (folder,) = task_folders(file, tmp_path / "cache")
    assert folder.name == "hello"
    assert folder.fault == ""
    folder.check()
    (folder.path / "marker").touch()
    (again,) = task_folders(file, tmp_path / "cache")
    assert (again.path / "marker").exists()


def test_a_zip_archive_is_a_task_and_keeps_what_can_be_run(tmp_path: Path) -> None:
    place = task(tmp_path / "t")
    (place / "solution" / "solve.sh").chmod(0o755)
    file = tmp_path / "hello.zip"
    with zipfile.ZipFile(file, "w") as target:
        for path in sorted(place.rglob("*")):
            target.write(path, path.relative_to(place))
    (folder,) = task_folders(file, tmp_path / "cache")
    folder.check()
    assert (folder.path / "solution" / "solve.sh").stat().st_mode & 0o777 == 0o755


def test_a_parquet_file_has_a_task_per_row(tmp_path: Path) -> None:
    """A row that is no archive is a task with a fault; another column is named."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    blob = archive(task(tmp_path / "t"))
    columns = {"path": ["one", "two"], "task_binary": [blob, b"no archive"]}
    file = tmp_path / "tasks.parquet"
    parquet.write_table(pa.table(columns), file)
    one, two = task_folders(file, tmp_path / "cache")
    one.check()
    assert one.name == "one"
    assert two.name == "two"
    with pytest.raises(UnsupportedTask, match="task two: cannot unpack"):
        two.check()
    with pytest.raises(UsageError, match="path, task_binary"):
        list(task_folders(file, tmp_path / "cache", "blob"))


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_an_archive_cannot_write_outside(tmp_path: Path, name: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    (tmp_path / "in").mkdir()
    with pytest.raises(UsageError, match="has the path"):
        unpack(data.getvalue(), tmp_path / "in", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_archive_has_no_links_and_devices(tmp_path: Path) -> None:
    """A link could name a file of this machine, which the next entry then writes."""
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            entry = tarfile.TarInfo("a")
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
        with pytest.raises(UsageError, match="neither a file nor a folder"):
            unpack(data.getvalue(), tmp_path, "x")


@given(st.binary())
def test_any_bytes_are_an_archive_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    place = tmp_path_factory.mktemp("unpacked")
    try:
        unpack(content, place, "here")
    except UsageError as e:
        assert str(e).startswith("here: ")


# the first Terminal-Bench


def test_an_old_folder_becomes_a_new_one(tmp_path: Path) -> None:
    new = tmp_path / "new"
    convert(old_task(tmp_path / "old"), new)
    folder = TaskFolder(new, "new")
    folder.check()
    assert folder.instruction() == "Write hello into out.txt.\n"
    config = folder.config
    assert config.agent.timeout_sec == 90.0
    assert config.verifier.timeout_sec == 30.0
    assert config.metadata["tags"] == ["files"]
    assert folder.level == 1.0
    assert (new / "environment" / "Dockerfile").read_text().splitlines()[3:] == [
        "",
        "# From the compose file:",
        "ENV TEST_DIR=/tests",
        'ENV GREETING="hello there"',
        'COPY ["data", "/data"]',
    ]
    assert (new / "solution" / "solve.sh").read_text() == (
        tmp_path / "old" / "solution.sh"
    ).read_text()
    assert (new / "tests" / "expected.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task_dot_yaml": "difficulty: easy"}, "no instruction"),
        ({"docker-compose_dot_yaml": "services: {a: {}, b: {}}"}, "several services"),
        ({"docker-compose_dot_yaml": "services: {a: {ports: ['1:1']}}"}, "ports"),
        ({"docker-compose_dot_yaml": "services: {a: {volumes: ['/etc:/etc']}}"}, "the volume"),
        ({"docker-compose_dot_yaml": "services: {a: {volumes: ['./../x:/etc']}}"}, "the volume"),
        ({"docker-compose_dot_yaml": "services: {a: {build: {context: ../..}}}"}, "outside"),
        ({"docker-compose_dot_yaml": "services: {a: {build: {context: ., args: {A: 1}}}}"}, "args"),
        ({"task_dot_yaml": "instruction: x\nmax_test_timeout_sec: long"}, "max_test_timeout_sec"),
    ],
)
def test_an_old_folder_that_is_not_one_container_is_refused(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    """And a tree with it still has its other tasks."""
    old = old_task(tmp_path / "tree" / "old", **changed)
    old_task(tmp_path / "tree" / "well")
    with pytest.raises(UsageError, match=said):
        convert(old, tmp_path / "new")
    bad, good = task_folders(tmp_path / "tree", tmp_path / "cache")
    with pytest.raises(UnsupportedTask, match=said):
        bad.check()
    good.check()


@pytest.mark.parametrize("parser", ["swebench", "swelancer", "PyTest", "mlebench"])
def test_another_parser_of_the_output_is_refused_by_name(tmp_path: Path, parser: str) -> None:
    named = f"instruction: x\nparser_name: {parser}\n"
    with pytest.raises(UnsupportedTask, match=f"parser_name is '{parser}'"):
        convert(old_task(tmp_path / "old", task_dot_yaml=named), tmp_path / "new")


PYTEST = "python -m pytest -p no:cacheprovider $TEST_DIR/test_outputs.py -rA"
RIGHT, WRONG = "def test_a():\n    pass\n", "def test_a():\n    assert False\n"
SKIPPED = "import pytest\n@pytest.mark.skip\ndef test_b():\n    pass\n"


@pytest.mark.parametrize(
    ("script", "tests", "reward"),
    [
        (f"{PYTEST}\n", RIGHT, "1"),
        (f"{PYTEST} | tee /dev/null\n", WRONG, "0"),
        pytest.param(f"{PYTEST}\necho finished\n", WRONG, "0", marks=pytest.mark.more),
        pytest.param(f"{PYTEST} || true\n", WRONG, "0", marks=pytest.mark.more),
        pytest.param(f"{PYTEST} > log 2>&1\ncat log\n", WRONG, "0", marks=pytest.mark.more),
        pytest.param(f"{PYTEST} || [ $? -eq 5 ]\n", "x = 1\n", "0", marks=pytest.mark.more),
        pytest.param(f"{PYTEST}; true\n", "import nothing_there\n", "0", marks=pytest.mark.more),
        pytest.param(
            f"{PYTEST} || true\n", "import os\ndef test_a():\n    os._exit(0)\n", "0",
            marks=pytest.mark.more,
        ),
        pytest.param(f"{PYTEST}\n", SKIPPED, "0", marks=pytest.mark.more),
        pytest.param(f"{PYTEST}\n", RIGHT + SKIPPED, "1", marks=pytest.mark.more),
        pytest.param(f"{PYTEST}\nexit 1\n", RIGHT, "1", marks=pytest.mark.more),
        pytest.param(
            f"{PYTEST} -k bad\n{PYTEST} -k good\n",
            "def test_bad():\n    assert 0\ndef test_good():\n    pass\n", "0",
            marks=pytest.mark.more,
        ),
        ("echo all tests passed\n", RIGHT, "none"),
    ],
)  # fmt: skip
def test_the_report_of_pytest_decides_and_no_exit_status(
    tmp_path: Path, script: str, tests: str, reward: str
) -> None:
    """The converted test.sh runs here, with other places for the two folders of a container."""
    new, logs = tmp_path / "new", tmp_path / "logs"
    old = old_task(
        tmp_path / "old",
        **{"run-tests_dot_sh": f"#!/bin/bash\n{script}", "tests__test_outputs_dot_py": tests},
    )
    convert(old, new)
    test = new / "tests" / "test.sh"
    text = test.read_text().replace("/logs/verifier", str(logs))
    test.write_text(text.replace("/tests", str(new / "tests")))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", str(test)], env={"PATH": path}, cwd=tmp_path, capture_output=True)
    file = logs / "reward.txt"
    assert (file.read_text().strip() if file.exists() else "none") == reward


@pytest.mark.parametrize("kind", ["gz", "zip", "xz"])
def test_a_damaged_archive_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    source = task(tmp_path / "a")
    if kind == "zip":
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("task.toml", TOML * 50)
        content = bytearray(data.getvalue())
    else:
        content = bytearray(archive(source, f"w:{kind}"))
    for place in range(40, min(len(content) - 60, 400), 3):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        with contextlib.suppress(UsageError):
            unpack(bytes(damaged), tmp_path / f"{kind}-{place}", "here")


def test_an_encrypted_archive_is_a_usage_error(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        made.writestr("task.toml", TOML)
    content = bytearray(data.getvalue())
    content[6] |= 1  # the flag of encryption, in the file's header and in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(UsageError, match="here: cannot unpack"):
        unpack(bytes(content), tmp_path / "out", "here")


def test_images_are_shown_by_our_tools_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program has tools of its own, and a missing package is named before an episode."""
    args: dict[str, Any] = {"containers": Containers(), "data": str(tmp_path), "pictures": True}
    with pytest.raises(UsageError, match="pictures is for harbor"):
        HarborAgent(**args, gateway=Gateway(), argv=("agent",))
    monkeypatch.setattr("quintain_env_agent.harbor.environment.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'quintain-env-agent\[pictures\]'"):
        Harbor(**args)
