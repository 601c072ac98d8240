"""The recipe of a run: one strict TOML file.

Every key has a default except ``use`` of an environment. ``args`` are arguments of the component
``use``, checked against its signature when it is bound.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from ..errors import RecipeError, did_you_mean, nearest
from ..interfaces.agent import Limits
from ..registry.discovery import short_name
from ..registry.lookup import current
from ..store.toml import DEEPEST, read_toml
from ..types.sampling import Sampling
from .errors import describe, short, synonyms
from .extends import (
    BUNDLED,
    RecipeLayer,
    bundled_text,
    fix_for_data,
    layers,
    merged,
    not_text,
    put,
)
from .extends import KEY as EXTENDS

Name = Annotated[str, Field(min_length=1)]
Args = dict[str, Any]
_Beta = Annotated[float, Field(ge=0, lt=1)]


def _count_or(*words: str, smallest: int = 1, largest: int = 10_000_000) -> PlainValidator:
    """Return a whole number from *smallest* to *largest*, or one of *words*."""

    def check(value: Any) -> Any:
        if value in words or (type(value) is int and smallest <= value <= largest):
            return value
        raise ValueError(
            f"expected a whole number from {smallest} to {largest:,}, or "
            f"{' or '.join(map(repr, words))}"
        )

    return PlainValidator(check)


def _above_zero_or_none(value: Any) -> Any:
    if value != "none" and not (isinstance(value, (int, float)) and 0 < value < math.inf):
        raise ValueError("expected a number above 0, or 'none'")
    return value if value == "none" else float(value)


def _temperature(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value != "sampling" and not (number and 0 <= value <= 100):
        raise ValueError("expected a number from 0 (greedy) to 100, or 'sampling'")
    return value if value == "sampling" else float(value)


def _true_false_or_auto(value: Any) -> Any:
    if value not in (True, False, "auto") or not isinstance(value, (bool, str)):
        raise ValueError("expected true or false, or 'auto'")
    return value


_AboveZero = Annotated[float | Literal["none"] | None, PlainValidator(_above_zero_or_none)]


# Code wants None for "all", which TOML cannot write.
_ALL_TO_NONE = AfterValidator(lambda value: None if value == "all" else value)
_NONE_TO_ALL = PlainSerializer(lambda value: "all" if value is None else value)


def _run_name(name: str) -> str:
    if name and (
        name.startswith(".")
        or set(name) & set("/\\")
        or not name.isprintable()
        or len(name.encode()) > 200
    ):
        raise ValueError(
            "expected a folder's name: no slash, leading dot or control character, at most 200 "
            "bytes"
        )
    if name == "rm":
        raise ValueError("expected another name, since `quintain runs rm` removes runs")
    return name


def _folder(text: str) -> str:
    if "\0" in text or any(len(name.encode(errors="replace")) > 255 for name in text.split("/")):
        raise ValueError("expected a path: no NUL, and at most 255 bytes in each name")
    return text


class _Table(BaseModel):
    # Strict: "3" is not a number and 3.0 is not a count. Tuple fields say strict=False, since TOML
    # gives lists.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunTable(_Table):
    """``[run]``. An empty *name* is derived from the first environment. *folder* is the parent of
    the run folders.

    *max_sample_mismatch* limits ``mismatch.sample``, in nats (default: what the precision
    explains), or is ``"none"``.
    """

    name: Annotated[str, AfterValidator(_run_name)] = ""
    seed: int = Field(default=0, ge=0, lt=2**63)
    steps: int = Field(default=100, ge=1)
    folder: Annotated[Name, AfterValidator(_folder)] = "runs"
    max_sample_mismatch: _AboveZero = None


# peft wants this one word as text, and all other names as a list.
_LINEAR_AS_LIST = BeforeValidator(lambda value: ["all-linear"] if value == "all-linear" else value)
_LINEAR_AS_TEXT = PlainSerializer(
    lambda value: "all-linear" if value == ("all-linear",) else list(value)
)


class LoraTable(_Table):
    """``[model.lora]``: low-rank adapters (Hu et al. 2021, arXiv:2106.09685); names as in peft."""

    r: int = Field(default=16, ge=1)
    lora_alpha: int = Field(default=32, ge=1)
    target_modules: Annotated[
        tuple[Name, ...], Field(strict=False, min_length=1), _LINEAR_AS_LIST, _LINEAR_AS_TEXT
    ] = ("all-linear",)


class StartTable(_Table):
    """``[model.start]``: settings of the model source ``model.name``, such as ``default``.

    Folders and hub models ignore *args*, so that ``--model`` works with any recipe.
    """

    args: Args = {}


class ModelTable(_Table):
    """``[model]``. *name* is a Hugging Face id, a folder, or a model source: ``"default"`` trains a
    small model itself.

    *dtype* is the precision of the engine; the learner's master weights are always float32. With
    ``"auto"`` it is what this machine computes faster, as for ``learner.precision``.
    *tool_format* is how tool calls are written, ``"auto"`` as in the chat template. *template* has
    arguments of the chat template, such as ``{ enable_thinking = false }``. *history* is how a
    conversation goes on: ``"template"`` renders all messages anew, ``"append"`` the new ones only;
    ``"auto"`` is as saved with the model, else ``"template"``.
    """

    name: Name = "default"
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64", "bf16", "fp16", "auto"],
        synonyms(bf16="bfloat16", fp16="float16"),
    ] = "float32"
    device: Name = "auto"
    tool_format: Name = "auto"
    template: Args = {}
    history: Literal["auto", "append", "template"] = "auto"
    lora: LoraTable | None = None
    start: StartTable = StartTable()


class ComponentTable(_Table):
    """A component by name, and its configuration."""

    use: Name
    args: Args = {}

    @property
    def label(self) -> str:
        """The name without its distribution."""
        return short_name(self.use)


class EngineTable(ComponentTable):
    """``[engine]``."""

    use: Name = "embedded"


class ScheduleTable(ComponentTable):
    """``[schedule]``: how far sampling runs ahead of the learner."""

    use: Name = "sync"


class AlgorithmTable(ComponentTable):
    """``[algorithm]``. *use* is the name of an algorithm; *args* override its settings and
    pieces.
    """

    use: Name = "dr_grpo"


class LimitsTable(_Table):
    """``[environments.limits]``: by default the environment's; ``"none"`` removes a limit."""

    turns: Annotated[int | Literal["none"] | None, _count_or("none")] = None
    tokens: Annotated[int | Literal["none"] | None, _count_or("none")] = None
    seconds: _AboveZero = None
    reward_seconds: _AboveZero = None
    compact_at: Annotated[float, Field(gt=0, le=1)] | Literal["none"] | None = None

    def over(self, limits: Limits) -> Limits:
        """Return *limits*, overridden by this table."""
        values = self.model_dump(exclude_none=True)
        return replace(limits, **{k: None if v == "none" else v for k, v in values.items()})


