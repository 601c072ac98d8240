"""Lists the installed components from entry-point metadata, one group per kind, without importing
them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from typing import Literal

CORE = "quintain"

GROUPS = {
    "environment": "quintain.environments",  # quintain.Environment
    "reward": "quintain.rewards",  # quintain.Reward, made by @reward or @group_reward
    "algorithm": "quintain.algorithms",  # quintain.Algorithm
    "engine": "quintain.engines",  # quintain.Engine, or TokenEngine for one that can train
    "learner": "quintain.learners",  # quintain.interfaces.learner.PolicyLearner
    "cluster": "quintain.clusters",  # makes a quintain.interfaces.ProcessCluster
    # quintain.interfaces.curriculum.Curriculum; the sampling plan of an algorithm chooses "adaptive"
    "curriculum": "quintain.curricula",
    "model": "quintain.models",  # quintain.recipe.ModelSource
    "schedule": "quintain.schedules",  # quintain.interfaces.schedule.Schedule
    "service": "quintain.services",  # quintain.Service
    "tool_format": "quintain.tool_formats",  # what quintain.models.tokenizer asks of one
    "command": "quintain.commands",  # a click command
    # a module or object with functions quintain_on_*, see quintain.interfaces.events
    "hooks": "quintain.plugins",
}
"""Kind of component to entry-point group, in the order of `quintain list`. Behind each stands its
contract.
"""

KINDS = {group: kind for kind, group in GROUPS.items()}

Origin = Literal["built-in", "installed", "editable", "local"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """The location of a component, which may not be imported yet.

    Attributes:
        kind: a key of `GROUPS`.
        target: ``"module:attribute"``, or ``"module"``.
        distribution: normalised name of the distribution, with its *version*.
        origin: core's own, installed, installed as editable, or in a file or module of this
            process.
    """

    kind: str
    name: str
    target: str
    distribution: str = ""
    version: str = ""
    origin: Origin = "installed"

    @property
    def id(self) -> str:
        return f"{self.distribution}/{self.name}"  # never ambiguous

    @property
    def module(self) -> str:
        return self.target.partition(":")[0].strip()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.distribution} {self.version}".removesuffix(
            " of  "
        ).rstrip()


def discover() -> Iterator[Component]:
    """Yield every installed component in the order of `sys.path`; the first distribution of a name
    hides later ones.
    """
    seen: set[str] = set()
    for dist in distributions():
        try:
            components = _components(dist, seen)
        except (ValueError, TypeError, AttributeError) as error:  # such as bytes that are not UTF-8
            place = getattr(dist, "_path", "without a path")
            logging.getLogger(__name__).warning(
                "distribution %s is unreadable; install it again (%s)", place, error
            )
            continue
        yield from components


def _components(dist: Distribution, seen: set[str]) -> list[Component]:
    """Return the components of *dist*; none if one of its name is in *seen*, to which it is added."""
    # Most distributions declare nothing of ours. Their texts are compared and not parsed, and their
    # METADATA, which holds a README, stays closed: 50 of 60 ms for 175 distributions.
    if "quintain" not in (dist.read_text("entry_points.txt") or ""):
        return []
    entry_points = [e for e in dist.entry_points if e.group in KINDS]
    # `dist.metadata` runs the e-mail parser over the README, too.
    text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    headers = dict(
        re.findall(r"^(Name|Version):\s*(.*?)\s*$", text.partition("\n\n")[0], re.MULTILINE)
    )
    name = normalise(headers.get("Name", ""))
    if not name or name in seen or _is_hidden(dist, headers["Name"]):
        return []
    origin: Origin = "built-in" if name == CORE else "installed"
    if entry_points and name != CORE:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
        if record.get("dir_info", {}).get("editable"):
            origin = "editable"
    seen.add(name)
    return [
        Component(
            kind=KINDS[e.group],
            name=e.name,
            target=e.value.partition("[")[0].strip(),
            distribution=name,
            version=headers.get("Version", ""),
            origin=origin,
        )
        for e in entry_points
    ]


def _is_hidden(dist: Distribution, name: str) -> bool:
    """Return whether another distribution called *name*, perhaps without entry points, comes first
    on `sys.path`.
    """
    try:
        return distribution(name).locate_file("") != dist.locate_file("")
    except PackageNotFoundError:  # its folder has another name than its metadata
        return False


def without_components(name: str) -> str:
    """Return what to do about the installed distribution *name*, or the one that `quintain new`
    calls so, if it declares no component; empty if it does, or if there is none.
    """
    for candidate in (name, f"quintain-env-{name}", f"quintain-{name}"):
        try:
            groups = {e.group for e in distribution(candidate).entry_points}
        except (PackageNotFoundError, ValueError):
            continue
        if not groups & KINDS.keys():
            return (
                f"{candidate} is installed and declares no entry point of a group quintain.*; its "
                f"pyproject.toml needs "
                f"""[project.entry-points."quintain.environments"] with {name} = "module:Class" (or another group: """
                "docs/write-a-plugin.md), then pip install -e . again"
            )
    return ""


def in_order(components: Iterable[Component]) -> list[Component]:
    """Return *components* by kind, name and distribution."""
    return sorted(components, key=lambda c: ([*GROUPS].index(c.kind), c.name, c.distribution))


def normalise(name: str) -> str:
    """Return the name of a distribution as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def short_name(name: str) -> str:
    """Return the component *name* without its distribution, for metrics and messages.

    Files and modules (``file.py:Class``) stay as they are.
    """
    return name if ":" in name else name.rpartition("/")[2]
