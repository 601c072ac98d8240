"""What `quintain add` is about to do: resolved, downloaded and verified, and nothing installed yet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quintain.errors import PluginError
from quintain.registry import normalise

from .installer import (
    Item,
    Sources,
    Unresolved,
    install_folders,
    installed,
    packages_folder,
    resolve,
    wheel_of,
)
from .records import CHECKS, PluginRecord, check_address, find
from .wanted import Wanted
from .wheel_file import WheelFile, check_contract, faults, overwritten

_SHARED = re.compile(r"quintain(?![A-Za-z0-9.])")
"""Begins a requirement that virtual environments share with the run."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """An installation that is ready.

    Attributes:
        record: what the registry says, or the wheel itself where no registry was asked.
        listed: a registry says it.
        wheel: of the plugin.
        items: what is installed, the plugin among them.
        conflicts: installed distributions that it cannot go with, in words.
    """

    record: PluginRecord
    listed: bool
    wheel: WheelFile
    items: tuple[Item, ...]
    conflicts: tuple[str, ...] = ()

    @property
    def brought(self) -> tuple[Item, ...]:
        """What is installed beside the plugin."""
        return tuple(item for item in self.items if item.name != self.wheel.name)

    @property
    def plugin(self) -> Item:
        """The plugin itself."""
        return next(item for item in self.items if item.name == self.wheel.name)

    @property
    def requirements(self) -> list[str]:
        """What its own virtual environment has; empty where it needs none."""
        own = [r for r in self.wheel.requires if not _SHARED.match(r)]
        return own if self.conflicts else []

    @property
    def environments(self) -> list[str]:
        """The names of its environments."""
        return sorted(name for kind, name in self.wheel.components if kind == "environment")

    def recipe(self) -> str:
        """Return what a recipe says for the virtual environment; empty where there is none."""
        if not self.requirements:
            return ""
        rows = [f"{_key(name)} = {json.dumps(self.requirements)}" for name in self.environments]
        return "\n".join(["[workers]", "episodes = 2", "", "[workers.args.requirements]", *rows])

    def as_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "name": self.wheel.name,
            "version": self.wheel.version,
            "licence": self.record.licence,
            "needs": [*self.record.needs],
            "memory": self.record.memory,
            "check": self.record.check,
            "listed": self.listed,
            "provides": [*self.record.provides],
            "runs_unasked": self.wheel.runs_unasked(),
            "programs": self.wheel.programs(),
            "installs": [asdict(item) for item in self.items],
            "conflicts": [*self.conflicts],
            "requirements": self.requirements,
            "recipe": self.recipe(),
        }

    def lines(self) -> Iterator[str]:
        """Yield what a person reads before the question."""
        record, wheel = self.record, self.wheel
        yield f"{wheel.name} {wheel.version}" + (f": {record.summary}" if record.summary else "")
        pinned = ", which the registry names" if self.plugin.sha256 in record.hashes else ""
        yield f"  from      {self.plugin.url}"
        yield f"  hash      {self.plugin.sha256}{pinned}"
        yield f"  licence   {record.licence or 'none named'}"
        yield f"  brings    {', '.join(p.replace(':', ' ') for p in record.provides) or 'nothing'}"
        alone = "only what a recipe or a command names"
        yield f"  runs      {'; '.join(wheel.runs_unasked()) or alone}"
        if programs := wheel.programs():
            yield f"  programs  {', '.join(programs)}"
        memory = [f"{record.memory} of memory"] if record.memory else []
        needs = ["docker (images)" if need == "docker" else need for need in record.needs]
        yield f"  needs     {', '.join([*needs, *memory]) or 'nothing that it declares'}"
        word = "" if self.listed else " (it is in no registry)"
        yield f"  checks    {CHECKS[record.check]}{word}"
        here = [f"{item.name} {item.version}" for item in self.items]
        yield f"  installs  {', '.join(here)}"
        yield f"  into      {packages_folder()}; what is there keeps its version"
        if self.conflicts:
            yield f"  conflict  {'; '.join(self.conflicts)}"
            yield f"  so        a virtual environment of its own has {', '.join(self.requirements)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def make_plan(
    wanted: Wanted, listed: PluginRecord | None, sources: Sources, scratch: Path
) -> Installation:
    """Resolve, download and verify.

    Args:
        listed: the record of what is wanted, as `record_of_wanted` returns it.
        scratch: an empty folder.

    Raises:
        UsageError: the name or the pin is wrong, or a wheel without a hash has an address that is
            not of https.
        Unresolved: there are no versions that go together.
        PluginError: the wheel is not what the registry says.
    """
    if listed is not None:
        check_contract(listed)
    name = normalise(listed.name if listed else wanted.name)
    direct = wanted.url or (listed.url if listed else "")
    version = wanted.version or (listed.version if listed else "")
    allowed = {wanted.sha256} if wanted.sha256 else set(listed.hashes if listed else ())
    if direct and not allowed:
        check_address(direct, "wheel")
    requirement = f"{name} @ {direct}" if direct else f"{name}=={version}" if version else name
    items, conflicts = _resolved(name, requirement, sources, scratch)
    if shared := [conflict for conflict in conflicts if _SHARED.match(conflict)]:
        raise Unresolved(
            f"{name} needs another Quintain: {'; '.join(shared)}. pip install --upgrade "
            f"{' '.join(conflict.partition(' ')[0] for conflict in shared)}, or take another version"
        )
    plugin = next(item for item in items if item.name == name)
    if allowed and plugin.sha256 not in allowed:
        raise PluginError(
            f"{plugin.url} has {plugin.sha256}, and {', '.join(sorted(allowed))} was expected. "
            "Nothing was installed"
        )
    wheel = WheelFile(wheel_of(plugin, sources, scratch, direct))
    record = replace(listed, version=wanted.version or listed.version) if listed else None
    own = record or _own_record(wheel, name)
    wrong = faults(wheel, own)
    if taken := overwritten(wheel, install_folders(name)):
        wrong.append(f"it would replace what is there: {', '.join(taken[:5])}")
    if wrong:
        said = "".join(f"\n- {fault}" for fault in wrong)
        raise PluginError(f"{name} is not what it should be; nothing was installed:{said}")
    plan = Installation(
        record=own, listed=bool(listed), wheel=wheel, items=tuple(items), conflicts=tuple(conflicts)
    )
    if conflicts and not plan.environments:
        raise Unresolved(
            f"{name} conflicts with what is installed: {'; '.join(conflicts)}. Only environments "
            "can have packages of their own, and it has none: install it into another virtual "
            "environment, with a Quintain of its own"
        )
    return plan


def record_of_wanted(wanted: Wanted, records: list[PluginRecord]) -> PluginRecord | None:
    """Return the record of what is wanted; ``None`` for a file that no registry lists.

    Raises:
        UnknownNameError: there is no such plugin.
        UsageError: several have the component.
    """
    if not wanted.url:
        return find(records, wanted.name)
    name = normalise(wanted.name)
    return next((record for record in records if normalise(record.name) == name), None)


def _own_record(wheel: WheelFile, name: str) -> PluginRecord:
    try:
        return wheel.own_record()
    except PluginError as e:
        raise PluginError(f"{name} is no plugin of Quintain; nothing was installed: {e}") from e


def _resolved(
    name: str, requirement: str, sources: Sources, scratch: Path
) -> tuple[list[Item], list[str]]:
    """Return what is installed, and what of the installed distributions it conflicts with; then the
    plugin alone is installed.
    """
    try:
        return resolve(requirement, sources, scratch), []
    except Unresolved:
        # Without the pins of what is installed; fails, too, where no version fits at all.
        items = resolve(requirement, sources, scratch, keep=False)
    here = installed()
    conflicts = [
        f"{item.name} {here[item.name]} is installed, and it needs {item.version}"
        for item in items
        if here.get(item.name, item.version) != item.version
    ]
    return [item for item in items if item.name == name], conflicts
