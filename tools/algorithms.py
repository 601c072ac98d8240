"""Write the tables of docs/algorithms.md from the installed algorithms. A test compares the page
with this output.

python tools/algorithms.py
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from quintain.errors import UsageError
from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.pieces import KINDS, Piece, every_piece
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning.algorithms import ALGORITHMS
from quintain.learning.loss_inputs import LossInputs, RatioPool
from quintain.registry.discovery import discover
from quintain.registry.lookup import Registry
from quintain_authoring.devtools.describe import (
    Difference,
    differences,
    kl_words,
    piece_words,
    settings,
    shown,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "algorithms.md"

PAIRS = (
    ("rloo", "reinforce"),
    ("grpo", "rloo"),
    ("dr_grpo", "grpo"),
    ("dr_grpo", "rloo"),
    ("dapo", "grpo"),
    ("cispo", "grpo"),
    ("dapo", "cispo"),
    ("gspo", "grpo"),
    ("dppo", "cispo"),
    ("reinforce_pp", "reinforce"),
    ("reinforce_pp_baseline", "reinforce_pp"),
    ("maxrl", "rloo"),
    ("kimi", "dr_grpo"),
    ("otb", "rloo"),
    ("trm", "rloo"),
    ("dvp", "rloo"),
    ("scalerl", "cispo"),
    ("olmorl", "dapo"),
    ("sft", "reinforce"),
    ("ppo", "grpo"),
    ("trpo", "ppo"),
    ("vineppo", "ppo"),
    ("tree_credit", "dr_grpo"),
    ("tree_rl", "tree_credit"),
    ("value_steps", "dr_grpo"),
    ("rft", "reinforce"),
    ("dpo", "grpo"),
    ("dpo_norm", "dpo"),
    ("simpo", "dpo_norm"),
    ("kto", "dpo"),
    ("opd", "rloo"),
    ("gkd", "opd"),
    ("opsd", "opd"),
)
"""Pairs for the table of differences; every algorithm except `reinforce` is on the left exactly
once.
"""

REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("grpo", {"ratio_to": "mu", "correction": "tis"}),
    ("grpo", {"correction": "tis", "objective": "gspo"}),
    ("grpo", {"ratio_to": "mu", "objective": "dppo_top"}),
    ("rloo", {"optimizer_step": "natural", "epochs": 2}),
    ("grpo", {"objective": "dpo", "kl": {"where": "reward"}}),
    ("grpo", {"kl": {"estimator": "k1"}}),
    ("rloo", {"objective": "sequence_clip"}),
    ("rloo", {"optimizer_step": "natural", "prune": 1e-3}),
    ("vineppo", {"overlong": 0.2}),
    ("tree_credit", {"kl": {"where": "reward", "coefficient": 0.1}}),
    ("maxrl", {"overlong": 0.2}),
    ("sft", {"overlong": 0.2}),
)
"""Algorithms with changes that raise an error: one for each error about a pair of settings in
`quintain.interfaces.algorithm`, and those of pieces (their ``fits``).
"""

NOTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("grpo", {}),
    ("rloo", {"epochs": 2}),
    ("grpo", {"kl": {"where": "reward"}}),
    ("dapo", {"plan": {"staleness": 8}}),
    ("sft", {}),
)
"""Algorithms with changes that are allowed and print a note."""

CHOICES = (
    *(
        "algorithm",
        "advantage",
        "objective, trust region",
        "ratio",
        "correction",
        "aggregation",
        "KL",
    ),
    *("group filter, resampling", "updates", "what else"),
)
"""The columns of the table of choices."""

_ARXIV = re.compile(r"arXiv (\d{4}\.\d{5})")
_SENTENCE = re.compile(r"(?<!\bDr)(?<!\bal)(?<!\be\.g)\.\s+(?=[A-Z`*])")


def algorithms() -> dict[str, tuple[str, Algorithm]]:
    """All algorithms of the workspace by name, each with its distribution; those of core come
    first.
    """
    by_name = {name: ("quintain", algorithm) for name, algorithm in ALGORITHMS.items()}
    members = [
        tomllib.loads(p.read_text())["project"]["name"]
        for p in sorted(ROOT.glob("plugins/*/pyproject.toml"))
    ]
    for component in sorted(discover(), key=lambda c: (c.distribution, c.name)):
        if component.kind == "algorithm" and component.distribution in members:
            by_name[component.name] = (
                component.distribution,
                Registry([component]).resolve(component),
            )
    return by_name


def pieces() -> dict[str, tuple[str, Piece]]:
    """All pieces of these packages by ``kind.name``, each with its distribution; those of core come
    first.
    """
    packages = {owner.replace("-", "_"): owner for owner, _ in algorithms().values()}
    by_name = {
        f"{piece.kind}.{piece.name}": (packages[package], piece)
        for piece in every_piece()
        if (package := piece.function.__module__.partition(".")[0]) in packages
    }
    owners = list(packages.values())
    return dict(
        sorted(
            by_name.items(),
            key=lambda x: (KINDS.index(x[1][1].kind), owners.index(x[1][0]), x[0]),
        )
    )


def summary(piece: Piece) -> str:
    """Return the first sentence of a piece's docstring.

    Raises:
        ValueError: its formula is in the block below it, which a table has no place for.
    """
    text = " ".join((piece.function.__doc__ or "").partition("\n\n")[0].split())
    sentence = _SENTENCE.split(text, maxsplit=1)[0].rstrip(".")
    if sentence.endswith(":"):
        raise ValueError(f"{piece!r}: write the formula into the first sentence: {sentence}")
    return sentence + "."


# ---------------------------------------------------------------- settings in words
Words = Callable[[Any], str]

PHRASES: dict[str, Words] = {
    "ratio_to": lambda policy: f"ratio to {policy}",
    "epochs": lambda n: counted(n, "epoch"),
    "minibatches": lambda n: counted(n, "minibatch"),
    "mask_truncated": lambda on: (
        "truncated samples left out" if on else "truncated samples trained"
    ),
    "overlong": lambda share: (
        f"overlong answers punished over the last {100 * share:g} %"
        if share
        else "length not punished"
    ),
    "reset_optimizer": lambda on: "optimizer reset before every batch" if on else "optimizer kept",
    "float32_head": lambda on: "float32 head" if on else "head as precise as the rest",
    "prune": lambda share: (
        f"vocabulary pruned at {share:.3g} of the likeliest" if share else "whole vocabulary"
    ),
    "services": lambda held: (
        "; ".join(f"service {slot} is {use}" for slot, use in held.items()) or "no service"
    ),
    "plan.resample": lambda way: {
        "none": "no resampling",
        "dynamic": "dynamic sampling",
        "active": "active sampling",
    }[way],
    "plan.attempts": lambda n: f"at most {counted(n, 'batch')} tried per step",
    "plan.order": lambda way: {
        "shuffled": "tasks shuffled",
        "easy_to_hard": "tasks from easy to hard",
        "hard_first": "tasks drawn by failure rate",
    }[way],
    "plan.curriculum": lambda name: f"tasks chosen by `{name}`" if name else "no curriculum named",
    "plan.drop_solved": lambda rate: (
        "no task dropped" if rate is None else f"tasks dropped at success rate {rate:g}"
    ),
    "plan.difficulty_samples": lambda n: (
        f"difficulty filter from {counted(n, 'sample')} per task" if n else "no difficulty filter"
    ),
    "plan.difficulty_file": lambda file: (
        f"difficulty filter by {file}" if file else "no file of success rates"
    ),
    "plan.difficulty_range": lambda rates: f"success rates {rates[0]:g} to {rates[1]:g} kept",
    "plan.staleness": lambda n: (
        f"sampler {counted(n, 'version')} behind" if n else "sampler up to date"
    ),
    "plan.thinking_budget": lambda at: (
        f"thinking budget of {at['min_tokens']:,} to {at['max_tokens']:,} tokens"
        if at
        else "no thinking budget"
    ),
}
"""What a value of a setting means; pieces and the KL term have functions of their own."""


def phrase(setting: str, value: Any) -> str:
    """Return what *value* of *setting* means, in a few words."""
    kind, _, argument = setting.partition(".")
    if setting in PHRASES:
        return PHRASES[setting](value)
    if setting == "kl":
        return kl_words(value)
    if kind in KINDS and argument:
        return f"{kind} {argument} {shown(value)}"
    if kind in KINDS:
        return f"{kind} {piece_words(value)}" if value else f"no {kind} piece"
    raise KeyError(setting)


def words(difference: Difference) -> str:
    """Return what the left algorithm does in place of what the right one does."""
    right = phrase(difference.setting, difference.right)
    if difference.setting.partition(".")[0] in KINDS:  # what it is stands there once
        right = right.removeprefix(f"{difference.setting.replace('.', ' ')} ")
    return f"{phrase(difference.setting, difference.left)} instead of {right}"


def counted(n: int, noun: str) -> str:
    """*n* of them."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('batch') else 's'}"


