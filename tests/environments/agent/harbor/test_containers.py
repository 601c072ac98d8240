"""Task folders on a real engine: what an environment owes a trainer, the verifier, several steps, the
audit, an agent behind the gateway, and exported tasks under a plain `docker run`.
"""

from __future__ import annotations

import asyncio
import io
import json
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from PIL import Image

from quintain import Reply, ToolCall
from quintain.interfaces.rollout_request import RolloutRequest
from quintain.rollouts import run_groups
from quintain.rollouts.runner import RolloutContext
from quintain.types.sampling import Sampling
from quintain_authoring import EnvironmentSuite, ScriptedEngine
from quintain_env_agent.harbor import Harbor, HarborAgent, RewardFileError, TaskFolder
from quintain_env_agent.harbor.audit import Plan, examined
from quintain_env_agent.harbor.audit_record import AuditRecord
from quintain_env_agent.harbor.command import tasks as command
from quintain_env_agent.harbor.trial import Trial, TrialSettings, VerifierOutcome, opened
from quintain_gateway import Gateway
from quintain_sandbox import Containers
from quintain_sandbox.docker import build_image
from quintain_vision import tool_picture

from .task_files import TOML, task, write

pytestmark = pytest.mark.ci


@cache
def image() -> str:
    """This machine's Python as an image, with what the rewards of environments import."""
    pytest.importorskip("docker")
    built = build_image("quintain-harbor-tests", ["pydantic"], progress=lambda line: None)
    return str(built["image"])


@cache
def tree() -> Path:
    """Tasks for the suites, in a folder that lives as long as the tests."""
    place = Path(tempfile.mkdtemp(prefix="quintain-harbor-"))
    for number in range(30):  # each split has some of these names
        task(place / f"t{number}", "python:3", instruction_dot_md=f"Write hello, number {number}.")
    return place


def service(network: str = "bridge") -> Containers:
    return Containers(slots=3, images={"python:*": image()}, network=network)


class TestHarbor(EnvironmentSuite):
    environment = Harbor
    episodes = 1
    sample = 2
    args: Mapping[str, Any] = {}

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        cls.args = {"data": str(tree())}
        return {**super().services(), "containers": service()}


class TestHarborAgent(EnvironmentSuite):
    """A program of its own asks for commands and runs them in the container."""

    environment = HarborAgent
    episodes = 1
    sample = 2
    args: Mapping[str, Any] = {}

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        program = str(Path(__file__).with_name("shell_agent.py"))
        argv = [sys.executable, program, "{prompt}", "{container}", "{workdir}"]
        cls.args = {"data": str(tree()), "argv": argv}
        return {**super().services(), "containers": service(), "gateway": Gateway()}


def played(place: Path, replies: list[str | Reply], **args: Any) -> Any:
    """The rollout of one scripted episode."""

    async def run() -> Any:
        async with service() as containers:
            environment = Harbor(
                containers=containers, data=str(place), splits="test", ahead=0, **args
            )
            (only,) = environment.tasks("test")
            context = RolloutContext(
                engine=ScriptedEngine(replies=replies), sampling=Sampling(), services={},
                run_seed=0, concurrency=1, retries=0,
            )  # fmt: skip
            request = RolloutRequest(environment=environment, task=only, group_size=1)
            (group,) = await run_groups([request], context)
            return group.rollouts[0]

    return asyncio.run(run())


def call(name: str = "shell", **arguments: Any) -> Reply:
    return Reply(calls=(ToolCall(name=name, arguments=arguments),))


BAD = {
    "link.png": "cannot show link.png: the picture is no PNG, JPEG or WebP",
    "pipe": "cannot read pipe: no such file",
    "bomb.png": "cannot show bomb.png: the picture has 5000 x 5000 = 25,000,000 pixels; the limit is",
    "none.png": "cannot read none.png: no such file",
    "large.png": "large.png has more than 4194304 bytes; make a smaller image of it",
}
"""What `view_image` answers, by path."""
COPIED = "FROM python:3\nWORKDIR /app\nCOPY . /app/\n"


