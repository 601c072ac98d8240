"""The rule that finds the code of a reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.models.tool_calls import parse
from quintain_code import extract
from quintain_code.extract import LONGEST

CODE = "def f():\n    return 1\n"


def fence(code: str, info: str = "python", mark: str = "```") -> str:
    return f"{mark}{info}\n{code}{mark}\n"


DRAFT = fence("draft = 1\n")


def code_of(reply: str, language: str = "python") -> str | None:
    return extract(reply, language=language).files.get("solution.py")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (fence(CODE), CODE),
        (f"Sure.\n\n{fence(CODE)}\nDone.", CODE),
        (fence("a = 1\n") + fence(CODE), CODE),
        (fence(CODE) + fence("$ python x.py\n", "bash"), CODE),
        (fence(CODE) + fence("output\n", ""), CODE),
        (fence(CODE, ""), CODE),
        (fence(CODE, "py"), CODE),
        (fence(CODE, "Python3"), CODE),
        (fence(CODE, "python title=x.py"), CODE),
        (fence(CODE, mark="~~~~"), CODE),
        (fence(f'x = """\n```\n"""\n{CODE}', mark="````"), f'x = """\n```\n"""\n{CODE}'),
        (fence(CODE).replace("\n", "\r\n"), CODE),
        (f"<think>{fence('wrong = 1')}</think>{fence(CODE)}", CODE),
        (f"reasoning without a start</think>{fence(CODE)}", CODE),
        (f"{DRAFT}reasoning without a start</think>{fence(CODE)}", CODE),
        (f"</think>\n{fence(CODE)}{fence(CODE, 'c')}", CODE),
        (fence("x = '<think>'\n"), "x = '<think>'\n"),
        (fence("x = '</think>'\n"), "x = '</think>'\n"),
        ("<think>a</think>" + fence("</think>\n") + fence(CODE), CODE),
        ("x = '</think>'", "x = '</think>'"),
        ("x = '<think>'", "x = '<think>'"),
        ("<think>f</think>x = '</think>'", "x = '</think>'"),
        (f"{fence(CODE)}<think>", CODE),
        ("<think>f</think>" + fence("<think>\n"), "<think>\n"),
        (CODE, CODE),
        (fence("x = '\u2028```'\n"), "x = '\u2028```'\n"),
    ],
)
def test_the_last_block_of_the_language_is_the_code(reply: str, code: str) -> None:
    assert code_of(reply) == code


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \n\t",
        fence(""),
        fence(" \n"),
        f"<think>{fence(CODE)}",
        "<think>x = 1",
        f"{fence(CODE)}</think>",
        f"{fence(CODE)}\nSo that is it.\n</think>\nDone.",
        fence(CODE, "javascript"),
        fence(CODE, "pyth\u043en"),
        fence(CODE, "python\u200b"),
        f"```python\n{CODE}",
        fence(CODE) + "```python\nx = 1",
        fence(CODE) + "`" * 3,
        "x" * (LONGEST + 1),
        fence("x = '\ud800'\n"),
        fence('x = """\n```\n"""\n'),
    ],
)
def test_an_ambiguous_or_missing_block_is_no_code(reply: str) -> None:
    found = extract(reply)
    assert not found.files
    assert found.reason


@pytest.mark.parametrize(
    "mark", ["\uff40\uff40\uff40", "\u02cb\u02cb\u02cb", "'''", "\u2018\u2018\u2018"]
)
def test_look_alikes_of_backticks_are_no_fence(mark: str) -> None:
    """The reply is then code as a whole, which Python refuses."""
    reply = fence(CODE, mark=mark)
    assert code_of(reply) == reply


def test_a_task_of_several_files_takes_the_last_block_of_each() -> None:
    reply = (
        fence("old = 1\n", "python a.py")
        + fence("b = 2\n", "python b.py")
        + fence("a = 1\n", "python a.py")
    )
    assert extract(reply, files=("a.py", "b.py")).files == {"a.py": "a = 1\n", "b.py": "b = 2\n"}
    assert extract(reply, files=("a.py", "c.py")).reason == "there is no block of python for c.py"
    assert not extract(fence(CODE), files=("a.py", "b.py")).files


def test_other_languages_have_their_own_tags() -> None:
    reply = fence(CODE) + fence("int main(){}\n", "c++")
    assert code_of(reply, "cpp") == "int main(){}\n"
    assert code_of(fence("begin end.\n", "Pascal"), "pascal") == "begin end.\n"


LINES = st.text(
    alphabet=st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\n"), max_size=30
)
PLAIN = LINES.filter(
    lambda line: not line.lstrip(" ").startswith(("```", "~~~")) and "think>" not in line
)


@given(
    before=st.lists(PLAIN),
    code=st.lists(PLAIN, min_size=1).filter(lambda c: any(line.strip() for line in c)),
)
def test_a_block_is_extracted_unchanged_from_any_text(before: list[str], code: list[str]) -> None:
    text = "".join(line + "\n" for line in code)
    assert code_of("\n".join([*before, fence(text)])) == text
    assert code_of("\n".join([fence("x = 1\n"), *before, fence(text)])) == text
    assert (
        code_of(f"<think>\n{fence('x = 1')}\n</think>\n" + "\n".join([*before, fence(text)]))
        == text
    )


TAGGED = st.lists(
    st.one_of(
        PLAIN, st.sampled_from(["</think>", "x = '</think>'", "# <think>", "<think>a</think>"])
    )
)


@given(
    thought=TAGGED,
    before=st.lists(PLAIN),
    code=TAGGED.filter(lambda c: any(line.strip() for line in c)),
)
def test_tags_in_the_code_stay_and_reasoning_is_that_of_the_transcript(
    thought: list[str], before: list[str], code: list[str]
) -> None:
    """The code of a rollout's reply is what the policy wrote in it, whatever tags it has."""
    text = "".join(line + "\n" for line in code)
    answer = "\n".join([*before, fence(text)])
    assert code_of(parse(answer).reply) == text
    closed = "\n".join(["<think>", *thought, DRAFT, "</think>", answer])
    assert code_of(parse(closed).reply) == text
    assert code_of(closed) == text
    assert code_of("\n".join([DRAFT, "</think>", answer])) == text
    assert code_of("x = 1\n" + text) == "x = 1\n" + text


@given(st.text(alphabet="`~ \n\rpython</think>a=1\u2028\ud800\x00"))
def test_any_text_gives_code_or_a_reason(reply: str) -> None:
    found = extract(reply)
    assert bool(found.files) != bool(found.reason)
    for code in found.files.values():
        assert code.strip()
        code.encode()
