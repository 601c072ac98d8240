"""Which devices of a machine sample, and which learn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from quintain.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable of the devices that a process sees."""
Devices = int | Sequence[int] | None
"""How many devices, or their numbers; ``None`` are those that are left."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """Numbers of the devices that *sample* and that *learn*, by *turns* if a device does both.

    Attributes:
        count: of the devices of the machine.
    """

    sample: tuple[int, ...]
    learn: tuple[int, ...]
    turns: bool
    count: int

    @classmethod
    def of(cls, count: int, *, sample: Devices, learn: Devices, turns: bool) -> Self:
        """Divide *count* devices: those that learn are the first, unless numbers say which.

        Raises:
            UsageError: more are asked for than there are, or one is asked for twice.
        """
        if not turns and sample is None and learn is None:
            raise UsageError(
                "cluster machine: which devices learn? Set cluster.args.learn to how many (the others "
                "sample), or cluster.args.turns = true, so that all sample and learn in turns"
            )
        devices = range(count)
        if turns:
            return cls(
                sample=_numbers("sample", learn if sample is None else sample, devices),
                learn=_numbers("learn", sample if learn is None else learn, devices),
                turns=True,
                count=count,
            )
        if learn is None and isinstance(sample, int):
            learn = count - len(_numbers("sample", sample, devices))
        learning = _numbers("learn", learn, devices, taken=_written(sample))
        sampling = _numbers("sample", sample, devices, taken=learning)
        return cls(sample=sampling, learn=learning, turns=False, count=count)


def _written(chosen: Devices) -> Sequence[int]:
    return () if chosen is None or isinstance(chosen, int) else chosen


def _numbers(
    role: str, chosen: Devices, devices: Sequence[int], *, taken: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the numbers of *chosen* devices, of those that are not *taken*.

    Raises:
        UsageError: there are too few, or one is none or taken.
    """
    free = [n for n in devices if n not in taken]
    if chosen is None:
        return tuple(free)
    if isinstance(chosen, int):
        if not 0 <= chosen <= len(free):
            others = f", of which {len(taken)} do something else" if taken else ""
            raise UsageError(
                f"cluster machine: {role} = {chosen}, and there are {len(devices)} devices{others}: "
                f"set cluster.args.{role} to {len(free)} or less, or cluster.args.turns = true, so "
                "that devices sample and learn in turns"
            )
        return tuple(free[:chosen])
    for number in chosen:
        if number not in devices:
            raise UsageError(
                f"cluster machine: {role} has the device {number}, and there are {len(devices)}, "
                f"from 0 to {len(devices) - 1}"
            )
        if number in taken:
            raise UsageError(
                f"cluster machine: the device {number} samples and learns: take it out of "
                "cluster.args.sample or cluster.args.learn, or set cluster.args.turns = true"
            )
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"cluster machine: {role} = {list(chosen)} has a device twice")
    return tuple(chosen)


def taken(free: list[int], needed: int, *, each: int) -> list[int] | None:
    """Take *needed* devices of one machine out of *free*, where each has so many; ``None``, and
    nothing, if no machine has as many left.
    """
    for machine in sorted({number // each for number in free}):
        own = [number for number in free if number // each == machine][:needed]
        if len(own) == needed:
            free[:] = [number for number in free if number not in own]
            return own
    return None if needed else []


def check_machines(machines: int, rendezvous: str | None) -> None:
    """Raise a `UsageError` unless there is a machine, and a place for several to meet."""
    if machines < 1 or (machines > 1 and rendezvous is None):
        raise UsageError(
            f"cluster machine: machines is {machines} and rendezvous {rendezvous!r}; several machines "
            "join at cluster.args.rendezvous, an address of this one, as in node0:29400 (`quintain "
            "launch` prints the job)"
        )


def device_ids(count: int | None) -> list[str]:
    """Return the names of the devices for `VISIBLE`: those that this process sees, or *count* of a
    machine like the one that is meant.

    Raises:
        UsageError: there is none, and *count* says no other number.
    """
    visible = os.environ.get(VISIBLE)
    named = [name.strip() for name in visible.split(",") if name.strip()] if visible else []
    if count is not None:
        return named[:count] if len(named) >= count else [str(n) for n in range(count)]
    seen = devices_here()
    if not seen:
        raise UsageError(
            "cluster machine: torch sees no GPU on this machine; remove [cluster], or set "
            "cluster.args.devices to the number of those of the machine that is meant"
        )
    return (named or [str(n) for n in range(seen)])[:seen]


def devices_here() -> int:
    """Return how many GPUs torch sees."""
    import torch  # here: it takes seconds

    return torch.cuda.device_count()
