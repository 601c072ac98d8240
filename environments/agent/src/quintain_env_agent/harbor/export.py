"""`quintain tasks export`: tasks of an environment as folders that every reader of Harbor's format
runs.

The policy writes its answer into a file. The verifier is the environment's own reward: the package
of the environment and what it needs of Quintain lie in ``tests/``, which comes into the container
after the policy.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from quintain import Environment, Message, Task
from quintain.errors import UsageError
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.types import messages_of

GRADER = Path(__file__).with_name("grade_main.py")
ANSWER = "/app/answer.txt"
ALWAYS = ("quintain", "quintain_authoring")
"""Packages that the grader itself imports."""
LOADED = """
import json, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as e:
    if e.code:
        raise
names = {name.partition(".")[0] for name, m in sys.modules.items() if getattr(m, "__file__", None)}
print(json.dumps(sorted(names - set(sys.stdlib_module_names))))
"""
"""Runs the grader and prints the packages that it imported."""
TEST = f"""#!/bin/sh
exec python3 -I "$(dirname "$0")/grade.py" {ANSWER} /logs/verifier/reward.txt
"""
CONFIG = """version = "1.0"

[metadata]
author_name = "Quintain"
difficulty = "unknown"
category = {category}
tags = ["quintain"]

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 4096
allow_internet = false
"""


def export_tasks(
    name: str,
    out: Path,
    *,
    args: Mapping[str, Any],
    split: str,
    tasks: int | None,
    image: str,
) -> dict[str, Any]:
    """Write tasks of environment *name* as folders below *out*.

    Args:
        args: of the environment.
        tasks: at most so many; ``None`` for all of the split.
        image: with Python and the packages that the environment needs; empty for the official image
            of this version of Python, into which a build installs them.

    Returns:
        ``tasks``, ``packages`` that lie in the folders, and ``requirements`` of the image.

    Raises:
        UsageError: the environment has several turns, tools or services, or an answer does not
            get its reward where the folders are tested.
    """
    exported = Exported.of(name, args, split, tasks)
    with tempfile.TemporaryDirectory() as folder:
        archive, packages, needed = exported.packaged(Path(folder))
        requirements = () if image else needed
        image = image or f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
        out.mkdir(parents=True, exist_ok=True)
        for task, answer in zip(exported.tasks, exported.oracles, strict=True):
            place = out / _slug(f"{name.rpartition('/')[2]}-{split}-{task.id}")
            exported.write(place, task, answer, archive, image, requirements)
    return {
        "tasks": len(exported.tasks),
        "packages": packages,
        "requirements": list(requirements),
    }


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Tasks of an environment that leave it, with the replies that its oracle gives.

    Attributes:
        base: what the grader needs to make the environment.
        files: of the environment that are in no package, by name.
    """

    environment: Environment[Any, Any]
    tasks: Sequence[Task]
    oracles: Sequence[str]
    base: Mapping[str, Any]
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, name: str, args: Mapping[str, Any], split: str, count: int | None) -> Exported:
        """Read at most *count* tasks.

        Raises:
            UsageError: the environment has several turns, tools or services, or no tasks.
        """
        environment = EnvironmentSpec.of(EnvironmentTable(use=name, args=dict(args))).make({})
        check_single_turn(environment, name)
        chosen = list(islice(environment.tasks(split), count))
        if not chosen:
            raise UsageError(f"{name} has no tasks in {split}")
        use, files = _place(environment, name)
        base = {
            "module": type(environment).__module__,
            "use": use,
            "args": dict(args),
            "system": environment.system,
        }
        oracles = [_oracle(environment, task, name) for task in chosen]
        return cls(environment=environment, tasks=chosen, oracles=oracles, base=base, files=files)

    def told(self, task: Task) -> dict[str, Any]:
        """Return what the grader reads of a task."""
        task_class: Any = type(task)
        return {
            "use": self.base["use"],
            "args": self.base["args"],
            "task_class": [task_class.__module__, task_class.__qualname__],
            "task": TypeAdapter(task_class).dump_python(task, mode="json"),
        }

    def messages(self, task: Task) -> list[Message]:
        """Return what the policy reads: the system message of the environment, where the task has
        none, and the prompt.
        """
        prompt, system = list(messages_of(task.prompt)), str(self.base["system"])
        if not system or any(message.role == "system" for message in prompt):
            return prompt
        return [Message("system", system), *prompt]

    def packaged(self, folder: Path) -> tuple[Path, list[str], tuple[str, ...]]:
        """Write the packages of the grader into *folder*, and let it score the first task.

        Returns:
            The archive, the packages in it, and the distributions that it needs.

        Raises:
            UsageError: the oracle's answer does not get its reward.
        """
        archive = folder / "packages.zip"
        packages = sorted({*ALWAYS, *_own(self.environment)})
        loaded: list[str] = []
        for _ in range(2):  # the second time with what the first one imported
            write_packages(archive, packages)
            probe = folder / "probe"
            self.write(probe, self.tasks[0], self.oracles[0], archive, "python", ())
            loaded = _tried(probe, self.oracles[0])
            ours = {p for p in loaded if p == "quintain" or p.startswith("quintain_")}
            packages = sorted({*packages, *ours})
        return archive, packages, _requirements(set(loaded) - set(packages))

    def write(
        self,
        place: Path,
        task: Task,
        answer: str,
        archive: Path,
        image: str,
        requirements: tuple[str, ...],
    ) -> None:
        """Write the folder of one task: ``environment``, ``solution`` with the *answer* of the
        oracle, and ``tests`` with the grader. Files of an earlier export are written over, not
        removed.
        """
        for folder in ("environment", "solution", "tests"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        lines = [f"FROM {image}"]
        if requirements:
            lines.append(f"RUN pip install --no-cache-dir {' '.join(requirements)}")
        lines.append("WORKDIR /app")
        category = json.dumps(str(self.base["use"]).rpartition(":")[2])
        texts = {
            "task.toml": CONFIG.format(category=category),
            "instruction.md": instruction(self.messages(task)),
            "environment/Dockerfile": "\n".join(lines) + "\n",
            "solution/solve.sh": f"#!/bin/sh\nprintf %s {shlex.quote(answer)} > {ANSWER}\n",
            "tests/test.sh": TEST,
            "tests/grade.py": GRADER.read_text(encoding="utf-8"),
            "tests/task.json": json.dumps(self.told(task), ensure_ascii=False),
        }
        for path, text in texts.items():
            (place / path).write_text(text, encoding="utf-8")
        for path in ("solution/solve.sh", "tests/test.sh"):
            (place / path).chmod(0o755)
        (place / "tests" / "packages.zip").write_bytes(archive.read_bytes())
        for name, content in self.files.items():
            (place / "tests" / name).write_bytes(content)


def check_single_turn(environment: Environment[Any, Any], name: str) -> None:
    """Check that an answer in a file can be scored.

    Raises:
        UsageError: it cannot.
    """
    if type(environment).rollout is not Environment.rollout:
        raise UsageError(
            f"{name} has an episode of its own (several turns, or tools), which no file with an "
            "answer stands for; environments of one turn can be exported"
        )
    needs = getattr(environment.reward, "needs", None)
    if needs:
        raise UsageError(
            f"the reward of {name} needs services ({', '.join(map(str, needs))}), which a container "
            "of a task does not have"
        )


def _oracle(environment: Environment[Any, Any], task: Task, name: str) -> str:
    reply = environment.oracle(task, messages_of(task.prompt))
    text = reply if isinstance(reply, str) else reply.text
    if not isinstance(reply, str) and reply.calls:
        raise UsageError(f"the oracle of {name} calls tools, so its answer is no text")
    return text


def instruction(messages: Sequence[Message]) -> str:
    """Return messages as one text, which says where the answer goes."""
    several = sum(message.role != "system" for message in messages) > 1
    parts = [
        f"{message.role}: {message.content}"
        if several and message.role != "system"
        else message.content
        for message in messages
    ]
    parts.append(f"Write your answer, and nothing else, to the file `{ANSWER}`.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_packages(archive: Path, packages: list[str]) -> None:
    """Write a zip archive of the sources of *packages*."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name in packages:
            for path, place in _sources(name):
                entry = zipfile.ZipInfo(path)  # without times: equal packages have equal archives
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                target.writestr(entry, place.read_bytes())


def _sources(name: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise UsageError(f"there is no package {name}")
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        yield origin.name, origin
        return
    root = origin.parent
    for place in sorted(root.rglob("*")):
        if place.is_file() and "__pycache__" not in place.parts and place.suffix != ".pyc":
            yield f"{name}/{place.relative_to(root).as_posix()}", place


def _own(environment: Environment[Any, Any]) -> set[str]:
    """Return the top packages of the classes of an environment, without those of Python files."""
    names = {c.__module__.partition(".")[0] for c in type(environment).__mro__}
    return {n for n in names if n not in ("builtins", "typing", "abc") and not _is_file(n)}


def _is_file(module: str) -> bool:
    spec = importlib.util.find_spec(module) if module in sys.modules else None
    return spec is None


def _place(environment: Environment[Any, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return how the grader names the environment, and the file that it is in, if it is no
    package's.
    """
    file, sign, attribute = name.rpartition(":")
    if sign and file.endswith(".py"):
        return f"{{here}}/environment_file.py:{attribute}", {
            "environment_file.py": Path(file).read_bytes()
        }
    kind = type(environment)
    return f"{kind.__module__}:{kind.__qualname__}", {}


def _tried(folder: Path, answer: str) -> list[str]:
    """Grade the oracle's answer in a process of its own, with the packages of the folder first; the
    packages that it imported.

    Raises:
        UsageError: the reward is less than 1.
    """
    said, reward = folder / "said.txt", folder / "reward.txt"
    said.write_text(answer, encoding="utf-8")
    argv = [sys.executable, "-I", "-c", LOADED, str(folder / "tests" / "grade.py"), str(said)]
    done = subprocess.run(
        [*argv, str(reward)], capture_output=True, text=True, cwd=folder, timeout=300, check=False
    )
    if done.returncode or not reward.exists():
        raise UsageError(f"the exported grader failed: {(done.stderr or done.stdout)[-1500:]}")
    value = float(reward.read_text(encoding="utf-8"))
    if value < 1:
        raise UsageError(
            f"the oracle's answer {answer[:80]!r} gets {value:g} from the exported task"
        )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def _requirements(packages: set[str]) -> tuple[str, ...]:
    """Return the distributions of imported packages, pinned to what is installed here."""
    owners = packages_distributions()
    # A hook that setuptools starts with every interpreter is no import of ours.
    needed = packages - {"_distutils_hack"}
    names = {owner for package in needed for owner in owners.get(package, ())}
    return tuple(f"{name}=={version(name)}" for name in sorted(names, key=str.lower))


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "task"
