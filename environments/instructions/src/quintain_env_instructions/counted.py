"""Kinds of constraints about numbers: of words, sentences, lines, items, and words that occur."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from .kinds import Drawn, Words, kind, rule
from .outlines import MANY, Outline

Values = Mapping[str, Any]


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _more_words(reply: str, values: Values) -> str:
    return f"{reply} {'more ' * values['n']}".strip()


def _one_word(reply: str, values: Values) -> str:
    return "More"


def _more_sentences(reply: str, values: Values) -> str:
    return f"{reply} {'And so on. ' * values['n']}".strip()


def _bound_words(outline: Outline, values: Values) -> None:
    outline.words = (values["low"], values["high"])


def _bound_sentences(outline: Outline, values: Values) -> None:
    outline.sentences = (values["low"], values["high"])


@kind("words at most", "length", idle=True, write=_bound_words, spoil=_more_words)
def _words_at_most(rng: Random, words: Words) -> Drawn:
    n = rng.randint(5, 40)
    return rule(f"Has at most {n} words.", f"Use at most {n} words.", n=n, low=0, high=n)


@kind("words at least", "length", write=_bound_words, spoil=_one_word)
def _words_at_least(rng: Random, words: Words) -> Drawn:
    n = rng.randint(10, 60)
    return rule(f"Has at least {n} words.", f"Use at least {n} words.", n=n, low=n, high=MANY)


@kind("words exactly", "length", write=_bound_words, spoil=_more_words)
def _words_exactly(rng: Random, words: Words) -> Drawn:
    n = rng.randint(3, 30)
    return rule(f"Has exactly {n} words.", f"Use exactly {n} words.", n=n, low=n, high=n)


@kind("words between", "length", write=_bound_words, spoil=_more_words)
def _words_between(rng: Random, words: Words) -> Drawn:
    low = rng.randint(5, 30)
    high = low + rng.randint(3, 10)
    return (
        "count:word_count_range",
        {"min_words": low, "max_words": high},
        f"Use between {low} and {high} words.",
        {"n": high, "low": low, "high": high},
    )


@kind("sentences at most", "sentences", idle=True, write=_bound_sentences, spoil=_more_sentences)
def _sentences_at_most(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 6)
    asked = f"Write at most {_plural(n, 'sentence')}."
    return rule(f"Has at most {n} sentences.", asked, n=n, low=1, high=n)


@kind("sentences at least", "sentences", write=_bound_sentences, spoil=_one_word)
def _sentences_at_least(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 8)
    asked = f"Write at least {n} sentences."
    return rule(f"Has at least {n} sentences.", asked, n=n, low=n, high=MANY)


@kind("sentences exactly", "sentences", easy=True, write=_bound_sentences, spoil=_more_sentences)
def _sentences_exactly(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 5)
    asked = f"Write exactly {_plural(n, 'sentence')}."
    return rule(f"Has exactly {n} sentences.", asked, n=n, low=n, high=n)


def _as_lines(outline: Outline, values: Values) -> None:
    outline.shape = "lines"
    outline.blocks = values["n"]


def _as_paragraphs(outline: Outline, values: Values) -> None:
    outline.shape = "paragraphs"
    outline.blocks = values["n"]


def _as_items(outline: Outline, values: Values) -> None:
    outline.shape = "items"
    outline.blocks = values["n"]


def _as_stars(outline: Outline, values: Values) -> None:
    outline.shape = "stars"
    outline.blocks = values["n"]


def _as_sections(outline: Outline, values: Values) -> None:
    outline.shape = "sections"
    outline.blocks = values["n"]


@kind("lines exactly", "shape", write=_as_lines, spoil=lambda reply, _: f"{reply}\nOne more.")
def _lines_exactly(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 6)
    return rule(f"Has exactly {n} lines.", f"Write exactly {n} lines.", n=n)


@kind("lines at least", "shape", write=_as_lines, spoil=_one_word)
def _lines_at_least(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 8)
    return rule(f"Has at least {n} lines.", f"Write at least {n} lines.", n=n)


@kind(
    "paragraphs exactly",
    "shape",
    write=_as_paragraphs,
    spoil=lambda reply, _: f"{reply}\n\nOne more.",
)
def _paragraphs_exactly(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 5)
    asked = f"Write exactly {n} paragraphs with a blank line between them."
    return rule(f"Has exactly {n} paragraphs.", asked, n=n)


@kind(
    "paragraphs by stars",
    "shape",
    write=_as_stars,
    spoil=lambda reply, _: f"{reply}\n***\nOne more.",
)
def _paragraphs_by_stars(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 5)
    asked = f"Write exactly {n} paragraphs, divided by a line with ***."
    return "length_constraints:number_paragraphs", {"num_paragraphs": n}, asked, {"n": n}


@kind(
    "items exactly",
    "shape",
    "start",
    easy=True,
    write=_as_items,
    spoil=lambda reply, _: f"{reply}\n- One more.",
)
def _items_exactly(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 6)
    return rule(f"Has exactly {n} list items.", f"Write a list with exactly {n} items.", n=n)


@kind("items at least", "shape", "start", write=_as_items, spoil=_one_word)
def _items_at_least(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 7)
    return rule(f"Has at least {n} list items.", f"Write a list with at least {n} items.", n=n)


@kind(
    "sections",
    "shape",
    "length",
    "sentences",
    "case",
    "digits",
    "start",
    write=_as_sections,
    spoil=lambda reply, _: reply.replace("Section", "Part"),
)
def _sections(rng: Random, words: Words) -> Drawn:
    n = rng.randint(2, 4)
    arguments = {"section_spliter": "Section", "num_sections": n}
    asked = f"Write {n} sections, headed Section 1, Section 2 and so on."
    return "detectable_format:multiple_sections", arguments, asked, {"n": n}


def _add_tokens(outline: Outline, values: Values) -> None:
    outline.tokens += values["tokens"]


def _without(reply: str, values: Values) -> str:
    text = reply.lower()
    for token in values["tokens"]:
        text = text.replace(token.lower(), "it")
    return text


@kind("mention", easy=True, write=_add_tokens, spoil=_without)
def _mention(rng: Random, words: Words) -> Drawn:
    word = words.take()
    return rule(f'Mentions "{word}".', f'Use the word "{word}".', tokens=[word])


@kind("mention both", write=_add_tokens, spoil=_without)
def _mention_both(rng: Random, words: Words) -> Drawn:
    one = words.take()
    other = words.take()
    asked = f'Use the words "{one}" and "{other}".'
    return "keywords:existence", {"keywords": [one, other]}, asked, {"tokens": [one, other]}


@kind("mention one of", easy=True, write=_add_tokens, spoil=_without)
def _mention_one_of(rng: Random, words: Words) -> Drawn:
    names = [words.take() for _ in range(3)]
    listed = ", ".join(f'"{name}"' for name in names)
    asked = f"Use one of the words {listed}."
    return rule(f"Mentions one of {listed}.", asked, tokens=names[:1])


@kind(
    "leave out",
    idle=True,
    write=lambda outline, values: None,
    spoil=lambda reply, values: f"{reply} {values['word']}",
)
def _leave_out(rng: Random, words: Words) -> Drawn:
    word = words.take()
    return rule(f'Does not mention "{word}".', f'Do not use the word "{word}".', word=word)


@kind(
    "mention exactly",
    write=_add_tokens,
    spoil=lambda reply, values: f"{reply} {values['tokens'][0]}",
)
def _mention_exactly(rng: Random, words: Words) -> Drawn:
    word = words.take()
    n = rng.randint(2, 4)
    asked = f'Use the word "{word}" exactly {n} times.'
    return rule(f'Mentions "{word}" exactly {n} times.', asked, tokens=[word] * n)


@kind("mention at least", write=_add_tokens, spoil=_without)
def _mention_at_least(rng: Random, words: Words) -> Drawn:
    word = words.take()
    n = rng.randint(2, 4)
    asked = f'Use the word "{word}" at least {n} times.'
    return rule(f'Mentions "{word}" at least {n} times.', asked, tokens=[word] * n)


@kind("mention before", write=_add_tokens, spoil=_without)
def _mention_before(rng: Random, words: Words) -> Drawn:
    one = words.take()
    other = words.take()
    asked = f'Use the word "{one}" before the word "{other}".'
    return rule(f'Mentions "{one}" before "{other}".', asked, tokens=[one, other])


_WITH_LETTER = {
    "b": "rubber",
    "k": "kick",
    "m": "memory",
    "p": "puppy",
    "v": "vivid",
    "z": "puzzle",
}


@kind(
    "letter at least",
    write=_add_tokens,
    spoil=lambda reply, values: reply.lower().replace(values["letter"], ""),
)
def _letter_at_least(rng: Random, words: Words) -> Drawn:
    letter = rng.choice(sorted(_WITH_LETTER))
    n = rng.randint(2, 5)
    arguments = {"letter": letter, "let_frequency": n, "let_relation": "at least"}
    asked = f"Use the letter {letter} at least {n} times."
    values = {"letter": letter, "tokens": [_WITH_LETTER[letter]] * n}
    return "keywords:letter_frequency", arguments, asked, values


@kind("numbers exactly", "digits", write=_add_tokens, spoil=lambda reply, _: f"{reply} 8")
def _numbers_exactly(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 4)
    asked = f"Use exactly {_plural(n, 'number')}, written in digits."
    tokens = [str(rng.randint(2, 99)) for _ in range(n)]
    return "count:numbers", {"N": n}, asked, {"tokens": tokens}


@kind(
    "capital words",
    "case",
    write=_add_tokens,
    spoil=lambda reply, _: reply.lower(),
)
def _capital_words(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 3)
    arguments = {"capital_frequency": n, "capital_relation": "at least"}
    asked = f"Write at least {_plural(n, 'word')} in capital letters."
    tokens = [words.take().upper() for _ in range(n)]
    return "change_case:capital_word_frequency", arguments, asked, {"tokens": tokens}


@kind(
    "placeholders",
    write=_add_tokens,
    spoil=lambda reply, _: reply.replace("[", "").replace("]", ""),
)
def _placeholders(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 3)
    asked = f"Use at least {_plural(n, 'placeholder')} in square brackets, such as [name]."
    tokens = [f"[{words.take()}]" for _ in range(n)]
    arguments = {"num_placeholders": n}
    return "detectable_content:number_placeholders", arguments, asked, {"tokens": tokens}


@kind("highlights", write=_add_tokens, spoil=lambda reply, _: reply.replace("*", ""))
def _highlights(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 3)
    asked = f"Highlight at least {_plural(n, 'word')} with asterisks, like *this*."
    tokens = [f"*{words.take()}*" for _ in range(n)]
    arguments = {"num_highlights": n}
    return "detectable_format:number_highlighted_sections", arguments, asked, {"tokens": tokens}


def _exclaim(outline: Outline, values: Values) -> None:
    outline.exclamations = values["n"]


@kind("exclamations", easy=True, write=_exclaim, spoil=lambda reply, _: f"{reply} Oh!")
def _exclamations(rng: Random, words: Words) -> Drawn:
    n = rng.randint(1, 3)
    asked = f"Use exactly {_plural(n, 'exclamation mark')}."
    return rule(f'Mentions "!" exactly {n} times.', asked, n=n)
