"""The splitter finds the chapters of any book and loses no line; the extractive annotations stay in
their text.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain_env_story.chapters import KINDS, Split, clean, split_chapters
from quintain_env_story.epub import read_book
from quintain_env_story.extract import cut, names, sentences, sheets, summary

from ...lanes import examples

ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
HEADINGS = {
    "Chapter 1": lambda n: f"Chapter {n + 1}",
    "CHAPTER I. Title": lambda n: f"CHAPTER {ROMAN[n]}. Of the {WORDS[n]} lamps",
    "Chapter One: Title": lambda n: f"Chapter {WORDS[n].title()}: The House",
    "Chapter the First": lambda n: f"The Chapter {ROMAN[n]} \u2014 A Walk",
    "I": lambda n: ROMAN[n],
    "I. Title": lambda n: f"{ROMAN[n]}. The Sea",
    "1": lambda n: str(n + 1),
    "1. Title": lambda n: f"{n + 1}. The Sea",
    "# Title": lambda n: f"# The {WORDS[n]} lamps",
    "## Title": lambda n: f"## The {WORDS[n]} lamps",
    "LETTER 1": lambda n: f"LETTER {n + 1}",
    "TITLE": lambda n: f"THE {WORDS[n].upper()} LAMPS",
}


def prose(rng: Random, words: int = 120) -> str:
    """Paragraphs of sentences that look like no heading."""
    vocabulary = (
        "the lamp went out and nobody in the house said a word about it for some time".split()
    )
    text, left = [], words
    while left > 0:
        size = rng.randint(8, 25)
        left -= size
        sentence = " ".join(rng.choice(vocabulary) for _ in range(size)).capitalize() + "."
        text.append(sentence)
    return "\n\n".join(" ".join(text[i : i + 3]) for i in range(0, len(text), 3))


@pytest.mark.parametrize("style", HEADINGS)
@pytest.mark.parametrize("contents", [False, "apart", "together"])
@pytest.mark.parametrize("breaks", ["\n", "\r\n"])
def test_chapters_are_found_whatever_the_headings(
    style: str, contents: str | bool, breaks: str
) -> None:
    """With and without a table of contents, a title page and other line breaks."""
    for seed in range(4):
        rng = Random(f"{style}/{seed}")
        count = rng.randint(2, 12)
        titles = [HEADINGS[style](n) for n in range(count)]
        bodies = [prose(rng) for _ in range(count)]
        parts = ["My Book", "by Nobody"]
        if contents:
            parts += ["Contents", ("\n\n" if contents == "apart" else "\n").join(titles)]
        parts += [f"{title}\n\n{body}" for title, body in zip(titles, bodies, strict=True)]
        split = split_chapters("\ufeff" + "\n\n\n".join(parts).replace("\n", breaks))
        assert [c.text for c in split.chapters] == bodies, split.kind
        assert [c.title for c in split.chapters] == [title.lstrip("# ") for title in titles]
        assert [c.index for c in split.chapters] == list(range(1, count + 1))


def test_parts_and_prologues() -> None:
    rng = Random(0)
    bodies = [prose(rng) for _ in range(5)]
    text = (
        f"PROLOGUE\n\n{bodies[0]}\n\nPART ONE\n\nChapter 1\n\n{bodies[1]}\n\nChapter "
        f"2\n\n{bodies[2]}\n\n"
        f"PART TWO\n\nChapter 1\n\n{bodies[3]}\n\nEpilogue\n\n{bodies[4]}"
    )
    split = split_chapters(text)
    assert [c.title for c in split.chapters] == [
        "PROLOGUE",
        "Chapter 1",
        "Chapter 2",
        "Chapter 1",
        "Epilogue",
    ]
    assert split.chapters[3].text == bodies[3]


def test_a_mention_is_no_heading() -> None:
    rng = Random(0)
    first, second = prose(rng), prose(rng)
    text = (
        f"Chapter 1\n\n{first}\n\nChapter 9 of that book was his favourite, he said, and closed "
        f"it.\n\nChapter 2\n\n"
    )
    split = split_chapters(text + second)
    assert len(split.chapters) in (2, 3)
    assert split.chapters[-1].text == second


def test_a_book_without_headings_is_cut_at_paragraphs() -> None:
    text = prose(Random(1), 9000)
    split = split_chapters(text)
    assert split.kind == "pieces"
    assert len(split.chapters) >= 3
    assert all(1500 <= c.words <= 4000 for c in split.chapters)
    assert "\n\n".join(c.text for c in split.chapters) == text


lines = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "",
                "",
                "Chapter 1",
                "CHAPTER II",
                "IV",
                "7",
                "# Title",
                "## x",
                "PART ONE",
                "Contents",
                "Epilogue",
            ]
        ),
        st.text(max_size=60),
        st.integers(1, 90).map(lambda n: "word " * n),
    ),
    max_size=60,
)


def nonblank(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


@given(lines)
@examples(300)
def test_no_line_is_lost(parts: list[str]) -> None:
    """Front matter, headings and chapters are the text, in its order; it does not matter what the
    text is.
    """
    text = clean("\n".join(parts))
    split = split_chapters(text)
    kept = nonblank(split.front)
    for chapter in split.chapters:
        if split.kind != "pieces":
            kept.append(chapter.title)
        kept += nonblank(chapter.text)
    expected = nonblank(text)
    assert len(kept) == len(expected)
    assert all(a == b or a == b.strip().lstrip("# ") for a, b in zip(kept, expected, strict=True))


@given(st.text(max_size=400))
def test_patterns_end_in_time_on_any_line(line: str) -> None:
    for pattern in KINDS.values():
        pattern.fullmatch(line)


def test_long_lines_take_no_time() -> None:
    """Lines that nearly match a heading: a backtracking pattern would not end."""
    text = "\n\n".join(
        ["CHAPTER " + "I" * 50_000, "A" * 100_000, "1" * 100_000, "# " + "x " * 50_000] * 3
    )
    assert isinstance(split_chapters(text), Split)


def test_alice(real_data: Path) -> None:
    """Twelve chapters with their titles, without the licence."""
    book = read_book(real_data / "books" / "alice.txt")
    split = split_chapters(book.text)
    assert book.title == "Alice\u2019s Adventures in Wonderland"
    assert [c.title.partition(".")[0] for c in split.chapters] == [f"CHAPTER {n}" for n in ROMAN]
    assert split.chapters[0].text.startswith("Alice was beginning to get very tired")
    assert split.chapters[-1].text.rstrip().endswith("THE END")
    assert all("Gutenberg" not in c.text for c in split.chapters)


# ---------------------------------------------------------------- extractive annotations
def test_sentences_keep_abbreviations() -> None:
    text = "Mr. Hale met Dr. A. Moss. \u201cGood day!\u201d he said. It rained.\n\nNext day"
    assert sentences(text) == [
        "Mr. Hale met Dr. A. Moss.",
        "\u201cGood day!\u201d he said.",
        "It rained.",
        "Next day",
    ]


@given(st.text(), st.integers(1, 40))
@settings(deadline=None)
def test_a_summary_is_short_and_from_the_text(text: str, words: int) -> None:
    short = summary(text, words)
    assert len(short.split()) <= words
    joined = " ".join(text.split())
    assert all(s in joined for s in sentences(short))


def test_names_are_those_of_people_and_places() -> None:
    text = (
        "Then Ada Moss saw Ben. " * 4
        + "So the Lamp was the lamp, and the lamp was lit by Ben, I think. " * 4
    )
    assert names(text)[:2] == ["Ben", "Ada Moss"]
    assert "Lamp" not in names(text)
    found = sheets(text, people=1, words=12)
    assert list(found) == ["Ben"]
    assert "Ben" in found["Ben"]


@given(st.text(), st.integers(1, 30))
def test_cut_keeps_the_first_words(text: str, words: int) -> None:
    assert cut(text, words).split() == text.split()[:words]
    assert text.startswith(cut(text, words))
