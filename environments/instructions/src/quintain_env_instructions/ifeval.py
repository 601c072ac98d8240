"""The 25 instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), counted as its reference
implementation counts, so that scores compare with published ones.

It counts letters, words and sentences in its own way: a word is a run of letters, digits and
underscores, a keyword may be part of a word, and a line end ends no sentence. The generated prompts
count by Unicode's rules instead (`quintain_judge.rules`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from quintain.errors import UsageError

from .checks import decides
from .english import capital_tokens, reference_sentences


def compared(count: int, relation: str, bound: int) -> bool:
    """Return whether *count* is ``"less than"`` *bound*, or ``"at least"``.

    Raises:
        UsageError: for any other *relation*.
    """
    if relation not in ("less than", "at least"):
        raise UsageError(f'the relation is {relation!r}; expected "less than" or "at least"')
    return count < bound if relation == "less than" else count >= bound


@decides("keywords:existence")
def keywords(reply: str, *, keywords: Sequence[str]) -> bool:
    """All *keywords* occur, in any case, also inside a word."""
    return all(word.lower() in reply.lower() for word in keywords)


@decides("keywords:frequency")
def keyword_frequency(reply: str, *, keyword: str, frequency: int, relation: str) -> bool:
    """The *keyword* occurs so often, in any case, also inside a word."""
    return compared(reply.lower().count(keyword.strip().lower()), relation, frequency)


@decides("keywords:forbidden_words")
def forbidden_words(reply: str, *, forbidden_words: Sequence[str]) -> bool:
    """None of the words occurs as a whole word."""
    return not any(
        re.search(rf"\b{re.escape(word)}\b", reply, re.IGNORECASE) for word in forbidden_words
    )


@decides("keywords:letter_frequency")
def letter_frequency(reply: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    """The *letter* occurs so often, in any case."""
    return compared(reply.lower().count(letter.strip().lower()), let_relation, let_frequency)


@decides("language:response_language")
def response_language(reply: str, *, language: str) -> bool:
    """The reply is in the *language* (a code of ISO 639-1) by `langdetect`; one without a feature
    of any language counts as such.
    """
    return detected(reply) in (language, "")


def detected(text: str) -> str:
    """Return the code of the language of *text* by `langdetect`, always the same; empty if nothing
    in it tells one.

    Raises:
        UsageError: `langdetect` is not installed.
    """
    try:
        from langdetect import DetectorFactory, LangDetectException, detect
    except ImportError as e:
        raise UsageError(
            "an instruction about the language of the reply needs langdetect: pip install "
            "'quintain-env-instructions[language]'"
        ) from e
    DetectorFactory.seed = 0  # it draws at random otherwise
    try:
        return str(detect(text))
    except LangDetectException:
        return ""


@decides("length_constraints:number_sentences")
def number_sentences(reply: str, *, num_sentences: int, relation: str) -> bool:
    """The reply has so many sentences (`reference_sentences`)."""
    return compared(len(reference_sentences(reply)), relation, num_sentences)


@decides("length_constraints:number_words")
def number_words(reply: str, *, num_words: int, relation: str) -> bool:
    r"""The reply has so many runs of ``\w``."""
    return compared(len(re.findall(r"\w+", reply)), relation, num_words)


@decides("length_constraints:number_paragraphs")
def number_paragraphs(reply: str, *, num_paragraphs: int) -> bool:
    """``***`` divides the reply into so many paragraphs, none of them empty."""
    blank = [not part.strip() for part in re.split(r"\s?\*\*\*\s?", reply)]
    if any(blank[1:-1]):
        return False
    edges = blank[0] + (blank[-1] if len(blank) > 1 else 0)
    return len(blank) - edges == num_paragraphs


@decides("length_constraints:nth_paragraph_first_word")
def nth_paragraph_first_word(
    reply: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """There are so many paragraphs, divided by two line ends, and the *nth_paragraph* begins with
    *first_word*.
    """
    parts = reply.split("\n\n")
    filled = sum(bool(part.strip()) for part in parts)
    if nth_paragraph > filled or filled != num_paragraphs:
        return False
    beginning = parts[nth_paragraph - 1].split(maxsplit=1)
    if not beginning:
        return False
    word = re.split("[.,?!'\"]", beginning[0].lstrip("'").lstrip('"').lower())[0]
    return word == first_word.lower()


@decides("detectable_content:number_placeholders")
def number_placeholders(reply: str, *, num_placeholders: int) -> bool:
    """There are at least so many ``[placeholders]``, each in one line."""
    return _closed(reply, "[", "]") >= num_placeholders


def _closed(text: str, opening: str, closing: str) -> int:
    """Count the pairs of brackets from left to right, each from the first opening one."""
    return sum(_closed_in(line, opening, closing) for line in text.split("\n"))


def _closed_in(line: str, opening: str, closing: str) -> int:
    count = 0
    place = line.find(opening)
    while place >= 0:
        end = line.find(closing, place)
        if end < 0:
            break
        count += 1
        place = line.find(opening, end)
    return count


@decides("detectable_content:postscript")
def postscript(reply: str, *, postscript_marker: str) -> bool:
    """The marker, such as ``P.S.``, occurs."""
    forms = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    pattern = forms.get(postscript_marker.strip(), re.escape(postscript_marker.strip().lower()))
    return bool(re.search(pattern, reply.lower()))


@decides("detectable_format:number_bullet_lists")
def number_bullet_lists(reply: str, *, num_bullets: int) -> bool:
    """Exactly so many lines begin with ``*`` (and no second one) or ``-``."""
    rows = [row.lstrip() for row in reply.split("\n")]
    return _stars(rows) + sum(row.startswith("-") for row in rows) == num_bullets


def _stars(rows: Sequence[str]) -> int:
    """Count the lines that begin with one asterisk; a bare one takes the next line with it."""
    count = 0
    taken = False
    for number, row in enumerate(rows):
        bare = row == "*"
        if taken or not row.startswith("*") or row.startswith("**"):
            taken = False
        elif not bare or number + 1 < len(rows):
            count += 1
            taken = bare
    return count


_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@decides("detectable_format:constrained_response")
def constrained_response(reply: str) -> bool:
    """One of the three answers of IFEval occurs, such as ``My answer is yes.``"""
    return any(choice in reply for choice in _CHOICES)


@decides("detectable_format:number_highlighted_sections")
def number_highlighted_sections(reply: str, *, num_highlights: int) -> bool:
    """There are at least so many ``*highlights*``; one with two asterisks counts where it has a
    text.
    """
    single = [text for text in re.findall(r"\*([^\n*]*)\*", reply) if text.strip()]
    double = [text for text in re.findall(r"\*\*([^\n*]*)\*\*", reply) if text.strip()]
    return len(single) + len(double) >= num_highlights


@decides("detectable_format:multiple_sections")
def multiple_sections(reply: str, *, section_spliter: str, num_sections: int) -> bool:
    """There are at least so many headings such as ``Section 1``."""
    heading = re.escape(section_spliter.strip()) + r"\s?\d+"
    return len(re.findall(heading, reply)) >= num_sections


@decides("detectable_format:json_format")
def json_format(reply: str) -> bool:
    """The reply is JSON, as Python reads it, perhaps in a fence."""
    text = reply.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip(), parse_int=float)
    except (ValueError, RecursionError):
        return False
    return True


@decides("detectable_format:title")
def title(reply: str) -> bool:
    """A title stands in ``<<double angular brackets>>``."""
    return any(map(_titled, reply.split("\n")))


def _titled(row: str) -> bool:
    start = row.find("<<")
    end = row.rfind(">>")
    return 0 <= start < end and bool(row[start:end].lstrip("<").rstrip(">").strip())


@decides("combination:two_responses")
def two_responses(reply: str) -> bool:
    """Six asterisks divide two different responses."""
    parts = [part.strip() for part in reply.split("******")]
    if not all(parts[1:-1]):
        return False
    given = [part for part in parts if part]
    return len(given) == 2 and given[0] != given[1]


@decides("combination:repeat_prompt")
def repeat_prompt(reply: str, *, prompt_to_repeat: str) -> bool:
    """The reply begins with the prompt, in any case."""
    return reply.strip().lower().startswith(prompt_to_repeat.strip().lower())


@decides("startend:end_checker")
def end_checker(reply: str, *, end_phrase: str) -> bool:
    """The reply ends with the phrase, in any case, perhaps in quotes."""
    return reply.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@decides("startend:quotation")
def quotation(reply: str) -> bool:
    """The whole reply is in double quotes."""
    text = reply.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


@decides("change_case:capital_word_frequency")
def capital_word_frequency(reply: str, *, capital_frequency: int, capital_relation: str) -> bool:
    """So many words are all in capitals (`capital_tokens`)."""
    return compared(capital_tokens(reply), capital_relation, capital_frequency)


@decides("change_case:english_capital")
def english_capital(reply: str) -> bool:
    """The reply is English, all in capitals."""
    return reply.isupper() and detected(reply) in ("en", "")


@decides("change_case:english_lowercase")
def english_lowercase(reply: str) -> bool:
    """The reply is English, all in small letters."""
    return reply.islower() and detected(reply) in ("en", "")


@decides("punctuation:no_comma")
def no_comma(reply: str) -> bool:
    """There is no comma."""
    return "," not in reply
