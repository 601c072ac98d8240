"""A task folder: its files, and the images that it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from quintain.errors import UsageError
from quintain_sandbox import BuildContext

from .config import TaskConfig, TaskStep, mode_of, read_config, unsupported

CONFIG, OLD_CONFIG = "task.toml", "task.yaml"
COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
DIFFICULTIES = {"trivial": 1.0, "easy": 1.0, "medium": 2.0, "hard": 3.0, "very hard": 4.0}


class UnsupportedTask(UsageError):
    """A task asks for something that does not run here; the message says what."""


@dataclass(frozen=True)
class TaskFolder:
    """One task.

    Attributes:
        path: of its folder.
        name: of the task among others: its path from where the search began.
        fault: why it is no task that can be read; empty if it can.
    """

    path: Path
    name: str
    fault: str = ""

    @cached_property
    def config(self) -> TaskConfig:
        """What ``task.toml`` says.

        Raises:
            UsageError: it is not valid.
        """
        return read_config(read_text(self.path / CONFIG), f"{self.path / CONFIG}")

    @property
    def steps(self) -> list[TaskStep]:
        """Its steps; empty for a task of one part."""
        return self.config.steps

    @property
    def parts(self) -> list[TaskStep | None]:
        """Its steps; ``None`` stands for the whole of a task without steps."""
        return [*self.steps] or [None]

    @property
    def level(self) -> float | None:
        """Its difficulty as a number; ``None`` where nothing says it."""
        return DIFFICULTIES.get(str(self.config.metadata.get("difficulty", "")).lower())

    def instruction(self, step: TaskStep | None = None) -> str:
        """Return what the policy reads.

        Raises:
            UsageError: there is no such file, or it is empty.
        """
        place = self.part("instruction.md", step)
        text = read_text(place)
        if not text.strip():
            raise UsageError(f"{place} is empty")
        return text

    def part(self, name: str, step: TaskStep | None = None) -> Path:
        """Return the path of a file or folder of the task, or of one of its steps."""
        return self.path / "steps" / step.name / name if step else self.path / name

    def solution(self, step: TaskStep | None = None) -> Path | None:
        """Return the folder with ``solve.sh``; ``None`` without a solution."""
        for place in [self.part("solution", step)] + ([self.path / "solution"] if step else []):
            if (place / "solve.sh").is_file():
                return place
        return None

    def tests(self, step: TaskStep | None = None) -> list[Path]:
        """Return the folders of the verifier, of which later ones add to earlier ones.

        Raises:
            UsageError: none has ``test.sh``.
        """
        places = [self.path / "tests"] + ([self.part("tests", step)] if step else [])
        places = [place for place in places if place.is_dir()]
        if not any((place / "test.sh").is_file() for place in places):
            raise UsageError(f"{self.path}: there is no tests/test.sh")
        return places

    def check(self) -> None:
        """Check that the task can run here.

        Raises:
            UnsupportedTask: it cannot.
            UsageError: a file is missing or not valid.
        """
        if self.fault:
            raise UnsupportedTask(self.fault)
        found = unsupported(self.config)
        for folder in (self.path / "environment", self.path / "tests"):
            for name in COMPOSE:
                if (folder / name).is_file():
                    found += compose_faults(read_yaml(folder / name))
        if found:
            raise UnsupportedTask(f"{self.path}: not supported: {'; '.join(found)}")
        for step in self.parts:
            self.instruction(step)
            if not self._bundled(step):
                self.tests(step)
        self.image()

    def image(self) -> BuildContext | str:
        """Return what the policy's container is made of: a build context, or the name of an image.

        Raises:
            UsageError: there is neither a Dockerfile nor ``docker_image``.
        """
        return self._built(
            self.path / "environment",
            # A folder with its Dockerfile can be built where the image's registry is not reached.
            self.config.environment.docker_image,
            self.config.environment.build_timeout_sec,
        )

    def verifier_image(self, step: TaskStep | None = None) -> tuple[BuildContext | str, bool]:
        """Return what a separate verifier's container is made of, and whether its tests are in the
        image.
        """
        tables = [(step.verifier, self.part("tests", step))] if step else []
        tables.append((self.config.verifier, self.path / "tests"))
        for verifier, place in tables:
            table = verifier.environment
            if (place / "Dockerfile").is_file() or (table is not None and table.docker_image):
                seconds = table.build_timeout_sec if table else 600.0
                return self._built(place, table.docker_image if table else None, seconds), True
        return self.image(), False

    def _bundled(self, step: TaskStep | None) -> bool:
        return (
            mode_of(self.config, step or self.config) == "separate" and self.verifier_image(step)[1]
        )

    def _built(self, place: Path, image: str | None, seconds: float) -> BuildContext | str:
        if (place / "Dockerfile").is_file():
            return BuildContext(place, read_text(place / "Dockerfile"), seconds=seconds)
        if image:
            return image
        raise UsageError(f"{place} has no Dockerfile, and task.toml names no docker_image")


def folders(data: Path) -> Iterator[TaskFolder]:
    """Yield the tasks at and below *data* in the order of their paths; of old ones (`OLD_CONFIG`)
    too.

    Raises:
        UsageError: there is none.
    """
    count = 0
    for parent, names, files in os.walk(data):
        names.sort()
        if CONFIG in files or OLD_CONFIG in files:
            names.clear()
            count += 1
            place = Path(parent)
            name = place.relative_to(data).as_posix()
            yield TaskFolder(place, place.name if name == "." else name)
    if not count:
        raise UsageError(f"{data} has no folder with {CONFIG} or {OLD_CONFIG}")


def compose_faults(compose: Any) -> list[str]:
    """Return why a compose file cannot run as one container; empty if it can: it has one service,
    which says nothing but how it is built.
    """
    services = compose.get("services") if isinstance(compose, dict) else None
    if not isinstance(services, dict) or not services:
        return ["a compose file without services"]
    if len(services) > 1:
        return [f"several services ({', '.join(map(str, services))})"]
    (service,) = services.values()
    known = {"build", "image", "command", "container_name", "tty", "stdin_open", "deploy", "init"}
    further = sorted(set(service or {}) - known)
    return [f"a compose file with {', '.join(further)}"] if further else []


def read_text(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise UsageError(f"there is no {place}") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{place} is no text in UTF-8 ({e.reason} at byte {e.start})") from e
    except OSError as e:
        raise UsageError(f"cannot read {place}: {e.strerror}") from e


def read_yaml(place: Path) -> Any:
    try:
        return yaml.safe_load(read_text(place))
    except yaml.YAMLError as e:
        raise UsageError(f"{place}: not YAML ({str(e).partition(chr(10))[0]})") from e
