"""docs/algorithms.md says what the algorithms are; docs/write-an-algorithm.md shows a package that
is.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.interfaces.algorithm import KL, Algorithm
from quintain.interfaces.pieces import KINDS, Piece
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning.algorithms import ALGORITHMS
from quintain.types.sampling import ThinkingBudget

from ..tools import load_tool
from .pages import ROOT, page

EXAMPLE = ROOT / "examples" / "quintain-sapo"


TOOL = load_tool("algorithms")


def test_the_tables_are_up_to_date() -> None:
    """They are what `make docs` would write."""
    text = TOOL.PAGE.read_text()

    assert TOOL.page(text) == text, "run `make docs`"


def test_a_formula_below_the_first_sentence_is_refused() -> None:
    """The table would end where it begins."""

    def doubled(t: object) -> None:
        """Twice the loss, that is ::

        2 * loss
        """

    with pytest.raises(ValueError, match="objective.doubled.*into the first sentence"):
        TOOL.summary(Piece(kind="objective", name="doubled", function=doubled))


def test_every_algorithm_is_compared_with_a_relative() -> None:
    """The table of differences leaves none out, names only algorithms there are, and says something
    of each pair.
    """
    known = TOOL.algorithms()

    assert set(known) - {"reinforce"} == {left for left, _ in TOOL.PAIRS}
    assert {name for pair in TOOL.PAIRS for name in pair} <= set(known)
    for left, right in TOOL.PAIRS:
        assert TOOL.differences(known[left][1], known[right][1]), (left, right)


def test_ratios_are_seen() -> None:
    """Which policies and what pooling: told by running the objective, so that no table can say
    otherwise.
    """
    known = TOOL.algorithms()
    shown = {
        name: TOOL.ratio(known[name][1])
        for name in ("grpo", "gspo", "rloo", "kimi", "dppo", "cispo")
    }

    assert shown == {
        "grpo": "theta / prox of a token",
        "gspo": "theta / prox of an answer, geometric mean",
        "rloo": "none",
        "kimi": "theta / prox of an answer",
        "dppo": "theta / mu of a token",
        "cispo": "theta / prox of a token",
    }
    product = ALGORITHMS["grpo"].replace(objective="sequence_clip")
    assert TOOL.ratio(product) == "theta / prox of an answer"


def test_differences_are_described_in_words() -> None:
    """Each kind of setting."""
    importlib.import_module("quintain_algorithms.objectives")  # the pieces that are named below
    grpo = ALGORITHMS["grpo"]

    def words(**changes: Any) -> list[str]:
        return [TOOL.words(d) for d in TOOL.differences(grpo.replace(**changes), grpo)]

    assert words(objective={"use": "cispo", "cap": 3.0}) == [
        "objective `cispo` (cap 3) instead of `ppo_clip` (low 0.2)"
    ]
    assert words(objective={"low": 0.1}) == ["objective low 0.1 instead of 0.2"]
    assert words(kl={"coefficient": 0.0}) == ["no KL instead of KL k3 in the loss, 0.04"]
    assert words(ratio_to="mu") == ["ratio to mu instead of ratio to prox"]
    assert words(mask_truncated=True) == [
        "truncated samples left out instead of truncated samples trained"
    ]
    assert words(epochs=2, minibatches=3) == [
        "2 epochs instead of 1 epoch",
        "3 minibatches instead of 1 minibatch",
    ]
    assert words(plan=SamplingPlan(thinking_budget=ThinkingBudget(min_tokens=5, max_tokens=9))) == [
        "thinking budget of 5 to 9 tokens instead of no thinking budget"
    ]


def test_every_setting_has_a_phrase() -> None:
    """A field that is added to `Algorithm` or `SamplingPlan` gets words, or a listing would fail on
    it.
    """
    about = {"name", "summary", "source", "published"}
    of_algorithm = {f.name for f in dataclasses.fields(Algorithm)} - {*about, *KINDS, "kl", "plan"}
    of_plan = {f"plan.{f.name}" for f in dataclasses.fields(SamplingPlan)}

    assert of_algorithm | of_plan == set(TOOL.PHRASES)
    for row in (algorithm for _, algorithm in TOOL.algorithms().values()):
        plain = TOOL.settings(row)
        assert all(TOOL.phrase(key, plain[key]) for key in of_algorithm)
        assert all(TOOL.phrase(key, plain["plan"][key.partition(".")[2]]) for key in of_plan)
    with pytest.raises(KeyError):
        TOOL.phrase("colour", 3)


def test_first_sentences() -> None:
    """Names with dots do not end a sentence."""
    assert (
        TOOL.summary(ALGORITHMS["dr_grpo"].advantage)
        == "R - mean(group): Dr. GRPO (Liu et al. 2025, 2503.20783)."
    )
    assert all(TOOL.summary(piece).endswith(".") for _, piece in TOOL.pieces().values())


@pytest.mark.more
def test_every_refusal_of_a_pair_is_on_the_page() -> None:
    """Each ``raise`` about a pair is reached by an example of the table."""
    reached = set()
    for name, changes in TOOL.REFUSED:
        with pytest.raises(UsageError) as e:
            TOOL.algorithms()[name][1].replace(**changes)
        last = traceback.extract_tb(e.value.__traceback__)[-1]
        # the others are refused by a piece of theirs
        if last.filename == inspect.getsourcefile(Algorithm):
            reached.add(last.lineno)

    of_kl = [line for line, said in raises(KL.__post_init__).items() if "zero gradient" in said]
    of_pairs = [
        line
        for line, said in raises(Algorithm.__post_init__).items()
        if "correction" in said or "surrogate" in said
    ]
    assert {*of_pairs, *of_kl} == reached, "add an example to REFUSED in tools/algorithms.py"


def raises(function: Callable[..., object]) -> dict[int, str]:
    """The lines on which *function* raises, each with the statement."""
    lines, start = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    return {
        start + node.lineno - 1: ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
    }


@pytest.mark.more
def test_every_note_is_on_the_page() -> None:
    """Each remark that an algorithm or a piece can make is made by an example of the table."""
    variants = [TOOL.algorithms()[name][1].replace(**changes) for name, changes in TOOL.NOTED]
    of_pieces = {
        remark
        for algorithm in variants
        for piece in algorithm.pieces
        if piece.fits and (remark := piece.fits(algorithm))
    }
    own = {note for algorithm in variants for note in algorithm.notes()} - of_pieces

    assert inspect.getsource(Algorithm.notes).count("notes.append(") == len(own)
    assert len(of_pieces) == 2


def test_the_page_shows_the_very_files_of_the_example() -> None:
    """What a reader types is what the tests install and run."""
    package = EXAMPLE / "src" / "quintain_sapo"
    files = {"sapo.py": package, "quintain.toml": package, "pyproject.toml": EXAMPLE}
    blocks = page("docs/write-an-algorithm.md").blocks
    # others belong to no package
    shown = {b.file: b.text.partition("\n")[2] for b in blocks if b.file in files}

    assert {name: (place / name).read_text() for name, place in files.items()} == shown


def test_the_example_is_as_short_as_it_says() -> None:
    """One function and one algorithm in about twenty lines besides imports."""
    text = (EXAMPLE / "src" / "quintain_sapo" / "sapo.py").read_text()
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not line.startswith(("from", "import"))
    ]

    assert len(lines) <= 20
