"""The rule that finds the code of a reply."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.models.tool_calls import parse
from quintain_env_code import extract
from quintain_env_code.extract import LONGEST

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


def shifted(reply: str, by: str) -> str:
    return "".join(f"{by}{line}\n" for line in reply.splitlines())


QUOTED = 'def f():\n    """Say.\n\n    ```python\n    f()\n    ```\n    """\n    return 1\n'
TICKS = 'def f():\n    """\n    ```\n    """\n    return 1\n'

MENDED = {
    "a list item of four blanks": f"1. The function:\n\n{shifted(fence(CODE), '    ')}",
    "a list item of three blanks": f"1. The function:\n{shifted(fence(CODE), '   ')}\n",
    "a list item of two blanks": f"- The function:\n{shifted(fence(CODE), '  ')}",
    "a nested list": f"- a\n    - b\n{shifted(fence(CODE), ' ' * 8)}",
    "the mark of a list before the fence": f"- {shifted(fence(CODE), '  ').lstrip()}",
    "a number before the fence": f"1. {shifted(fence(CODE), '   ').lstrip()}",
    "a bracket before the fence": f"2) {shifted(fence(CODE), '   ').lstrip()}",
    "a paragraph before four blanks": f"So:\n{shifted(fence(CODE), '    ')}",
    "only the fences are indented": f"So:\n    ```python\n{CODE}    ```\n",
    "only the code is indented": fence(shifted(CODE, "    ")),
    "a tab": shifted(fence(CODE), "\t"),
    "a tab before the fences alone": f"\t```python\n{CODE}\t```\n",
    "a no-break space": f"\u00a0```python\n{CODE}\u00a0```\n",
    "a quotation": shifted(fence(CODE), "> "),
    "a quotation without blanks": shifted(fence(CODE), ">"),
    "a quotation in a quotation": shifted(fence(CODE), "> > "),
    "a fence in a list in a quotation": shifted(fence(CODE), ">   "),
    "a byte order mark": f"\ufeff{fence(CODE)}",
    "a zero width space": f"\u200b{fence(CODE)}",
    "a zero width space after a line": f"So:\n\u200b{fence(CODE)}",
    "a soft hyphen before the last fence": f"```python\n{CODE}\u00ad```\n",
    "a zero width space behind the last fence": f"```python\n{CODE}```\u200b\n",
    "a name of a file behind a colon": fence(CODE, "python:solution.py"),
    "braces": fence(CODE, "{python}"),
    "braces with an option": fence(CODE, "{python echo=FALSE}"),
    "braces with a comma": fence(CODE, "{python, echo=FALSE}"),
    "braces with a class": fence(CODE, "{.python .numberLines}"),
    "a version": fence(CODE, "python3.11"),
    "a version of one digit": fence(CODE, "Python3"),
    "a version of three parts": fence(CODE, "python3.12.1"),
    "IPython": fence(CODE, "ipython"),
    "IPython 3": fence(CODE, "ipython3"),
    "lines that are marked": fence(CODE, "python{1,3-4}"),
    "HackMD's equals sign": fence(CODE, "python=12"),
    "an attribute behind a comma": fence(CODE, "python,linenos"),
    "a blank before the tag": fence(CODE, " python"),
    "text behind the last fence": f"```python\n{CODE}``` That is all.",
    "text behind the last fence, then more": f"```python\n{CODE}``` So.\n\nIt adds one.",
    "a fence within a line": f"The code is ```python\n{CODE}```",
    "a fence behind a colon": f"**Code:**```py\n{CODE}```\nDone.",
    "a fence at the end of the code": f"```python\n{CODE.rstrip()}```",
    "a fence at the end of the code, then text": f"```python\n{CODE.rstrip()}```\nDone.",
    "the prompt opened the fence": f"{CODE}```",
    "the prompt opened the fence, then text": f"{CODE}```\nThis gives one.",
    "the prompt opened the fence, a comment first": f"# Gives one.\n{CODE}```\n",
    "another language first": fence("x\n", "js") + fence(CODE, "{python}"),
    "an indented block of another language later": fence(CODE)
    + shifted(fence("ls\n", "bash"), "    "),
    "tildes in a list": f"- a\n\n{shifted(fence(CODE, mark='~~~'), '    ')}",
}


