"""Rewards on format."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.testing import rollout
from quintain.types.rollout import Turn
from quintain.types.task import Task
from quintain_authoring import RewardSuite
from quintain_rewards.shaping import format_tags
from quintain_rewards.shaping.format import keeps_template

TASK = Task(prompt="?", answer="4")
GOOD = "<think>2+2</think> <answer>4</answer>"
PIECES = ("<think>", "</think>", "<answer>", "</answer>", " ", "\n", "x", "<", "/")


class TestFormatTags(RewardSuite):
    reward = format_tags

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, GOOD), 1),
            (rollout(TASK, "\n<think>\na\nb</think>\n<answer></answer>\n"), 1),
            (rollout(TASK), 0),
            (rollout(TASK, "first", GOOD), 1),
            (rollout(TASK, GOOD, "last"), 0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        said = (
            "",
            "4",
            f"{GOOD} and more",
            f"well {GOOD}",
            GOOD + GOOD,
            "<answer>4</answer><think>2+2</think>",
            "<think>a<think>b</think></think><answer>4</answer>",
            "<think>a</think>b<answer>4</answer>",
            "<think><answer>4</answer></think>",
            "<think>a</think><answer>4",
            "<THINK>a</THINK><answer>4</answer>",
        )
        return [rollout(TASK, text) for text in said]


def test_another_players_last_word_does_not_count() -> None:
    own = rollout(TASK, GOOD)
    other = own.replace(turns=(*own.turns, Turn(text="nothing", reply="nothing", player="user")))
    assert format_tags.score(other).total == 1


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_agrees_with_the_pattern(text: str) -> None:
    inner = r"(?:(?!</?think>|</?answer>).)*"
    pattern = rf"\s*<think>{inner}</think>\s*<answer>{inner}</answer>\s*"
    assert keeps_template(text) == bool(re.fullmatch(pattern, text, re.DOTALL))


@given(st.text(), st.text())
def test_any_text_fits_between_the_tags(thought: str, answer: str) -> None:
    if re.search(r"</?(think|answer)>", f"{thought} {answer}"):
        return
    assert keeps_template(f"<think>{thought}</think>\n<answer>{answer}</answer>")


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<answer>", "</answer>"])
def test_a_tag_may_not_come_twice(tag: str) -> None:
    assert not keeps_template(GOOD.replace(tag, tag + tag))
