"""Words, sentences, lists and phrases, counted by Unicode's rules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain_judge import check
from quintain_judge.counting import (
    begins_with,
    ends_with,
    folded,
    lines,
    list_items,
    paragraphs,
    places,
    sentences,
    visible,
    words,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("\u200b", 0),
        ("...", 0),
        ("\u092e\u0948\u0902 \u0939\u0930 \u0926\u093f\u0928", 3),  # Hindi, with vowel signs
        ("\u09ae\u09be \u0986\u09ae\u09be\u09b0 \u09aa\u09cd\u09b0\u09bf\u09df", 3),  # Bengali
        ("\u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd \u0ba8\u0ba3\u0bcd\u0baa\u0bbe", 2),  # Tamil
        ("\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05b9\u05dc\u05b8\u05dd", 2),
        ("\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f \u0647\u0646\u0627", 2),  # with points
        ("Tie\u0302\u0301ng Vie\u0323\u0302t", 2),  # decomposed
        ("cafe\u0301 noir", 2),
        ("hel\u00adlo wor\u200bld", 2),
        ("\u0645\u06cc\u200c\u0631\u0648\u0645 \u062e\u0627\u0646\u0647", 2),  # a joiner inside
        ("rock 'n' roll", 3),
        ("don\u2019t stop", 2),
        ("state-of-the-art design", 2),
        ("re\u2011enter now", 2),
        ("a - b", 2),
        ("a--b", 2),
        ("well- known", 2),
        ("2019-2020", 1),
        ("10:30", 2),
        ("3.50 1,000,000", 2),
        ("U.S. a.m. example.com", 3),
        ("The mill burned.It was", 5),
        ("snake_case x", 2),
        ("\U0001f44d ok \U0001f468\u200d\U0001f469\u200d\U0001f467", 1),
        ("\U0001f1e9\U0001f1ea flag", 1),
        ("\u4eca\u5929 tea \u4e0b\u96e8", 5),
        ("\u30b3\u30fc\u30d2\u30fc", 4),
        ("\ud55c\uad6d\uc5b4 \ub2e8\uc5b4", 2),
        ("\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 ok", 2),  # Thai: a run is one
    ],
)
def test_words(text: str, count: int) -> None:
    assert len(words(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Hello", 1),
        ("...", 0),
        ("Prof. Ada Byrd and Mrs. Lee met St. John on Main St. They left.", 2),
        ("Mr. and Mrs. Ng vs. Dr. Wu.", 1),
        ("See Fig. 3 and Sec. 2, vol. 4, pp. 5 and 6.", 1),
        ("No. I said no. 5 is mine.", 2),
        ("I like the U.S. It is big.", 2),
        ("Washington, D.C. is hot.", 1),
        ("She has a Ph.D. She teaches.", 2),
        ("We met at 9 a.m. Monday morning.", 1),
        ("We met at 9 a.m. The hall was cold.", 2),
        ("Bring pens, paper, etc. We begin at 9.", 2),
        ("Bring pens, paper, etc. for the class.", 1),
        ("Plan B. We left.", 2),
        ("So do I. Anna left.", 2),
        ("J. A. Smith wrote it. It sold.", 2),
        ("M. Dupont est l\u00e0.", 1),
        ("Das ist z.B. gut, d.h. brauchbar.", 1),
        ("Der 5. Mai ist ein Montag. Am 6. Juni nicht.", 2),
        ("1. Wash the rice.\n2. Boil it.", 2),
        ("We climbed Mt. Fuji.", 1),
        ("Jan. 5 was cold.", 1),
        ("Jan. is cold.", 1),
        ("See vol. II for more.", 1),
        ("Roe v. Wade was decided in 1973.", 1),
        ("It weighs 5 lbs. in all.", 1),
        ("Lee et al. found it.", 1),
        ("Acme Co. Ltd. makes it.", 1),
        ("El Sr. L\u00f3pez lleg\u00f3.", 1),
        ("Das ist z. B. gut.", 1),
        ("C'est p. ex. un chat.", 1),
        ("J.R.R. Tolkien wrote it.", 1),
        ("Open Mon. to Fri. only.", 1),
        ("Node.js is fast.", 1),
        ("P.S. I love you.", 1),
        ("Born c. 1850 in Rome.", 1),
        ("He asked, 'Why?' and left.", 1),
        ("dr. ng met mrs. lee.", 1),
        ("We drove to Elm Ave. It was closed.", 2),
        ("I met Sam Lee, Jr. He was tall.", 2),
        ("Vitamin C. It helps.", 2),
        ("He said no. She left.", 2),
        ("Look at the sun. it sets.", 2),
        ("They left in Dec. It was cold.", 2),
        ("rain fell. it was cold.", 2),
        ("It costs 3.50 or 1.000,5 today.", 1),
        ("Version 2.0.1 is out.", 1),
        ("Visit www.example.co.uk/page.html?q=1 today!", 1),
        ("Stop!Go.", 2),
        ("\u201cGo!\u201d she cried. He went.", 2),
        ("Really?! Yes.", 2),
        ("Well ... maybe.", 1),
        ("He paused... Then he left.", 2),
        ("It burned (in 1990). It stands.", 2),
        ("He left (at last.) and slept.", 1),
        ("**Bold one.** Plain two.", 2),
        ("It burned.[3] It stands.", 2),
        ("\u4eca\u5929\u4e0b\u96e8\u3002\u6211\u5728\u5bb6\u3002", 2),
        ("\u300c\u6b62\u307e\u308c\u3002\u300d\u3068\u8a00\u3063\u305f\u3002", 1),
        ("\u0935\u0939 \u0917\u092f\u093e\u0964 \u0935\u0939 \u0938\u094b\u092f\u093e\u0964", 2),
        ("\u0647\u0644 \u0623\u0646\u062a \u0647\u0646\u0627\u061f \u0646\u0639\u0645.", 2),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert len(sentences(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("\u2013 one\n\u2014 two", 2),
        ("\u2022 one\r\n\u2022 two", 2),
        ("+ one\n* two\n- three", 3),
        ("\u25e6 one\n\u25aa two", 2),
        ("\u2460 one\n\u2461 two", 2),
        ("1\u3001\u4e00\n2\u3001\u4e8c", 2),
        ("\u2022one\n\u25aatwo", 2),
        ("(1) one\n(a) two\n10) ten", 3),
        ("i) one\nii) two", 2),
        ("A. one\nB. two", 2),
        ("A. Smith wrote it.", 0),
        ("- [ ] task\n- [x] done", 2),
        ("  - nested\n    * deep", 2),
        ("* * *\n***\n___\n- - -", 0),
        ("-5 degrees\n*emphasis* line\n**bold** x\n1.one", 0),
        ("- \n- x", 1),
        ("~~~\n- a\n~~~\n- b", 1),
    ],
)
def test_list_items(text: str, count: int) -> None:
    assert len(list_items(text)) == count


@pytest.mark.parametrize(
    ("text", "phrase", "count"),
    [
        ("\uff30\uff21\uff33\uff33\uff37\uff2f\uff32\uff24 here", "password", 1),
        ("pa\u2060ss\u00adwo\u200brd", "password", 1),
        ("\ufb01nd it", "find", 1),
        ("cafe\u0301", "caf\u00e9", 1),
        ("na\u00efve", "naive", 0),
        ("the r\u0430in", "rain", 1),  # a Cyrillic letter in a Latin word
        ("\u0440\u0430\u043a", "pak", 0),  # a Cyrillic word
        ("p\u0336a\u0336s\u0336s", "pass", 1),  # struck through
        ("\u24df\u24d0\u24e2\u24e2", "pass", 1),  # circled
        ("don`t", "don't", 1),
        ("well\u2011known", "well-known", 1),
        ("well-known", "\u2014", 0),
        ("yes \u2014 no", "\u2014", 1),
        ("l\u2019\u00e9t\u00e9", "l'\u00e9t\u00e9", 1),
        ("don't", "\u2019", 0),
        ("don\u2019t", "\u2019", 1),
        ("ice\u00a0cream, ice\n\tcream", "ice cream", 2),
        ("_rain_ fell", "rain", 1),
        ("brain, rainy", "rain", 0),
        ("Alice\u2019s", "Alice", 1),
        ("C++ and C", "C", 1),
        ("C# code", "C", 0),
        ("3.5 km, 10,000", "3", 0),
        ("3. Then", "3", 1),
        ("10\u00b2", "10", 0),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f468", 0),
        ("\u2764 ok", "\u2764\ufe0f", 1),
        ("STRASSE", "stra\u00dfe", 1),
        ("\u03a3\u039f\u03a6\u039f\u03a3", "\u03c3\u03bf\u03c6\u03bf\u03c2", 1),
        ("\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u0e44\u0e17\u0e22", 1),
        ("\u0915\u093f\u0924\u093e\u092c\u0947\u0902", "\u0915\u093f\u0924\u093e\u092c", 0),
        ("a\u0301b", "a", 0),
        ("ha ha ha", "ha ha", 1),
    ],
)
def test_places_of_a_phrase(text: str, phrase: str, count: int) -> None:
    assert len(places(text, phrase)) == count


def test_beginnings_and_endings() -> None:
    assert begins_with("\ufeff\u200bDear Ada", "dear")
    assert not begins_with("Dearth", "Dear")
    assert ends_with("ha ha ha", "ha ha")
    assert ends_with("Many thanks.\u200b\n", "thanks.")
    assert not ends_with("curve.", "curve")


def test_paragraphs_and_lines() -> None:
    assert paragraphs("a\nb\n\n\nc\n \nd") == ["a\nb", "c", "d"]
    assert lines("a\x0bb\r\n\u200b\nc") == ["a\x0bb", "c"]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"a": -0.5e3}', True),
        ("9" * 5001, True),
        (" [1]\n", True),
        ("-Infinity", False),
        ('{"a": NaN}', False),
        ("{'a': 1}", False),
        ('"\t"', False),
        ("```\n1\n```", False),
    ],
)
def test_json(text: str, valid: bool) -> None:
    assert check("Is valid JSON.", text) is valid


@pytest.mark.parametrize(
    ("criterion", "good", "poor"),
    [
        ("Has exactly 2 paragraphs.", "a\n\nb", "a\nb"),
        ("Is in Cyrillic letters.", "\u0440\u0435\u043a\u0430 2", "\u0440\u0435\u043aa"),
        ("Is in Japanese letters.", "\u4eca\u65e5\u306f\u3002", "\u4eca\u65e5 ok"),
        ("Is in Latin letters.", "cafe\u0301 2", "123"),
        ("Is in upper case.", "\u00dcBER 2", "\ufb01"),
    ],
)
def test_rules(criterion: str, good: str, poor: str) -> None:
    assert check(criterion, good) is True
    assert check(criterion, poor) is False


@given(st.text(max_size=60), st.text(max_size=60))
def test_counts_of_parts_add_up(one: str, other: str) -> None:
    """A blank line divides words, sentences, paragraphs and lines."""
    both = f"{one}\n\n{other}"
    for count in (words, sentences, paragraphs, lines):
        assert len(count(both)) == len(count(one)) + len(count(other))


@given(st.text(max_size=60))
def test_folding_is_stable(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert folded(folded(text)) == folded(text)


REPEATED = {
    "stops": ". ",
    "dots": ".",
    "marks": "a\u0301",
    "flags": "\U0001f1e6",
    "joiners": "\U0001f468\u200d",
    "quotes": '."',
    "blanks": " ",
    "bullets": "-  ",
    "lines": "\n",
    "abbreviations": "e.g. ",
    "hyphens": "a-",
    "stars": "*",
    "han": "\u4e2d",
    "numbers": "1.",
}


@pytest.mark.parametrize("unit", list(REPEATED.values()), ids=list(REPEATED))
@pytest.mark.parametrize("count", [words, sentences, list_items, paragraphs, folded])
@pytest.mark.more
def test_time_grows_with_length(count: Callable[[str], object], unit: str) -> None:
    """Sixteen times the length takes far less than 256 times the CPU time."""
    short = (unit * 3000)[:3000]
    long = (unit * 48000)[:48000]
    base = max(_seconds(count, short), 0.002)
    assert _seconds(count, long) < 100 * base


def _seconds(count: Callable[[str], object], text: str) -> float:
    begin = time.process_time()
    count(text)
    return time.process_time() - begin


def test_the_grammar_reads_a_long_number_as_json() -> None:
    assert check("Is valid JSON.", json.dumps({"a": 1}).replace("1", "1" * 6000)) is True