# ---------------------------------------------------------------- the tables of docs/algorithms.md
def page(text: str) -> str:
    """Replace the tables of docs/algorithms.md, between ``<!-- NAME -->`` and ``<!-- end NAME
    -->``.
    """
    for name, lines in TABLES.items():
        head, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- end {name} -->\n")
        if not begin or not end:
            raise UsageError(f"{PAGE.name} has no place for the table {name!r}")
        text = head + begin + "\n" + "\n".join(lines()) + "\n\n" + end + tail
    return text


def in_short() -> Iterator[str]:
    """Table of algorithms: summary, source, distribution."""
    yield from _header("algorithm", "summary", "source", "from")
    for name, (distribution, algorithm) in algorithms().items():
        yield _line(f"`{name}`", algorithm.summary, _linked(algorithm.source), f"`{distribution}`")


def choices() -> Iterator[str]:
    """Table of the pieces and settings of each algorithm."""
    yield from _header(*CHOICES)
    for name, (_, algorithm) in algorithms().items():
        yield _line(
            f"`{name}`",
            piece_words(algorithm.advantage, only=algorithm.advantage.args),
            piece_words(algorithm.objective),
            ratio(algorithm),
            piece_words(algorithm.correction),
            piece_words(algorithm.aggregation, only=algorithm.aggregation.args),
            kl_words(algorithm.kl).removeprefix("KL "),
            _group_filter(algorithm),
            _updates(algorithm),
            "; ".join(what_else(algorithm)),
        )