def png(width: int, height: int, claimed: tuple[int, int] | None = None) -> bytes:
    """A red picture; its header may claim another size."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    data = file.getvalue()
    if claimed is None:
        return data
    header = b"IHDR" + struct.pack(">2I", *claimed) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def in_trial(place: Path, act: Callable[[Trial], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        folder = TaskFolder(place, "t")
        async with (
            service() as containers,
            opened(folder, containers, TrialSettings(**settings)) as trial,
        ):
            return await act(trial)

    return asyncio.run(run())


def record_of(
    place: Path,
    *shortcuts: str,
    other: Path | None = None,
    network: str = "bridge",
    **plan: Any,
) -> AuditRecord:
    """What the audit finds of a task, with these shortcuts alone."""

    async def run() -> AuditRecord:
        async with service(network) as containers:
            folder, following = (
                TaskFolder(place, "t"),
                TaskFolder(other, "other") if other else None,
            )
            tried = Plan(shortcuts=frozenset(shortcuts), **plan)
            return await examined(folder, "0", containers, tried, following)

    return asyncio.run(run())


def test_the_policy_works_with_a_shell_and_files(tmp_path: Path) -> None:
    """What it reads, what it may do wrong, and the end of a command that takes too long."""
    rollout = played(
        task(tmp_path, "python:3"),
        [
            call(command="pwd; cat start.txt; exit 3"),
            call("write_file", path="new/out.txt", content="one\ntwo\nthree\n"),
            call("replace_in_file", path="new/out.txt", old="two", new="2"),
            call("read_file", path="/app/new/out.txt", first=2, lines=1),
            call("read_file", path="nothing"),
            call("replace_in_file", path="new/out.txt", old="e", new="x"),
            call(command="echo waits; sleep 30"),
            call(command="cp start.txt out.txt; echo hello > out.txt"),
            "Done.",
        ],
        seconds=2.0,
    )
    said = [c.error or c.result for turn in rollout.turns for c in turn.calls]
    assert said == [
        "/app\nbegin\n[exit status 3]",
        "14 bytes written",
        "replaced",
        "2\t2",
        "error: cannot read nothing: no such file",
        "error: the old text occurs 3 times in new/out.txt; it must occur once",
        "waits\n[ended after 2 s]",
        "[no output]",
    ]
    assert rollout.outcome.total == 1.0
    assert rollout.termination.kind == "finished"
    assert rollout.result.rewards == {"": {"reward": 1.0}}


def test_a_policy_that_sees_looks_at_images_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the task, and one that a command wrote. What a command made to do harm is an error
    that the policy reads: a link, a pipe, a file that is too large or that unpacks to too much.
    """
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    red, bomb = png(6, 4), png(6, 4, claimed=(5000, 5000))
    place = task(tmp_path / "task", "python:3", environment__Dockerfile=COPIED)
    (place / "environment" / "red.png").write_bytes(red)
    (place / "environment" / "bomb.png").write_bytes(bomb)
    rollout = played(
        place,
        [
            call("view_image", path="red.png"),
            call(
                command="mkdir a && cp red.png a/b.png && ln -s /etc/passwd link.png; mkfifo pipe"
            ),
            call("view_image", path="/app/a/b.png"),
            *(call("view_image", path=path) for path in [*BAD][:4]),
            call(command="head -c 5000000 /dev/zero > large.png; echo hello > out.txt"),
            call("view_image", path="large.png"),
            "Done.",
        ],
        pictures=True,
    )
    said = [c.error or c.result for turn in rollout.turns for c in turn.calls]
    # signed, so that it is a picture of a tool; without a signature it would be text
    assert said[0] == said[2] == tool_picture(red)
    errors = dict(zip(BAD, (*said[3:7], said[8]), strict=True))
    for path, reason in BAD.items():
        assert errors[path].startswith(f"error: {reason}"), errors[path]
    assert rollout.outcome.total == 1.0


def test_without_the_setting_there_is_no_tool_for_images(tmp_path: Path) -> None:
    """Models of text read the tools that they read before."""
    rollout = played(task(tmp_path, "python:3"), [call("view_image", path="start.txt"), "Done."])
    (said,) = [c.error or c.result for turn in rollout.turns for c in turn.calls]
    assert "view_image" in said
    assert "shell" in said


