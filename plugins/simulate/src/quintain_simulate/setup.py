"""The cluster and the episodes of a simulation: `SimulationSetup`, by default, from a file, from options."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from quintain.errors import UsageError
from quintain.recipe import parsed_override, put

from .distributions import Distribution

Written = Annotated[
    Distribution,
    BeforeValidator(lambda v: v if isinstance(v, Distribution) else Distribution.parse(v)),
]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    def written(self) -> dict[str, Any]:
        """Return the keys that have a value."""
        return self.model_dump(exclude_none=True)


class ClusterTable(_Table):
    """Which GPUs sample and which learn.

    Attributes:
        gpu: of ``hardware.toml``.
        engines: that sample, each with *gpus_per_engine*.
        learner_gpus: of the learner.
        shared: engines and learner are the same GPUs, in turns. A synchronous schedule only.
        replicas: of the engine ``pool``; the engines are divided among them. 0 is one for each
            engine, up to 64.
        segment, late: of the engine ``pool``.
        network: GB/s of a GPU to other nodes.
    """

    gpu: str = "h100"
    engines: int = Field(default=1, ge=1)
    gpus_per_engine: int = Field(default=1, ge=1)
    learner_gpus: int = Field(default=1, ge=1)
    shared: bool = False
    replicas: int = Field(default=0, ge=0)
    segment: int = Field(default=0, ge=0)
    late: int = Field(default=0, ge=0)
    network: Positive = 50.0


class AssumedTable(_Table):
    """What no data sheet says.

    Attributes:
        bandwidth: share of the memory's bandwidth that decoding reaches.
        compute: share of the FLOP/s that prompts and large batches reach.
        mfu: share of the FLOP/s that the learner reaches, as 6 operations a parameter and token.
        step: seconds of a step of decoding beside reading and computing.
        exchange: seconds of an exchange between the GPUs of an engine, two a layer.
        memory: share of the memory for weights, keys and values.
        update: seconds of an update beside its tokens.
        transfer: seconds of a transfer of weights beside its bytes.
    """

    bandwidth: Share = 0.7
    compute: Share = 0.5
    mfu: Share = 0.35
    step: Positive = 0.004
    exchange: Positive = 1e-5
    memory: Share = 0.9
    update: Positive = 1.0
    transfer: Positive = 0.5


class EngineSpeedTable(_Table):
    """Seconds of an engine, in place of those by its GPU; see `EngineCosts`."""

    overhead: Positive | None = None
    weights: Positive | None = None
    compute: Positive | None = None
    sequence: Positive | None = None
    context: Positive | None = None
    prefill: Positive | None = None
    prefill_context: Positive | None = None
    slots: Annotated[int, Field(ge=1)] | None = None
    capacity: Annotated[float, Field(gt=0)] | None = None


class LearnerSpeedTable(_Table):
    """Seconds of the learner, in place of those by its GPUs; see `LearnerCosts`."""

    base: Positive | None = None
    sequence: Positive | None = None
    token: Positive | None = None
    pair: Positive | None = None
    transfer: Positive | None = None


class EpisodesTable(_Table):
    """What episodes are like; see `Episodes`. Without *reply*, it is a log-normal whose median is a
    quarter of ``sampling.max_tokens``.
    """

    turns: Written = Distribution.parse(1)
    prompt: Written = Distribution.parse(256)
    reply: Written | None = None
    added: Written = Distribution.parse(64)
    wait: Written = Distribution.parse(0)
    start: Written = Distribution.parse(0)
    lost: float = Field(default=0.0, ge=0, lt=1)


class FailuresTable(_Table):
    """How often engines go down: hours between two failures of one, 0 is never."""

    hours: Positive = 0.0
    restart: Positive = 60.0


class SimulationSetup(_Table):
    """All that a simulation needs beside the recipe.

    Attributes:
        model: a size such as ``8b``; without it, the configuration of the recipe's model counts.
    """

    model: str = ""
    cluster: ClusterTable = ClusterTable()
    assumed: AssumedTable = AssumedTable()
    engine: EngineSpeedTable = EngineSpeedTable()
    learner: LearnerSpeedTable = LearnerSpeedTable()
    episodes: EpisodesTable = EpisodesTable()
    failures: FailuresTable = FailuresTable()

    @classmethod
    def load(
        cls,
        path: Path | None,
        changes: Sequence[str] = (),
        base: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> SimulationSetup:
        """Return the setup of a TOML file with *changes*, each ``a.b=VALUE``, over the tables of
        *base*.

        Raises:
            UsageError: the file cannot be read, or a key or value is refused.
        """
        try:
            table: dict[str, Any] = tomllib.loads(path.read_text()) if path else {}
        except (OSError, ValueError) as e:
            raise UsageError(f"{path} cannot be read: {e}") from e
        for name, values in (base or {}).items():
            table[name] = {**values, **table.get(name, {})}
        for text in changes:
            change = parsed_override(text)
            put(table, change.path, change.value)
        return cls.of(table)

    @classmethod
    def of(cls, table: dict[str, Any]) -> SimulationSetup:
        """Return the setup of plain data.

        Raises:
            UsageError: a key or value is refused.
        """
        try:
            return cls.model_validate(table)
        except ValidationError as e:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in e.errors()
            )
            raise UsageError(f"the setup of the simulation is refused: {faults}") from e

    def plain(self) -> dict[str, Any]:
        """Return the setup as plain data, from which `of` makes it again."""
        table: dict[str, Any] = {"model": self.model}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, _Table):
                # `model_dump` would take distributions apart
                fields = {key: getattr(value, key) for key in type(value).model_fields}
                table[name] = {
                    key: v.text if isinstance(v, Distribution) else v
                    for key, v in fields.items()
                    if v is not None
                }
        return table
