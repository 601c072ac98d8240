"""Instructions of IFBench about sentences, and those about one prompt that need no list of facts."""

from __future__ import annotations

import csv
import re
from itertools import pairwise

import regex

from .checks import decides
from .english import PUNCTUATION, plain_words, reference_sentences

_EDGE = PUNCTUATION + " "


def _kinds(reply: str) -> tuple[int, int, int]:
    """Count the sentences that end with ``.``, ``?`` and ``!``."""
    ends = [sentence.rstrip("\"')\u201d")[-1:] for sentence in reference_sentences(reply)]
    return ends.count("."), ends.count("?"), ends.count("!")


@decides("ratio:sentence_type")
def sentence_type(reply: str) -> bool:
    """There are twice as many statements as questions."""
    statements, questions, _ = _kinds(reply)
    return statements == 2 * questions


@decides("ratio:sentence_balance")
def sentence_balance(reply: str) -> bool:
    """There are as many statements as questions as exclamations."""
    return len(set(_kinds(reply))) == 1


@decides("ratio:sentence_words")
def sentence_words(reply: str) -> bool:
    """Three sentences have the same number of characters."""
    lengths = [len(sentence) for sentence in reference_sentences(reply)]
    return len(lengths) == 3 and len(set(lengths)) == 1


@decides("sentence:alliteration_increment")
def alliteration_increment(reply: str) -> bool:
    """Each sentence has more alliterating words than the one before."""
    counts = [_alliterating(sentence) for sentence in reference_sentences(reply)]
    return all(a < b for a, b in pairwise(counts))


def _alliterating(sentence: str) -> int:
    stripped = [word.lstrip(_EDGE) for word in sentence.lower().split()]
    firsts = [word[0] for word in stripped if word]
    count = 0
    before = False
    for a, b in pairwise(firsts):
        if a == b:
            count += 1 if before else 2
        before = a == b
    return count


@decides("sentence:increment")
def increment(reply: str, *, small_n: int) -> bool:
    """Each sentence has exactly so many words more than the one before."""
    counts = [len(plain_words(sentence)) for sentence in reference_sentences(reply)]
    return all(b == a + small_n for a, b in pairwise(counts))


@decides("sentence:keyword")
def sentence_keyword(reply: str, *, word: str, N: int) -> bool:
    """The *N*-th sentence has the word, also inside another."""
    sentences = reference_sentences(reply)
    return len(sentences) >= N and word.strip().lower() in sentences[N - 1].lower()


@decides("words:keywords_specific_position")
def keyword_position(reply: str, *, keyword: str, n: int, m: int) -> bool:
    """The *m*-th word of the *n*-th sentence is the keyword; a mark is a word."""
    sentences = reference_sentences(reply)
    if len(sentences) < n:
        return False
    words = re.findall(r"\w+(?:['-]\w+)*|[^\w\s]", sentences[n - 1])
    return len(words) >= m and words[m - 1] == keyword.strip()


@decides("words:last_first")
def last_first(reply: str) -> bool:
    """The last word of each sentence is the first of the next."""
    stripped = [sentence.lower().strip(_EDGE).split() for sentence in reference_sentences(reply)]
    divided = [words for words in stripped if words]
    return all(a[-1] == b[0] for a, b in pairwise(divided))


_EMOJI = regex.compile(r"\p{Extended_Pictographic}")


@decides("format:emoji")
def emoji(reply: str) -> bool:
    """Each sentence ends with an emoji, before or behind its mark."""
    sentences = [s.translate(_NO_MARKS).strip() for s in reference_sentences(reply)]
    following = [*sentences[1:], ""]
    for sentence, after in zip(sentences, following, strict=True):
        if not sentence:
            return False
        if not any(map(_EMOJI.match, sentence[-2:])) and not _EMOJI.match(after):
            return False
    return True


_NO_MARKS = str.maketrans("", "", PUNCTUATION)


@decides("format:no_bullets_bullets")
def bullets_behind_sentences(reply: str) -> bool:
    """Two sentences or more, then two bullets or more, and nothing behind them."""
    rows = [row.strip() for row in reply.split("\n")]
    first = next((i for i, row in enumerate(rows) if row.startswith("*")), len(rows))
    sentences = sum(len(reference_sentences(row)) for row in rows[:first])
    bullets = rows[first:]
    return sentences >= 2 and len(bullets) >= 2 and all(row.startswith("*") for row in bullets)


@decides("custom:multiples")
def multiples(reply: str) -> bool:
    """The numbers are the multiples of 7 from 14 to 49."""
    return re.findall(r"\d+", reply) == ["14", "21", "28", "35", "42", "49"]


@decides("custom:sentence_alphabet")
def sentence_alphabet(reply: str) -> bool:
    """26 sentences begin with the letters of the alphabet in order."""
    firsts = [sentence[0].lower() for sentence in reference_sentences(reply)]
    return "".join(firsts) == "abcdefghijklmnopqrstuvwxyz"


@decides("custom:date_format_list")
def date_list(reply: str) -> bool:
    """The reply is dates of 1769 to 1821 such as 1805-12-02, divided by commas."""
    longest = dict.fromkeys((1, 3, 5, 7, 8, 10, 12), 31) | dict.fromkeys((4, 6, 9, 11), 30)
    for text in reply.split(","):
        date = re.fullmatch(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", text.strip())
        if date is None:
            return False
        year, month, day = map(int, date.groups())
        if not 1769 <= year <= 1821 or day > {2: 29, **longest}.get(month, 99) or month > 12:
            return False
    return True


def _table(reply: str, delimiter: str, names: str) -> list[list[str]] | None:
    """Return the rows below the header of a table with these columns, quotes kept."""
    columns = names.split()
    header = reply.split("\n")[0].strip().split(delimiter)
    if [name.strip().strip('"') for name in header] != columns:
        return None
    kept = reply.replace('"', '"""')
    try:
        rows = list(csv.reader(kept.split("\n"), delimiter=delimiter))
    except csv.Error:
        return None
    return rows[1:] if all(len(row) == len(columns) for row in rows) else None


@decides("custom:csv_city")
def csv_city(reply: str) -> bool:
    """A table has 7 rows of cities."""
    rows = _table(reply, ",", "ID Country City Year Count")
    return rows is not None and len(rows) == 7


@decides("custom:csv_special_character")
def csv_special_character(reply: str) -> bool:
    """A table of 14 rows has a field in quotes with a special character."""
    rows = _table(reply, ",", "ProductID Category Brand Price Stock")
    if rows is None or len(rows) != 14:
        return False
    return any(re.match(r'".*[^\d\w\s].*"', field) for row in rows for field in row)


@decides("custom:csv_quotes")
def csv_quotes(reply: str) -> bool:
    """A table of 3 rows, divided by tabs, has every field in quotes."""
    rows = _table(reply, "\t", "StudentID Subject Grade Semester Score")
    if rows is None or len(rows) != 3:
        return False
    fields = [field.strip() for row in rows for field in row]
    return all(field[:1] == field[-1:] == '"' for field in fields)