def test_the_time_of_commands_is_bounded_by_the_task(tmp_path: Path) -> None:
    """Sampling is not; the state at the end of the time is graded."""
    place = task(tmp_path, "python:3", task_dot_toml=TOML.replace("60.0", "3.0", 1))
    rollout = played(
        place, [call(command="echo hello > out.txt; sleep 30"), call(command="rm out.txt"), "Over."]
    )
    first, second = (c.error or c.result for turn in rollout.turns for c in turn.calls)
    assert first == "[ended after 3 s]"
    assert "the time for this task is over" in second
    assert rollout.outcome.total == 1.0


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("exit 1", "missing"),
        ("echo > /logs/verifier/reward.txt", "empty"),
        ("echo inf > /logs/verifier/reward.txt", "not finite"),
        ("sleep 60", "timeout"),
    ],
)
def test_a_verifier_without_a_reward_is_a_failure_and_no_zero(
    tmp_path: Path, script: str, kind: str
) -> None:
    """Also where the policy had left a file."""
    toml = TOML.replace("timeout_sec = 60.0\n[environment]", "timeout_sec = 3.0\n[environment]")
    place = task(
        tmp_path, "python:3", tests__test_dot_sh=f"#!/bin/sh\n{script}\n", task_dot_toml=toml
    )

    async def act(trial: Trial) -> RewardFileError:
        await trial.run("echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json")
        with pytest.raises(RewardFileError) as error:
            await trial.verify(None)
        return error.value

    assert in_trial(place, act).kind == kind
    lost = played(place, [call(command="true"), "Done."])
    assert lost.termination.kind == "environment_error"
    assert lost.outcome is None
    scored = played(place, [call(command="true"), "Done."], broken="policy")
    assert scored.termination.kind == "policy_fault"
    assert scored.outcome.total == 0.0


def test_several_rewards_have_names(tmp_path: Path) -> None:
    script = """#!/bin/sh
    echo '{"speed": 0.5, "right": 1}' > /logs/verifier/reward.json
    echo 0 > /logs/verifier/reward.txt
    """
    place = task(tmp_path, "python:3", tests__test_dot_sh=script)
    assert played(place, ["Done."], key="speed").outcome.total == 0.5
    assert played(place, ["Done."]).termination.kind == "environment_error"


def test_steps_are_graded_one_after_the_other(tmp_path: Path) -> None:
    """Each has its files and its instruction; the mean counts, a step below its least reward ends
    the episode, and what the verifier left is not shown to the next step.
    """
    step = "[[steps]]\nname = '{}'\n{}\n"
    toml = TOML + step.format("one", "min_reward = 1.0") + step.format("two", "")
    place = write(
        task(tmp_path, "python:3", task_dot_toml=toml),
        {"steps/one/instruction.md": "First.", "steps/two/instruction.md": "Second.",
         "steps/two/workdir/setup.sh": "echo set up > setup.txt\n",
         "steps/two/tests/expected.txt": "again\n"},
    )  # fmt: skip
    first = call(command="echo hello > out.txt; ls /tests /logs/verifier 2>&1")
    second = call(command="cat setup.txt; ls /tests /logs/verifier 2>&1; echo again > out.txt")
    both = played(place, [first, "Done.", second, "Done."])
    assert [m.content for m in both.messages if m.role == "user"] == ["First.", "Second."]
    assert both.result.rewards == {"one": {"reward": 1.0}, "two": {"reward": 1.0}}
    seen = both.turns[2].calls[0].result
    assert seen.startswith("set up\n")
    assert "reward.txt" not in seen
    assert "expected.txt" not in seen
    half = played(place, [first, "Done.", "Done."])
    assert half.outcome.total == 0.5
    assert len(half.result.rewards) == 2
    none = played(place, ["Done.", "Done."])
    assert none.outcome.total == 0.0
    assert none.result.rewards == {"one": {"reward": 0.0}}