class EnvironmentTable(ComponentTable):
    """``[[environments]]``: *weight* is the share of groups.

    *reward*, *shaping* and *yardstick* (expressions) and *system* (a message) replace the
    environment's own. The yardstick is reported and never trains.
    """

    weight: float = Field(default=1.0, gt=0)
    reward: Name | None = None
    shaping: Name | None = None
    yardstick: Name | None = None
    limits: LimitsTable = LimitsTable()
    system: str | None = None


_Numbers = Annotated[tuple[float, ...], Field(strict=False)]


def _flat(schedules: Any) -> Any:
    """Join the keys of nested tables, which keys with dots that have no quotes make."""
    if not isinstance(schedules, Mapping):
        return schedules
    out: dict[str, Any] = {}
    for key, table in schedules.items():
        nested = isinstance(table, Mapping) and any(isinstance(v, Mapping) for v in table.values())
        inner = _flat(table) if nested else {"": table}
        out |= {f"{key}.{name}" if name else key: value for name, value in inner.items()}
    return out


class SamplingTable(_Table):
    """``[sampling]``, of training; *max_tokens* is for one turn, and *schedules* multiply the
    temperature by step (`quintain.interfaces.factors`).
    """

    temperature: float = Field(default=1.0, gt=0, le=100)
    max_tokens: int = Field(default=256, ge=1)
    stop: Annotated[tuple[Name, ...], Field(strict=False)] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    schedules: dict[Literal["temperature"], dict[Name, _Numbers]] = {}

    @model_validator(mode="after")
    def _no_truncation(self) -> SamplingTable:
        keys = [
            k for k, off in (("top_p", 1), ("top_k", 0), ("min_p", 0)) if getattr(self, k) != off
        ]
        if keys:
            raise ValueError(
                f"{' and '.join(keys)} cannot be used in training: the learner scores tokens under "
                "the whole distribution, so it would train another policy than the one that "
                "sampled; remove the key"
            )
        return self

    def to_sampling(self) -> Sampling:
        """Return the settings for the engine."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens, stop=self.stop)


class BatchTable(_Table):
    """``[batch]``: *prompts* tasks a step with *group_size* rollouts each. A group with fewer than
    *min_group_size* valid samples is rejected (default: set by the algorithm). An episode that
    failed for reasons other than the policy is retried *retries* times. *concurrency* limits
    concurrent episodes (default: set by the engine).
    """

    prompts: int = Field(default=32, ge=1, le=1_000_000)
    group_size: int = Field(default=8, ge=1, le=65_536)
    min_group_size: int | None = Field(default=None, ge=1)
    retries: int = Field(default=1, ge=0)
    concurrency: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _enough(self) -> BatchTable:
        if self.prompts * self.group_size > 10_000_000:
            raise ValueError(
                "prompts times group_size is over 10,000,000 rollouts a step; lower one of them"
            )
        if self.min_group_size is not None and self.min_group_size > self.group_size:
            raise ValueError(
                f"min_group_size is {self.min_group_size}; expected at most group_size, which is "
                f"{self.group_size}"
            )
        return self


class LearnerTable(_Table):
    """``[learner]``: the learner component *use*, and AdamW.

    *schedules* multiply ``lr`` and numbers of the algorithm by step (`quintain.interfaces.factors`).
    *token_budget* is the size of a micro-batch in tokens (default: chosen by the learner). *args*
    are further settings of the component.
    *float32_head* computes logits in float32 also with a lower *precision*; an algorithm can
    require it too.
    """

    use: Name = "torch"
    lr: float = Field(default=1e-6, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    schedules: Annotated[dict[Name, dict[Name, _Numbers]], BeforeValidator(_flat)] = {}
    weight_decay: float = Field(default=0.0, ge=0)
    betas: Annotated[tuple[_Beta, _Beta], Field(strict=False)] = (0.9, 0.999)
    max_grad_norm: float = Field(default=1.0, ge=0)
    precision: Annotated[
        Literal["float32", "bf16", "fp16", "bfloat16", "float16", "auto"],
        synonyms(bfloat16="bf16", float16="fp16"),
    ] = "float32"
    float32_head: bool = False
    token_budget: int | None = Field(default=None, ge=1)
    checkpoint_activations: bool = False
    args: Args = {}

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of a learner, as `PolicyLearner` lists them."""
        options = self.model_dump(exclude_none=True, exclude={"use", "args"})
        options["activation_checkpointing"] = options.pop("checkpoint_activations")
        if not self.schedules:
            del options["schedules"]  # a learner of a plugin may know none
        return options


