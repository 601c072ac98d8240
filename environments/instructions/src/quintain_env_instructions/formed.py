"""Kinds of constraints about form: how a reply begins and ends, its case, and what it is as a
whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from .kinds import Drawn, Words, kind, rule
from .outlines import Outline

Values = Mapping[str, Any]


def _setting(name: str) -> Callable[[Outline, Values], None]:
    """Return what sets the field *name* of an outline to the value of that name."""

    def write(outline: Outline, values: Values) -> None:
        setattr(outline, name, values[name])

    return write


BEGINNINGS = ("Hello", "Dear friend", "Today", "Listen", "Long ago", "Every day", "In short")
ENDINGS = ("thanks.", "the end.", "good night.", "see you soon.", "that is all.", "well done.")
TITLES = ("A Short Text", "My Answer", "Good News", "The Story")


@kind(
    "begin",
    "start",
    easy=True,
    write=_setting("begin"),
    spoil=lambda reply, values: f"So {reply}",
)
def _begin(rng: Random, words: Words) -> Drawn:
    phrase = rng.choice(BEGINNINGS)
    return rule(f'Begins with "{phrase}".', f'Begin with "{phrase}".', begin=phrase)


@kind(
    "begin with a word",
    "start",
    write=_setting("begin"),
    spoil=lambda reply, values: f"So {reply}",
)
def _begin_with_a_word(rng: Random, words: Words) -> Drawn:
    word = words.take().capitalize()
    return rule(f'Begins with "{word}".', f'The first word is "{word}".', begin=word)


@kind(
    "end",
    "finish",
    easy=True,
    write=_setting("end"),
    spoil=lambda reply, values: f"{reply} Really.",
)
def _end(rng: Random, words: Words) -> Drawn:
    phrase = rng.choice(ENDINGS)
    return rule(f'Ends with "{phrase}".', f'End with "{phrase}"', end=phrase)


@kind(
    "end with a question",
    "finish",
    easy=True,
    write=_setting("end"),
    spoil=lambda reply, values: f"{reply} Yes.",
)
def _end_with_a_question(rng: Random, words: Words) -> Drawn:
    return rule('Ends with "?".', "End with a question.", end="do you agree?")


@kind(
    "lower case",
    "case",
    easy=True,
    write=_setting("case"),
    spoil=lambda reply, values: f"A{reply}",
)
def _lower_case(rng: Random, words: Words) -> Drawn:
    return rule("Is in lower case.", "Write in lower case.", case="lower")


@kind(
    "upper case",
    "case",
    easy=True,
    write=_setting("case"),
    spoil=lambda reply, values: f"a{reply}",
)
def _upper_case(rng: Random, words: Words) -> Drawn:
    return rule("Is in upper case.", "Write in upper case.", case="upper")


@kind(
    "quotation",
    "start",
    "finish",
    easy=True,
    write=_setting("quoted"),
    spoil=lambda reply, values: reply.strip('"'),
)
def _quotation(rng: Random, words: Words) -> Drawn:
    asked = "Put the whole reply in double quotes."
    return "startend:quotation", {}, asked, {"quoted": True}


@kind(
    "title",
    "start",
    "shape",
    "length",
    "sentences",
    write=_setting("title"),
    spoil=lambda reply, values: reply.replace("<<", "").replace(">>", ""),
)
def _title(rng: Random, words: Words) -> Drawn:
    asked = "Give it a title in double angular brackets, such as <<title>>."
    return "detectable_format:title", {}, asked, {"title": f"<<{rng.choice(TITLES)}>>"}


def _no_postscript(reply: str, values: Values) -> str:
    return reply.lower().replace(values["postscript"].partition(" ")[0].lower(), "")


@kind(
    "postscript",
    "finish",
    "shape",
    "length",
    "sentences",
    write=_setting("postscript"),
    spoil=_no_postscript,
)
def _postscript(rng: Random, words: Words) -> Drawn:
    marker, line = rng.choice((("P.S.", "P.S. Take care."), ("P.P.S", "P.P.S Take care.")))
    asked = f"Add a postscript that begins with {marker}" + "." * (not marker.endswith("."))
    arguments = {"postscript_marker": marker}
    return "detectable_content:postscript", arguments, asked, {"postscript": line}


@kind(
    "no comma",
    idle=True,
    write=lambda outline, values: None,
    spoil=lambda reply, values: f"{reply[:-1]},{reply[-1:]}",
)
def _no_comma(rng: Random, words: Words) -> Drawn:
    return "punctuation:no_comma", {}, "Use no commas.", {}


@kind(
    "no sentence twice",
    "sentences",
    idle=True,
    write=lambda outline, values: None,
    spoil=lambda reply, values: f"{reply} Again. Again.",
)
def _repeats_nothing(rng: Random, words: Words) -> Drawn:
    return rule("Repeats no sentence.", "Do not write a sentence twice.")


@kind(
    "json",
    alone=True,
    easy=True,
    write=_setting("whole"),
    spoil=lambda reply, values: f"Sure: {reply}",
)
def _json(rng: Random, words: Words) -> Drawn:
    whole = json.dumps({words.take(): words.take()})
    return rule("Is valid JSON.", "Reply in JSON and with nothing else.", whole=whole)


@kind(
    "options",
    alone=True,
    easy=True,
    write=_setting("whole"),
    spoil=lambda reply, values: f"{reply} indeed",
)
def _options(rng: Random, words: Words) -> Drawn:
    names = [words.take() for _ in range(3)]
    listed = "/".join(names)
    asked = f"Reply with one of {listed} and nothing else."
    return "format:options", {"options": listed}, asked, {"whole": names[0]}


@kind(
    "two replies",
    alone=True,
    write=_setting("whole"),
    spoil=lambda reply, values: reply.replace("*", ""),
)
def _two_replies(rng: Random, words: Words) -> Drawn:
    asked = "Give two different replies, divided by ******."
    whole = f"I like the {words.take()}.\n******\nI like the {words.take()}."
    return "combination:two_responses", {}, asked, {"whole": whole}


@kind(
    "one word a line",
    alone=True,
    write=_setting("whole"),
    spoil=lambda reply, values: reply.replace("\n", " "),
)
def _one_word_a_line(rng: Random, words: Words) -> Drawn:
    whole = "\n".join(words.take() for _ in range(4))
    return "format:newline", {}, "Write each word on a line of its own.", {"whole": whole}


@kind(
    "no blank",
    alone=True,
    write=_setting("whole"),
    spoil=lambda reply, values: f"{reply} {reply}",
)
def _no_blank(rng: Random, words: Words) -> Drawn:
    return "format:no_whitespace", {}, "Use no blanks.", {"whole": words.take() + words.take()}


@kind(
    "no letter in a row",
    alone=True,
    write=_setting("whole"),
    spoil=lambda reply, values: f"{reply} {reply.split()[-1]}",
)
def _no_letter_in_a_row(rng: Random, words: Words) -> Drawn:
    asked = "Let no two words side by side begin with the same letter."
    return "words:no_consecutive", {}, asked, {"whole": "Every bird can sing"}