def test_a_verifier_of_its_own_sees_only_what_the_task_lists(tmp_path: Path) -> None:
    """And neither programs nor tools of the policy reach it."""
    toml = f"artifacts = ['/app/out.txt']\n{TOML}".replace(
        "[verifier]\n",
        "[verifier]\nenvironment_mode = 'separate'\n"
        "collect = [{ command = 'echo collected > /logs/artifacts/c.txt' }]\n",
    )
    script = """#!/bin/sh
    cat /app/out.txt /logs/artifacts/c.txt; ls /app
    if [ -e /app/other.txt ]; then echo 0.5; else echo 1; fi > /logs/verifier/reward.txt
    """
    place = task(tmp_path, "python:3", task_dot_toml=toml, tests__test_dot_sh=script)

    async def act(trial: Trial) -> VerifierOutcome:
        await trial.run(
            "echo hello > out.txt; touch other.txt; rm -f /usr/bin/ls; ln -s true /usr/bin/ls"
        )
        return await trial.verify(None)

    verdict = in_trial(place, act)
    assert verdict.output.splitlines() == ["hello", "collected", "out.txt", "start.txt"]
    assert verdict.rewards == {"reward": 1.0}


def test_a_test_script_in_the_image_need_not_be_executable(tmp_path: Path) -> None:
    """Tests that an image of the verifier brings have the modes of their folder."""
    toml = f"artifacts = ['/app/out.txt']\n{TOML}".replace(
        "[verifier]\n", "[verifier]\nenvironment_mode = 'separate'\n"
    )
    dockerfile = "FROM python:3\nWORKDIR /app\nCOPY . /tests/\n"
    place = task(tmp_path, "python:3", task_dot_toml=toml, tests__Dockerfile=dockerfile)
    assert not (place / "tests" / "test.sh").stat().st_mode & 0o111
    assert record_of(place).oracle == [1.0]


def test_what_a_policy_left_running_cannot_write_the_reward(tmp_path: Path) -> None:
    """Unless the recipe keeps it running, for tasks whose result is a program that runs."""
    script = "#!/bin/sh\nsleep 1\necho 0 > /logs/verifier/reward.txt\nsleep 1\n"
    place = task(tmp_path, "python:3", tests__test_dot_sh=script)
    assert record_of(place, "forgery").forged == 0.0
    kept = record_of(place, "forgery", settings=TrialSettings(keep_processes=True))
    assert kept.forged == 1.0
    assert list(kept.defects) == ["the solution fails", "the reward can be forged"]


def test_users_variables_health_checks_and_directories_are_those_of_the_task(
    tmp_path: Path,
) -> None:
    toml = """
    [agent]
    user = 65534
    [verifier]
    env = { KEY = "${KEY}" }
    [environment]
    workdir = "/tmp"
    env = { GREETING = "${GREETING:-hello}" }
    healthcheck = { command = "test -e /tmp/late", interval_sec = 0.1, retries = 50 }
    """
    script = '#!/bin/sh\nid -u; echo "$KEY"; echo 1 > /logs/verifier/reward.txt\n'
    docker = 'FROM python:3\nENTRYPOINT ["sh", "-c", "(sleep 1; touch /tmp/late) & exec \\"$0\\" \\"$@\\""]\n'
    place = task(
        tmp_path, "python:3", task_dot_toml=toml, tests__test_dot_sh=script,
        environment__Dockerfile=docker,
    )  # fmt: skip

    async def act(trial: Trial) -> tuple[str, str]:
        said = await trial.run('id -u; pwd; echo "$GREETING"; ls', trial.user(None))
        return said.text, (await trial.verify(None)).output

    said, verdict = in_trial(place, act, variables={"KEY": "k"})
    assert said == "65534\n/tmp\nhello\nlate\n"
    assert verdict == "0\nk\n"


# the audit


