"""Lists the installed components from entry-point metadata, one group per kind, without importing
them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, distributions
from typing import Literal

CORE = "quintain"

GROUPS = {
    "environment": "quintain.environments",  # quintain.Environment
    "reward": "quintain.rewards",  # quintain.Reward, made by @reward or @group_reward
    # a function that makes a reward of a plain function
    "reward_adapter": "quintain.reward_adapters",
    "algorithm": "quintain.algorithms",  # quintain.Algorithm
    "engine": "quintain.engines",  # quintain.Engine, or TokenEngine for one that can train
    "learner": "quintain.learners",  # quintain.interfaces.learner.PolicyLearner
    "cluster": "quintain.clusters",  # makes a quintain.interfaces.ProcessCluster
    # quintain.interfaces.curriculum.Curriculum; the sampling plan of an algorithm chooses "adaptive"
    "curriculum": "quintain.curricula",
    "collector": "quintain.collectors",  # quintain.run.collect.Collector; a schedule names it
    "adapters": "quintain.adapters",  # quintain.models.Adapters
    # a function of a folder that returns its weights for `Decoder`, or None
    "loader": "quintain.loaders",
    "decoder": "quintain.decoders",  # a subclass of quintain.models.Decoder, for training
    # a function of a quintain.models.HFTokenizer that returns a quintain.interfaces.Renderer
    "renderer": "quintain.renderers",
    "kernels": "quintain.kernels",  # quintain.models.kernels.AttentionKernels, of a GPU
    "model": "quintain.models",  # quintain.recipe.ModelSource
    "schedule": "quintain.schedules",  # quintain.interfaces.schedule.Schedule
    "service": "quintain.services",  # quintain.Service
    "tool_format": "quintain.tool_formats",  # what quintain.models.tokenizer asks of one
    "command": "quintain.commands",  # a click command
    "planner": "quintain.planners",  # quintain.recipe.planners.Planner
    "check": "quintain.checks",  # a function, see quintain.registry.checks
    "hint": "quintain.hints",  # a function, see quintain.registry.Registry.explain
    "completion": "quintain.completions",  # a function that takes a click command
    # a module or object with functions quintain_on_*, see quintain.interfaces.events
    "hooks": "quintain.plugins",
}
"""Kind of component to entry-point group, in the order of `quintain list`. Behind each stands its
contract.
"""

KINDS = {group: kind for kind, group in GROUPS.items()}

UNNAMED = {
    "reward_adapter": "on plain functions that a recipe names",
    "curriculum": "where an algorithm samples by difficulty",
    "collector": "where a schedule asks for one of its name",
    "adapters": "where a model gets adapters",
    "loader": "where a model is loaded",
    "decoder": "where a model is loaded",
    "renderer": "where a tokenizer is loaded",
    "kernels": "where a GPU computes",
    "planner": "before every run",
    "check": "on every environment that a command uses",
    "hint": "on a name that nothing has",
    "completion": "where a shell completes words",
    "hooks": "in every run",
}
"""Kinds of components that work by being installed, though no recipe and no command names them, and
when they run.
"""

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
            # `dist.metadata` runs the e-mail parser over each README: 200 ms for 187 distributions;
            # this takes 14 ms.
            text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
            headers = dict(
                re.findall(r"^(Name|Version):\s*(.*?)\s*$", text.partition("\n\n")[0], re.MULTILINE)
            )
            name, version = normalise(headers.get("Name", "")), headers.get("Version", "")
            if not name or name in seen:
                continue
            entry_points = [e for e in dist.entry_points if e.group in KINDS]
            record = (
                json.loads(dist.read_text("direct_url.json") or "{}")
                if entry_points and name != CORE
                else {}
            )
            editable = record.get("dir_info", {}).get("editable")
        except (ValueError, TypeError, AttributeError) as error:  # such as bytes that are not UTF-8
            place = getattr(dist, "_path", "without a path")
            logging.getLogger(__name__).warning(
                "distribution %s is unreadable; install it again (%s)", place, error
            )
            continue
        seen.add(name)
        origin: Origin = "built-in" if name == CORE else "editable" if editable else "installed"
        for e in entry_points:
            kind, target = KINDS[e.group], e.value.partition("[")[0].strip()
            yield Component(
                kind=kind,
                name=e.name,
                target=target,
                distribution=name,
                version=version,
                origin=origin,
            )


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