def what_else(algorithm: Algorithm) -> Iterator[str]:
    """Settings without a column of their own that differ from their defaults."""
    usual = {key: _default(key) for key in PHRASES}
    values = _flat(settings(algorithm))
    for key in PHRASES:
        if (
            key not in ("ratio_to", "epochs", "minibatches", "plan.resample")
            and values[key] != usual[key]
        ):
            yield phrase(key, values[key])


def apart() -> Iterator[str]:
    """Table of differences between related algorithms."""
    known = {name: algorithm for name, (_, algorithm) in algorithms().items()}
    yield from _header("algorithm", "compared with", "differences")
    for left, right in PAIRS:
        changes = differences(known[left], known[right])
        yield _line(f"`{left}`", f"`{right}`", "; ".join(map(words, changes)))


def of_pieces() -> Iterator[str]:
    """Table of pieces by kind."""
    yield from _header("piece", "meaning", "arguments")
    for name, (distribution, piece) in pieces().items():
        args = ", ".join(f"{key} = {shown(value)}" for key, value in piece.parameters.items())
        owner = "" if distribution == "quintain" else f" (`{distribution}`)"
        yield _line(f"`{name}`{owner}", summary(piece), args)


def refused() -> Iterator[str]:
    """Table of settings that cannot be combined, with the error messages."""
    yield from _header("algorithm", "with", "error")
    for name, changes in REFUSED:
        yield _line(f"`{name}`", f"`{_toml(changes)}`", refusal(name, changes))


def remarked() -> Iterator[str]:
    """Table of settings that print a note when a run starts."""
    yield from _header("algorithm", "with", "note")
    for name, changes in NOTED:
        for note in algorithms()[name][1].replace(**changes).notes():
            yield _line(f"`{name}`", f"`{_toml(changes)}`" if changes else "", _marked(note))