def test_the_audit_finds_what_is_wrong(tmp_path: Path) -> None:
    """One task of each kind, with what was seen."""
    always = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
    broken = "#!/bin/sh\nexit 1\n"
    # The first run leaves no trace in the second, so the clock decides.
    unsteady = (
        "#!/bin/sh\necho $(( $(date +%N | sed 's/^0*//') % 1000003 )) > /logs/verifier/reward.txt\n"
    )
    leaking = "FROM python:3\nWORKDIR /app\nCOPY solve.sh /app/answer.sh\n"
    long = "#!/bin/sh\necho hello > /app/out.txt # " + "x" * 80 + "\n"
    tasks = {
        "sound": task(tmp_path / "1", "python:3"),
        "always": task(tmp_path / "2", "python:3", tests__test_dot_sh=always),
        "broken": task(tmp_path / "3", "python:3", tests__test_dot_sh=broken),
        "unsolved": task(tmp_path / "4", "python:3", solution__solve_dot_sh="#!/bin/sh\nexit 4\n"),
        "leaking": task(tmp_path / "5", "python:3", solution__solve_dot_sh=long,
                        environment__Dockerfile=leaking, environment__solve_dot_sh=long),
        "unsteady": task(tmp_path / "6", "python:3", tests__test_dot_sh=unsteady),
        "no image": task(tmp_path / "7", "nowhere/none:1"),
    }  # fmt: skip
    found = {name: record_of(place, repeats=2) for name, place in tasks.items()}
    sound = found["sound"]
    assert sound.sound is True
    assert sound.oracle == [1.0, 1.0]
    assert sound.nop == 0.0
    assert sound.defects == {}
    assert sound.memory_mb > 0
    assert set(sound.seconds) == {"build", "solution", "verifier"}
    assert list(found["always"].defects) == ["nothing is rewarded"]
    assert list(found["broken"].defects) == [
        "no reward (missing) for nothing", "no reward (missing) for the solution",
    ]  # fmt: skip
    assert list(found["unsolved"].defects) == ["the solution ends badly", "the solution fails"]
    assert found["leaking"].defects == {
        "the solution is in the image": "/app/answer.sh is solve.sh"
    }
    assert "not repeatable" in found["unsteady"].defects
    assert found["no image"].status == "build"
    assert "nowhere/none:1" in found["no image"].reason
    assert [name for name, record in found.items() if record.sound] == ["sound", "leaking"]


GREP = "#!/bin/sh\nif grep -q hello /app/out.txt; then r=1; else r=0; fi\n"
GREP += "echo $r > /logs/verifier/reward.txt\n"


def test_files_that_a_policy_puts_beside_the_tests_do_not_count(tmp_path: Path) -> None:
    """What was in ``/tests`` before the verifier's files came is gone."""
    script = (
        "#!/bin/sh\nls /tests\n[ ! -e /tests/conftest.py ]\necho $? > /logs/verifier/reward.txt\n"
    )
    place = task(tmp_path, "python:3", tests__test_dot_sh=script)

    async def act(trial: Trial) -> VerifierOutcome:
        await trial.run("mkdir -p /tests && touch /tests/conftest.py /tests/test.sh", "0")
        return await trial.verify(None)

    verdict = in_trial(place, act)
    assert verdict.rewards == {"reward": 0.0}
    assert verdict.output == "expected.txt\ntest.sh\n"


def test_the_audit_finds_tests_that_the_policy_can_edit(tmp_path: Path) -> None:
    """The verifier runs what lies in the policy's folder."""
    inside = "#!/bin/sh\nif sh /app/run_tests.sh; then r=1; else r=0; fi\n"
    inside += "echo $r > /logs/verifier/reward.txt\n"
    image = "FROM python:3\nWORKDIR /app\nCOPY run_tests.sh /app/run_tests.sh\n"
    place = task(
        tmp_path / "1", "python:3", tests__test_dot_sh=inside, environment__Dockerfile=image,
        environment__run_tests_dot_sh="[ \"$(cat /app/out.txt)\" = hello ]\n",
    )  # fmt: skip
    found = record_of(place, "planted")
    assert found.planted == 1.0
    assert found.defects == {"the tests can be edited": "planted got 1"}
    assert found.sound
    kept = record_of(task(tmp_path / "2", "python:3"), "planted")
    assert kept.planted == 0.0
    assert kept.defects == {}