@pytest.mark.parametrize("reply", MENDED.values(), ids=MENDED)
def test_a_block_as_models_write_it_is_found(reply: str) -> None:
    found = (code_of(reply) or "").replace("# Gives one.\n", "")
    assert found == CODE


WHOLE = {
    "a fence in a docstring": QUOTED,
    "an open fence in a docstring": TICKS,
    "a fence in a comment": f"x = 1\n#     ```python\n{CODE}",
    "a tag in a text": f'x = "see ```python"\n{CODE}',
    "an import first": f"import re\n\n{QUOTED}",
    "a comment first": f"# My answer\n{QUOTED}",
    "an assignment first": f"N = 3\n{QUOTED}",
    "a decorator first": f"@cache\n{QUOTED}",
}


@pytest.mark.parametrize("reply", WHOLE.values(), ids=WHOLE)
def test_a_reply_that_begins_with_code_is_code_as_a_whole(reply: str) -> None:
    assert code_of(reply) == reply


@pytest.mark.parametrize("code", [QUOTED, TICKS], ids=["closed", "open"])
def test_a_fence_in_a_docstring_does_not_end_the_block(code: str) -> None:
    assert code_of(fence(code)) == code


UNCLEAR = {
    "a tag that only begins as the language": fence(CODE, "pythonista"),
    "a session of Python": fence(CODE, "python-console"),
    "Python 2": fence(CODE, "py2x"),
    "no code before the fence": f"Here is the code:\n```\n{CODE}",
    "cut off in a list": f"1. So:\n\n    ```python\n{shifted(CODE, '    ')}",
    "cut off after a closed block": f"{fence(CODE)}Then ```python\nx = 1",
    "cut off in a quotation": shifted(f"```python\n{CODE}", "> "),
    "a thought of another tag without an end": f"<thinking>{fence(CODE)}",
    "Kimi's thought without an end": f"◁think▷{fence(CODE)}",
}


@pytest.mark.parametrize("reply", UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_unclear_is_no_code(reply: str) -> None:
    assert not extract(reply).files


@pytest.mark.parametrize(
    "info", ["python:a.py", "python a.py", "py title=a.py", '{.py file="a.py"}']
)
def test_a_file_is_named_in_several_ways(info: str) -> None:
    reply = fence("a = 1\n", info) + fence("b = 2\n", "python b.py")
    assert extract(reply, files=("a.py", "b.py")).files == {"a.py": "a = 1\n", "b.py": "b = 2\n"}


@pytest.mark.parametrize(
    "piece",
    ["```", "```python\n", "    ```\n", "> ", "- ", "1. ", "x```\n", "`", "~~~ a\n", "\n", "</think>",
     "```python\nx```\n", "\ufeff", "{", "python", "a ```py\n", "\t", "<think>"],
)  # fmt: skip
def test_a_reply_that_repeats_itself_is_read_once(piece: str) -> None:
    """The time is linear: each takes a few hundredths of a second, a quadratic rule minutes."""
    began = time.process_time()
    extract(piece * (400_000 // len(piece)))
    assert time.process_time() - began < 20.0


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
PLAIN = LINES.filter(lambda line: not any(mark in line for mark in ("```", "~~~", "think>")))


def is_a_block(lines: list[str]) -> bool:
    """Return whether *lines* have text, the first of them without an indentation."""
    first = next((line for line in lines if line.strip()), " ")
    return first[0] not in " \t"


@given(
    before=st.lists(PLAIN),
    code=st.lists(PLAIN, min_size=1).filter(is_a_block),
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
    code=TAGGED.filter(is_a_block),
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
