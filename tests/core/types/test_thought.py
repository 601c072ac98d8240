"""Where the thought of a text ends, where nothing but the text is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.types.thought import OPENINGS, split_thought

from ...lanes import examples

FENCED = "```html\n</think>\n```\nThat is the tag."

TEXTS = {
    "no tag": ("5", "", "5"),
    "empty": ("", "", ""),
    "white space is kept": ("  5 \n", "", "  5 \n"),
    "think": ("<think>a\nb</think>5", "a\nb", "5"),
    "line breaks around": ("\n<think>\na\n</think>\n\n5\n", "a", "5\n"),
    "an empty thought": ("<think></think>5", "", "5"),
    "a blank thought": ("<think>\n\n</think>\n\n5", "", "5"),
    "nothing behind": ("<think>a</think>", "a", ""),
    "thinking": ("<thinking>a</thinking>5", "a", "5"),
    "Kimi": ("◁think▷a◁/think▷5", "a", "5"),
    "the template opened it": ("a\n\\boxed{7}?</think>I give up.", "a\n\\boxed{7}?", "I give up."),
    "the template opened thinking": ("a</thinking>5", "a", "5"),
    "the template opened Kimi's": ("a◁/think▷5", "a", "5"),
    "closed at once": ("</think>5", "", "5"),
    "closed at once, with line breaks": ("\n\n</think>\n\n5", "", "5"),
    "a second thought is text": ("<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
    "a second end tag is text": ("<think>a</think>b</think>c", "a", "b</think>c"),
    "an opening tag within": ("<think>a <think> b</think>c", "a <think> b", "c"),
    "a thought in the middle is text": ("5 <think>a</think> 6", "", "5 <think>a</think> 6"),
    "not closed": ("<think>a \\boxed{5}", "", "<think>a \\boxed{5}"),
    "closed by another tag": ("<think>a</thinking>5", "", "<think>a</thinking>5"),
    "cut within the end tag": ("<think>a</thin", "", "<think>a</thin"),
    "other case": ("<THINK>a</THINK>5", "", "<THINK>a</THINK>5"),
    "a blank in the tag": ("<think >a</think >5", "", "<think >a</think >5"),
    "another tag": ("<reasoning>a</reasoning>5", "", "<reasoning>a</reasoning>5"),
    "an answer tag behind": ("<think>a</think><answer>5</answer>", "a", "<answer>5</answer>"),
    "an end tag in backticks": ("Close it with `</think>`.", "", "Close it with `</think>`."),
    "an end tag in quotes": ('x = "</think>"', "", 'x = "</think>"'),
    "an end tag in apostrophes": ("x = '</think>'", "", "x = '</think>'"),
    "an end tag in a fence": (FENCED, "", FENCED),
    "a fence in a thought that the template opened": (
        "```python\nx\n```\n</think>5",
        "```python\nx\n```",
        "5",
    ),
    "a quoted end tag in a fence": ('```\nx = "</think>"\n```', "", '```\nx = "</think>"\n```'),
    "code behind": ("<think>a</think>```python\nx\n```", "a", "```python\nx\n```"),
    "a call of a tool behind": (
        "<think>a</think>\n<tool_call>{}</tool_call>",
        "a",
        "<tool_call>{}</tool_call>",
    ),
}


@pytest.mark.parametrize("text, thought, rest", TEXTS.values(), ids=TEXTS)
def test_thought_and_rest(text: str, thought: str, rest: str) -> None:
    assert split_thought(text) == (thought, rest)


@examples(100)
@given(
    st.sampled_from(OPENINGS),
    st.text("ab \n<>/`"),
    st.text("ab \n<>/`"),
)
def test_what_follows_a_closed_thought_is_the_rest(opening: str, thought: str, rest: str) -> None:
    text = f"{opening}{thought}{opening[0]}/{opening[1:]}{rest}"
    assert split_thought(text) == (thought.strip(), rest.lstrip())


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<think", "```", "\n", "[THINK]", "a"])
def test_the_whole_text_is_the_rest_or_ends_with_it(piece: str) -> None:
    """Also where a policy repeats itself; a search that starts again at each tag would not end."""
    text = piece * 200_000
    _, rest = split_thought(text)
    assert text.endswith(rest)