TABLES = {
    "algorithms": in_short,
    "choices": choices,
    "differences": apart,
    "pieces": of_pieces,
    "refused": refused,
    "notes": remarked,
}


def refusal(name: str, changes: Mapping[str, Any]) -> str:
    """Return the message of the error that the *changes* raise.

    Raises:
        UsageError: the changes raise no error.
    """
    try:
        algorithms()[name][1].replace(**changes)
    except UsageError as e:
        return _marked(re.sub(r"^algorithm '\w+': ", "", str(e)))
    raise UsageError(f"{name} with {_toml(changes)} is not refused")


def ratio(algorithm: Algorithm) -> str:
    """Policies and pooling of the objective's importance ratio, found by running the objective."""
    if "ratio" not in algorithm.objective.reads:
        return "none, compares with ref" if "ref" in algorithm.objective.reads else "none"
    Watched.seen = []
    ids = torch.tensor([0, 0, 1])
    logp = torch.tensor([-0.1, -0.2, -0.3], dtype=torch.float64)
    wide = logp[:, None] - torch.ones(3, 4, dtype=torch.float64)
    statistics: dict[str, Tensor] = dict.fromkeys(("entropy", "square", "mean_logp"), logp)
    algorithm.objective(
        Watched(
            logp=logp, mu_logp=logp, prox_logp=logp, ref_logp=logp, advantage=logp, entropy=logp,
            sample=ids,
            group=torch.tensor([0, 0]), ratio_to=algorithm.ratio_to,
            statistics=statistics | {"top_logp": wide, "prox_top_logp": wide},
        )
    )  # fmt: skip
    over = {
        "token": "of a token",
        "product": "of an answer",
        "geometric": "of an answer, geometric mean",
    }
    return (
        f"theta / {algorithm.ratio_to} "
        f"{' and '.join(over[pool] for pool in dict.fromkeys(Watched.seen))}"
    )


class Watched(LossInputs):
    """Loss inputs that record the ratios that an objective requests."""

    seen: ClassVar[list[str]] = []

    def log_ratio(self, pool: RatioPool = "token") -> Tensor:
        type(self).seen = [*self.seen, pool]
        return super().log_ratio(pool)


def _group_filter(algorithm: Algorithm) -> str:
    text = piece_words(algorithm.group_filter, only=algorithm.group_filter.args)
    return (
        text
        if algorithm.plan.resample == "none"
        else f"{text}, {phrase('plan.resample', algorithm.plan.resample)}"
    )


def _updates(algorithm: Algorithm) -> str:
    text = (
        "1"
        if algorithm.updates == 1
        else f"{counted(algorithm.epochs, 'epoch')} of {counted(algorithm.minibatches, 'minibatch')}"
    )
    return f"{text}, {piece_words(algorithm.optimizer_step)}" if algorithm.optimizer_step else text


def _default(key: str) -> Any:
    name, _, inner = key.partition(".")
    return getattr(SamplingPlan(), inner) if inner else _flat(settings(_bare()))[name]


def _bare() -> Algorithm:
    """Return an algorithm with the default of every setting."""
    algorithm = ALGORITHMS["reinforce"]
    given = {kind: getattr(algorithm, kind) for kind in KINDS if kind != "optimizer_step"}
    return Algorithm(
        name=algorithm.name, summary=algorithm.summary, source=algorithm.source, **given
    )


def _flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    plan = {f"plan.{key}": value for key, value in plain["plan"].items()}
    return {**plain, **plan}


def _toml(changes: Mapping[str, Any]) -> str:
    def said(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{ " + ", ".join(f"{k} = {said(v)}" for k, v in value.items()) + " }"
        return json.dumps(value)

    return ", ".join(f"{key} = {said(value)}" for key, value in changes.items())


def _marked(text: str) -> str:
    """Format the pieces in *text* as code."""
    return re.sub(rf"\b(?:{'|'.join(KINDS)})\.\w+\([^()]*\)", r"`\g<0>`", text)


def _linked(source: str) -> str:
    return _ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", source)


def _header(*titles: str) -> Iterator[str]:
    yield _line(*titles)
    yield "|" + "---|" * len(titles)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if page(text) != text:
        PAGE.write_text(page(text), encoding="utf-8")
        sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