class FinalTable(_Table):
    """``[evaluation.test]``: before and after training. *tasks* ``"all"``: a finite split; 0: no
    evaluation.

    *other_decoding*: also the other way of decoding, on at most 200 tasks: greedy if
    ``evaluation.temperature`` is above 0, else at ``sampling.temperature``. ``"auto"``: unless a
    service may cost money with each call (`quintain.recipe.resolve.costly_service`).
    """

    split: Literal["train", "dev", "test"] = "test"
    tasks: Annotated[int | None, _count_or("all", smallest=0), _ALL_TO_NONE, _NONE_TO_ALL] = 200
    other_decoding: Annotated[bool | Literal["auto"], BeforeValidator(_true_false_or_auto)] = "auto"


class EvaluatedTable(EnvironmentTable):
    """``[[evaluation.environments]]``, instead of those of training. *weight* is the share of the
    accuracy (0: none). *split* and *tasks* replace those of ``[evaluation]`` in evaluations while
    training.
    """

    weight: float = Field(default=1.0, ge=0)
    name: Name | None = None
    split: Literal["train", "dev", "test"] | None = None
    tasks: Annotated[int | Literal["all"] | None, _count_or("all")] = None


class EvaluationTable(_Table):
    """``[evaluation]``: held-out accuracy each *every* steps (0: never) on *tasks* of *split*.

    *temperature* is 0 (greedy), a number, or ``"sampling"``: that of ``[sampling]``.
    """

    every: int = Field(default=10, ge=0)
    split: Literal["train", "dev", "test"] = "dev"
    tasks: Annotated[int | None, _count_or("all"), _ALL_TO_NONE, _NONE_TO_ALL] = 200
    samples: int = Field(default=1, ge=1, le=65_536)
    temperature: Annotated[float | Literal["sampling"], PlainValidator(_temperature)] = 0.0
    max_tokens: int | None = Field(default=None, ge=1)
    test: FinalTable = FinalTable()
    environments: Annotated[tuple[EvaluatedTable, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _some_weight(self) -> EvaluationTable:
        if self.environments and not any(table.weight for table in self.environments):
            raise ValueError(
                "every weight of [[evaluation.environments]] is 0; the accuracy needs one above 0"
            )
        return self

    def to_sampling(self, sampling: SamplingTable) -> Sampling:
        """Return the settings for the engine; other settings are from *sampling*."""
        temperature = sampling.temperature if self.temperature == "sampling" else self.temperature
        return sampling.to_sampling().replace(
            temperature=temperature, max_tokens=self.max_tokens or sampling.max_tokens
        )

    def other_decoding_temperature(self, sampling: SamplingTable) -> float:
        """Return 0 (greedy) if the accuracy is sampled, else the temperature of *sampling*."""
        return 0.0 if self.to_sampling(sampling).temperature else sampling.temperature


class CheckpointTable(_Table):
    """``[checkpoint]``: each *every* steps (0: at the end). Keeps the last *keep* and the *best*
    held-out one.
    """

    every: int = Field(default=20, ge=0)
    keep: int = Field(default=3, ge=1)
    best: bool = True


class PlacementTable(_Table):
    """``[cluster]``: what starts the processes of the learner, of episodes, and the servers of the
    engine; ``None`` is this machine.
    """

    use: Name | None = None
    args: Args = {}


class WorkersTable(ComponentTable):
    """``[workers]``: *episodes* processes that play the episodes (0: the process of the run). *args*
    are further settings of the component *use*.
    """

    use: Name = "episodes"
    episodes: int = Field(default=0, ge=0, le=1024)


class RolloutsTable(_Table):
    """``[rollouts]``: *keep* ``"all"``, ``"none"``, or the last *keep* steps."""

    keep: Annotated[int | Literal["all", "none"], _count_or("all", "none")] = "all"


class StopTable(_Table):
    """``[stop]``: end before ``run.steps`` at a held-out *accuracy*, or after *minutes*. *samples*,
    *tokens* and *seconds* limit training and difficulty measurement, without evaluation: the
    budgets of `quintain compare`. The step that reaches a limit is the last.
    """

    accuracy: float | None = Field(default=None, gt=0, le=1)
    minutes: float | None = Field(default=None, gt=0)
    samples: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)


class Recipe(_Table):
    """A complete recipe.

    Attributes:
        BUNDLED: names of the recipes that come with the package, which `load` takes.
    """

    BUNDLED: ClassVar[tuple[str, ...]] = BUNDLED

    run: RunTable = RunTable()
    model: ModelTable = ModelTable()
    engine: EngineTable = EngineTable()
    environments: Annotated[tuple[EnvironmentTable, ...], Field(strict=False, min_length=1)]
    algorithm: AlgorithmTable = AlgorithmTable()
    schedule: ScheduleTable = ScheduleTable()
    sampling: SamplingTable = SamplingTable()
    batch: BatchTable = BatchTable()
    learner: LearnerTable = LearnerTable()
    evaluation: EvaluationTable = EvaluationTable()
    checkpoint: CheckpointTable = CheckpointTable()
    rollouts: RolloutsTable = RolloutsTable()
    stop: StopTable = StopTable()
    workers: WorkersTable = WorkersTable()
    cluster: PlacementTable = PlacementTable()
    services: dict[Name, ComponentTable] = {}
    trackers: Annotated[tuple[ComponentTable, ...], Field(strict=False)] = ()

    @property
    def evaluated(self) -> tuple[EvaluatedTable, ...]:
        """The environments of the evaluations, by default those of training."""
        return self.evaluation.environments or tuple(
            EvaluatedTable(**dict(t)) for t in self.environments
        )

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Read a file and the recipes that it extends; *overrides* are ``a.b=value`` as in
        ``--set``.

        Raises:
            RecipeError: no such file, not TOML, or a wrong key, type or value; with file, line and
                fix.
        """
        path = Path(path)
        try:
            text = (
                bundled_text(str(path))
                if str(path) in BUNDLED
                else path.read_text(encoding="utf-8")
            )
        except FileNotFoundError as e:
            if fix_for_data(str(path)):
                near = nearest(path.name, (p.name for p in path.parent.glob(f"*{path.suffix}")))
                fix = fix_for_data(str(path.parent / near)) if near else ""
                raise RecipeError(f"there is no file {str(path)!r}{fix}") from e
            if path.name == str(path) and (found := sorted(Path().glob(f"*/{path.stem}.toml"))):
                raise RecipeError(
                    f"{path.name!r} is no recipe, file or environment here; did you mean "
                    f"{str(found[0])!r}?"
                ) from e
            names = [*BUNDLED, *(c.name for c in current().components("environment"))]
            near = did_you_mean(path.name, [*names, *(p.name for p in path.parent.glob("*.toml"))])
            known = (
                f"; recipes are {', '.join(BUNDLED)}; `quintain list environments` shows the "
                "environments, docs/worked-recipes.md more recipes"
            )
            raise RecipeError(
                f"{str(path)!r} is no recipe, file or environment{near or known}"
            ) from e
        except IsADirectoryError as e:
            raise RecipeError(
                f"{str(path)!r} is a folder, and a recipe is a file; `quintain runs {path}` shows a "
                f"run, `quintain train --resume {path}` continues it"
            ) from e
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else not_text(e)
            raise RecipeError(
                f"cannot read the recipe {str(path)!r}: {reason}{fix_for_data(str(path))}"
            ) from e
        return cls.parse(text, overrides, source=str(path), folder=path.parent)

    @classmethod
    def parse(
        cls,
        text: str,
        overrides: Sequence[str] = (),
        *,
        source: str = "recipe",
        folder: str | Path = ".",
    ) -> Recipe:
        """Read TOML *text*; *source* is its name in errors, *folder* the base of a path in
        ``extends``.

        Raises:
            RecipeError: as `load`.
        """
        sources = layers(text, source, Path(folder))
        data = deepcopy(merged(sources))
        raw = [parsed_override(o) for o in overrides]
        for path, value, _ in raw:
            if path == (EXTENDS,):
                raise RecipeError(
                    f"--set {EXTENDS}: {EXTENDS!r} is valid only at the top of a recipe file"
                )
            put(data, path, value)
        return cls.of(data, sources=sources, raw={path: written for path, _, written in raw})

    @classmethod
    def of(
        cls,
        data: Mapping[str, Any],
        *,
        sources: Sequence[RecipeLayer] = (),
        raw: Mapping[tuple[str, ...], str] | None = None,
    ) -> Recipe:
        """Check plain *data*.

        Args:
            sources: the recipes of the data, for line numbers.
            raw: overrides as typed, by path: if text is expected, ``run.name=5`` is the text ``5``.

        Raises:
            RecipeError: as `load`.
        """
        typed = dict(raw or {})
        try:
            return cls.model_validate(data)
        except ValidationError as e:
            expecting_text = {
                tuple(map(str, error["loc"]))
                for error in e.errors()
                if error["type"] == "string_type"
            }
            texts = expecting_text & typed.keys()
            if not texts:
                text = describe(
                    e, cls, sources=sources or [RecipeLayer("recipe", "", data)], typed=typed
                )
                raise RecipeError(text) from None
        fixed = deepcopy(dict(data))
        for path in texts:
            put(fixed, path, typed.pop(path))
        return cls.of(fixed, sources=sources, raw=typed)

    def replace(self, values: Mapping[str, Any]) -> Recipe:
        """Return a checked copy with *values* by dotted path: ``recipe.replace({"run.name":
        "first"})``.
        """
        data = _without_empty(self.model_dump())
        for path, value in values.items():
            put(data, tuple(path.split(".")), value)
        return type(self).of(data)

    def to_toml(self) -> str:
        """Return the whole recipe with all defaults, for `parse`.

        Raises:
            TypeError: TOML cannot represent an argument.
        """
        # the extra `train` brings it; the standard library reads TOML but does not write it
        import tomli_w

        return tomli_w.dumps(_without_empty(self.model_dump()))


class Override(NamedTuple):
    """A value of a recipe from the command line; *written* is the value as typed."""

    path: tuple[str, ...]
    value: Any
    written: str


def parsed_override(text: str) -> Override:
    """Read ``a.b=value``.

    A value that is not TOML is plain text (``model.name=Qwen/Qwen3-0.6B``).

    Raises:
        RecipeError: no ``=``, or an empty part in the path.
    """
    path, equals, written = text.partition("=")
    parts = tuple(p.strip() for p in path.split("."))
    if not equals or not all(parts):
        raise RecipeError(
            f"cannot read the override {short(text)}; expected section.key=value, as in "
            f"learner.lr=1e-5"
        )
    if len(parts) > DEEPEST or len(path) > 1000:
        raise RecipeError(
            f"cannot read the override {short(text)}; expected at most {DEEPEST} keys, 1,000 "
            f"characters"
        )
    written = written.strip()
    return Override(parts, _scalar(written), written)


def _scalar(written: str) -> Any:
    try:
        data = read_toml(f"value = {written}")
    except tomllib.TOMLDecodeError:
        if written[:1] in ("[", "{", '"', "'"):
            raise RecipeError(
                f"cannot read {short(written)}: it begins like TOML but is not valid TOML"
            ) from None
        return written
    except ValueError as e:
        raise RecipeError(f"cannot read {short(written)}: {e}") from None
    value = data["value"]
    # One line can hold one value; dates have no use in a recipe, so 2026-01-01 is text.
    return (
        value
        if len(data) == 1 and isinstance(value, (bool, int, float, str, list, dict))
        else written
    )


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    """Remove empty tables, such as ``args`` and ``limits``, which are the default."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if key == "args":
            content: Any = _without_none(value)
        elif isinstance(value, Mapping):
            content = _without_empty(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Mapping):
            content = [_without_empty(row) for row in value]
        else:
            content = value
        if content is not None and content != {}:
            out[key] = content
    return out


def _without_none(value: Any) -> Any:
    """Remove keys with the value ``None`` at every depth: TOML has no null."""
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, (list, tuple)) else value
