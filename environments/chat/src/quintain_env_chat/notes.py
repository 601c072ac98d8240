"""Short notes to write, generated: a name, a thing, an occasion and a form. Rules decide every
criterion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import product
from random import Random

from quintain_judge import check

from .rubric import ChatTask, Criterion

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Leo")
THINGS = (
    "tea",
    "cake",
    "book",
    "lamp",
    "walk",
    "song",
    "soup",
    "hat",
    "kite",
    "map",
    "ring",
    "boat",
)
OCCASIONS = {
    "Thank": ("thank you for the {thing}", "It was lovely", "thank you so much for the {thing}"),
    "Invite": ("come and share the {thing}", "It is ready", "do come soon and share the {thing}"),
    "Remind": (
        "please do remember the {thing}",
        "It is waiting",
        "please do not forget about the {thing}",
    ),
}
"""What a note of each occasion says, a second sentence, and a longer way to say the first."""
SIGNS = {
    "Thank": 'Mentions "thank you".',
    "Invite": 'Mentions "share".',
    "Remind": 'Mentions one of "remember", "forget".',
}
"""The criterion of each occasion, which the notes of the other occasions do not meet."""
FORMS = {
    "short": ("in at most 6 words", "Has at most 6 words."),
    "letter": ("as a letter", 'Begins with "Dear".'),
    "two": ("in two sentences", "Has exactly 2 sentences."),
    "lower": ("in lower case", "Is in lower case."),
}
"""The words of the prompt for each form, and its criterion, which the other forms do not meet."""
FAULTS = (
    Criterion(text="Opens with praise.", weight=-1.0, check=True),
    Criterion(text="Praises itself.", weight=-1.0, check=True),
    Criterion(text="Repeats a sentence.", weight=-0.5, check=True),
)
SHARE = 8
"""One note in this many is ``dev``, one is ``test``, the others are ``train``."""


def notes(split: str) -> Iterator[ChatTask]:
    """Yield the notes of *split*, in an order that mixes occasions and forms. The content of a note
    decides its split.
    """
    every = list(product(OCCASIONS, NAMES, THINGS, FORMS))
    Random(0).shuffle(every)
    for occasion, name, thing, form in every:
        if _split_of(f"{occasion}/{name}/{thing}/{form}") == split:
            yield note(occasion, name, thing, form, split)


def note(occasion: str, name: str, thing: str, form: str, split: str) -> ChatTask:
    """Return the task of one note, with a reply that meets all criteria as its answer."""
    words, criterion = FORMS[form]
    return ChatTask(
        prompt=f"{occasion} {name}: {thing}, {words}.",
        answer=written(occasion, name, thing, form),
        criteria=(
            Criterion(text=f'Mentions "{name}".'),
            Criterion(text=f'Mentions "{thing}".'),
            Criterion(text=SIGNS[occasion], check=True),
            Criterion(text=criterion, weight=2.0, check=True),
            *FAULTS,
        ),
        good=good_notes(occasion, name, thing, form),
        split=split,
    )


def written(occasion: str, name: str, thing: str, form: str) -> str:
    """Return a note in *form*."""
    first, second, longer = (text.format(thing=thing) for text in OCCASIONS[occasion])
    return _in_form(form, name, longer if form == "lower" else first, second)


def good_notes(occasion: str, name: str, thing: str, form: str) -> tuple[str, ...]:
    """Return every note that does what is asked: either way to say it, in the form that is asked
    for.
    """
    first, second, longer = (text.format(thing=thing) for text in OCCASIONS[occasion])
    texts = [_in_form(form, name, words, second) for words in (first, longer)]
    return tuple(text for text in texts if check(FORMS[form][1], text))


def asked(task: ChatTask) -> tuple[str, str, str, str]:
    """Read occasion, name, thing and form from the prompt of a note."""
    occasion, rest = str(task.prompt).split(" ", 1)
    name, rest = rest.split(": ", 1)
    thing, words = rest.rstrip(".").split(", ", 1)
    return occasion, name, thing, next(form for form, (text, _) in FORMS.items() if text == words)


def _in_form(form: str, name: str, first: str, second: str) -> str:
    if form == "letter":
        return f"Dear {name}, {first}."
    if form == "two":
        return f"{name}, {first}. {second}."
    if form == "lower":
        return f"{first}, {name.lower()}."
    return f"{first[0].upper()}{first[1:]}, {name}."


def beginner(task: ChatTask, habit: float) -> str:
    """Return a reply with the habits of a beginner: in a *habit* share of tasks another form,
    praise first, or no name.
    """
    rng = Random(f"{task.id}/beginner")
    occasion, name, thing, form = asked(task)
    if rng.random() < habit:
        form = rng.choice(sorted(set(FORMS) - {form}))
    text = written(occasion, name, thing, form)
    if rng.random() < habit / 3:
        text = f"What a great idea! {text}"
    if rng.random() < habit / 3:
        other = rng.choice([n for n in NAMES if n != name])
        text = text.replace(name, other).replace(name.lower(), other.lower())
    return text


def _split_of(key: str) -> str:
    slot = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")