def test_the_audit_finds_answers_that_are_no_work(tmp_path: Path) -> None:
    """The instruction or a number in the file that the tests read, and what solves another task."""
    place = task(tmp_path / "1", "python:3", tests__test_dot_sh=GREP)
    other = task(
        tmp_path / "2", "python:3", solution__solve_dot_sh="echo hello you > /app/out.txt\n"
    )
    found = record_of(place, "echo", "other", other=other)
    assert found.echo == 1.0
    assert found.other == 1.0
    assert found.other_task == "other"
    assert list(found.defects) == [
        "the instruction is an answer", "the solution of another task is right",
    ]  # fmt: skip
    strict = record_of(task(tmp_path / "3", "python:3"), "constant", "echo", "other", other=other)
    assert strict.constant == 0.0
    assert strict.echo == 0.0
    assert strict.other == 0.0
    assert strict.defects == {}
    number = GREP.replace("grep -q hello", "grep -qx '[0-9]*'")
    assert number != GREP
    counts = record_of(task(tmp_path / "5", "python:3", tests__test_dot_sh=number), "constant")
    assert counts.constant == 1.0
    assert list(counts.defects)[-1] == "a constant is an answer"
    same = record_of(place, "other", other=task(tmp_path / "4", "python:3"))
    assert same.skipped == {"other": "other has no solution that differs"}


def test_the_audit_finds_what_a_task_declares_too_low(tmp_path: Path) -> None:
    """Seconds and memory that the solution needs, and a network that is not declared."""
    slow = task(
        tmp_path / "1", "python:3", task_dot_toml=TOML.replace("60.0", "2.0", 1),
        solution__solve_dot_sh="#!/bin/sh\necho hello > /app/out.txt\nsleep 1.8\n",
    )  # fmt: skip
    eats = "#!/bin/sh\npython3 -c 'x = bytearray(512 << 20)'\necho hello > /app/out.txt\n"
    large = task(tmp_path / "2", "python:3", solution__solve_dot_sh=eats)
    assert list(record_of(slow).defects) == ["close to a limit"]
    found = record_of(large)
    assert found.defects == {"too little memory": "1 processes were ended; the limit is 256 MiB"}
    routes = '#!/bin/sh\n[ "$(wc -l < /proc/net/route)" -gt 1 ] && echo hello > /app/out.txt\n'
    silent = task(tmp_path / "3", "python:3", solution__solve_dot_sh=routes)
    public = TOML.replace("allow_internet = false", "allow_internet = true")
    stated = task(tmp_path / "4", "python:3", task_dot_toml=public, solution__solve_dot_sh=routes)
    settings = TrialSettings(network=True)
    undeclared = record_of(silent, offline=True, settings=settings, network="host")
    assert undeclared.oracle == [0.0]
    assert undeclared.online == 1.0
    assert "needs a network that it does not declare" in undeclared.defects
    declared = record_of(stated, offline=True, settings=settings, network="host")
    assert declared.oracle == [1.0]
    assert declared.offline == 0.0
    # What the run without a network says of the solution is no fault of the task as it is.
    assert list(declared.defects) == ["needs a network"]


def test_an_audit_goes_on_where_it_was_and_a_recipe_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed task is audited again. The environment leaves out what is not sound."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "tasks"
    task(place / "good", "python:3")
    task(place / "bad", "python:3", tests__test_dot_sh="#!/bin/sh\nexit 1\n")
    out = tmp_path / "audit.jsonl"
    words = [
        "audit",
        str(place),
        "--out",
        str(out),
        "--image",
        f"python:*={image()}",
        "--without",
        "other",
    ]

    def run(*more: str) -> tuple[int, dict[str, Any], int]:
        result = CliRunner().invoke(command, [*words, "--json", *more], standalone_mode=False)
        assert result.exception is None, result.output
        lines = out.read_text().splitlines() if out.exists() else []
        return result.return_value, json.loads(result.stdout), len(lines)

    status, counts, lines = run("--tasks", "1")
    assert status == 1
    assert counts["tasks"] == 1
    assert lines == 1
    status, counts, lines = run()
    assert status == 1
    assert counts["tasks"] == 2
    assert counts["sound"] == 1
    assert lines == 2
    task(place / "bad", "python:3")
    status, counts, lines = run()
    assert status == 0
    assert counts["sound"] == 2
    assert lines == 3
    task(place / "bad", "python:3", tests__test_dot_sh="#!/bin/sh\nexit 1\n")
    assert run()[2] == 4
    status, counts, lines = run("--repeats", "2")  # not all of this was tried
    assert status == 1
    assert counts["sound"] == 1
    assert lines == 6
    assert run("--repeats", "2")[2] == run()[2] == 6
    assert run("--key", "score")[2] == 8  # nor with this
    environment = Harbor(containers=service(), data=str(place), splits="train", audit=str(out))
    assert [one.name for one in environment.tasks("train")] == ["good"]


# the way out


def test_exported_tasks_run_under_a_plain_docker_run(tmp_path: Path) -> None:
    """By the contract of the format alone: the image of the Dockerfile, the solution or nothing, then
    the tests, and the file with the reward. No reader of ours takes part.
    """
    out = tmp_path / "tasks"
    words = ["tasks", "export", "arithmetic", str(out), "--split", "test", "--tasks", "2",
             "--image", image(), "--json"]  # fmt: skip
    made = subprocess.run(
        [sys.executable, "-m", "quintain", *words], capture_output=True, text=True, check=True
    )
    report = json.loads(made.stdout)
    assert report["tasks"] == 2
    assert report["requirements"] == []
    assert "quintain_env_math" in report["packages"]
    docker = pytest.importorskip("docker")
    client = docker.from_env()
    script = "mkdir -p /logs/verifier; {}; sh /tests/test.sh; cat /logs/verifier/reward.txt"
    for place in sorted(out.iterdir()):
        built, _ = client.images.build(
            path=str(place / "environment"), network_mode="none", rm=True
        )
        for solve, reward in (("sh /solution/solve.sh", 1.0), ("true", 0.0)):
            said = client.containers.run(
                built.id,
                ["sh", "-c", script.format(solve)],
                network_mode="none",
                volumes={
                    str(place / name): {"bind": f"/{name}", "mode": "ro"}
                    for name in ("solution", "tests")
                },
                remove=True,
            )
            assert float(said.splitlines()[-1]) == reward


def test_exported_tasks_are_sound_in_the_audit(tmp_path: Path) -> None:
    """So `harbor` trains on what `export` writes, with the same rewards."""
    file = tmp_path / "words.py"
    file.write_text(
        "from quintain import Environment, Task, reward\n\n\n"
        "@reward\ndef right(rollout):\n    return float(rollout.reply == rollout.task.answer)\n\n\n"
        "class Words(Environment[Task, None]):\n    reward = right\n    system = 'One word.'\n"
        "    end: str = '!'\n\n    def tasks(self, split):\n"
        "        yield Task(prompt='Say hello.', answer='hello' + self.end)\n",
        encoding="utf-8",
    )
    out = tmp_path / "tasks"
    words = ["tasks", "export", f"{file}:Words", str(out), "--image", image(), "--arg", "end=?"]
    subprocess.run([sys.executable, "-m", "quintain", *words], check=True, capture_output=True)
    (place,) = out.iterdir()
    assert (place / "instruction.md").read_text() == (
        "One word.\n\nSay hello.\n\nWrite your answer, and nothing else, to the file "
        "`/app/answer.txt`.\n"
    )
    record = record_of(place, "forgery", "planted", "echo", "constant")
    assert record.sound is True
    assert record.oracle == [1.0]
    assert record.nop == 0.0
    assert record.defects == {}
    assert (record.forged, record.planted, record.echo, record.constant) == (0.0,) * 4


def test_what_no_file_can_answer_is_not_exported(tmp_path: Path) -> None:
    for name, why in (("guess", "several turns, or tools"), ("code-procedural", "services")):
        made = subprocess.run(
            [sys.executable, "-m", "quintain", "tasks", "export", name, str(tmp_path / "x")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 2
        assert why in made.stderr
        assert not (tmp_path / "x").exists()
