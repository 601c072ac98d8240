"""Generated exercises in plain English, from which the general starter learns: one function per
skill.

Each function takes a random generator and a difficulty from 0 to 1 and returns an `Exercise`; the
answer is computed, never looked up. `exercise` draws a skill, a wording and a form of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from string import ascii_lowercase
from typing import Any

from quintain import Message, ToolCall, ToolSpec

from .exercises import (
    COLOURS,
    NAMES,
    ORDINALS,
    PLACES,
    THINGS,
    VOWELS,
    Exercise,
    a_number,
    a_word,
    joined,
    made_by,
    some_items,
    up_to,
    worded,
)

ORDER = "[from small to large|in ascending order|in increasing order]"
DOWN = "[from large to small|in descending order|in decreasing order]"
BACK = (
    "[backwards|in reverse|in reverse order|from the end to the start|from right to left|the other "
    "way round]"
)
WORD = "[|the word |the letters |the text |the string ]"
LIST = "[|the list |these: |the items |the list: |these items: ]"


def copying(rng: Random, hard: float) -> Exercise:
    """Say the same text again, once or several times."""
    items = some_items(rng, hard)
    text = rng.choice(
        (a_word(rng, hard, 2, 24), " ".join(items), joined(rng, items)[0], str(a_number(rng, 1, 9)))
    )
    if rng.random() < 0.2:
        times = up_to(rng, hard, 2, 5)
        question = worded(rng, "[Write|Repeat|Say|Print] {x} {n} times.", x=text, n=times)
        return made_by(copying, question, " ".join([text] * times), text, times)
    pattern = (
        "[[Repeat|Copy|Say|Write|Type|Print][|:| this:| exactly this:] {x}|Echo {x}|Write {x} once "
        "more.]"
    )
    return made_by(copying, worded(rng, pattern, x=text), text, text, 1)


def reversing_letters(rng: Random, hard: float) -> Exercise:
    """Write a word from its end."""
    text = a_word(rng, hard, 2, 20)
    verb = "[Write|Spell|Say|Print|Give|Type|Read]"
    pattern = (
        f"[{verb} {WORD}{{x}} {BACK}[.|]|Reverse {WORD}{{x}}[.|]|{{x}} backwards|"
        "What is {x} [spelled|written|read] backwards?|Turn {x} around.|Reverse: {x}]"
    )
    return made_by(reversing_letters, worded(rng, pattern, x=text), text[::-1], text)


def reversing_lists(rng: Random, hard: float) -> Exercise:
    """Write a list from its end."""
    items = some_items(rng, hard)
    text, separator = joined(rng, items)
    pattern = f"[Reverse {LIST}{{x}}|[Write|Give|Print] {LIST}{{x}} {BACK}]"
    return made_by(
        reversing_lists, worded(rng, pattern, x=text), separator.join(items[::-1]), items, separator
    )


def spelling(rng: Random, hard: float) -> Exercise:
    """Take a word apart into letters, or put one together."""
    text = a_word(rng, hard, 2, 12)
    name, separator = rng.choice(
        (("blanks", " "), ("hyphens", "-"), ("commas", ","), ("dots", "."))
    )
    apart = separator.join(text)
    if rng.random() < 0.6:
        how = "[with {n} between the letters|letter by letter, with {n}]"
        pattern = f"[Spell|Write|Write the letters of] {WORD}{{x}} {how}."
        return made_by(spelling, worded(rng, pattern, x=text, n=name), apart, text, separator)
    pattern = "[Join|Put together|Connect] [the letters |]{x}[ to a word| into one word|]."
    return made_by(spelling, worded(rng, pattern, x=apart), text, apart, separator)


def counting(rng: Random, hard: float) -> Exercise:
    """Count letters of a word, one kind of letter, or items of a list."""
    kind = rng.randrange(3)
    if kind == 0:
        text = a_word(rng, hard, 2, 10)
        question = worded(
            rng, f"[How many letters does {WORD}{{x}} have?|How long is {WORD}{{x}}?]", x=text
        )
        return made_by(counting, question, len(text), text, "")
    if kind == 1:
        letter = rng.choice(ascii_lowercase)
        some = [letter, *rng.choices(ascii_lowercase, k=2)]
        text = "".join(rng.choices(some, k=up_to(rng, hard, 2, 10)))
        pattern = (
            "[How many times does the letter {c} [appear|occur] in {x}?|"
            f"How many {{c}} are in {WORD}{{x}}?|Count the letter {{c}} in {{x}}.]"
        )
        return made_by(
            counting, worded(rng, pattern, c=letter, x=text), text.count(letter), text, letter
        )
    items = some_items(rng, hard, 1, 8)
    text, _ = joined(rng, items)
    question = worded(
        rng,
        "[How many [items|words|things|numbers] are [here|in this list]: {x}|Count the items: {x}]",
        x=text,
    )
    return made_by(counting, question, len(items), items, None)


def picking(rng: Random, hard: float) -> Exercise:
    """Take one letter of a word or one item of a list by its position."""
    whole: Sequence[str]
    if rng.random() < 0.5:
        whole = text = a_word(rng, hard, 3, 10)
        kind = "letter"
    else:
        whole = some_items(rng, hard, 3, 7)
        text, kind = joined(rng, whole)[0], "item"
    position = rng.randrange(-1, min(len(whole), len(ORDINALS)))
    place = "last" if position < 0 else ORDINALS[position]
    pattern = (
        "[What is the {p} {k} of {x}?|Give the {p} {k} of {x}.|Take the {p} {k}: {x}|Which {k} is "
        "{p} in {x}?]"
    )
    return made_by(
        picking, worded(rng, pattern, p=place, k=kind, x=text), whole[position], whole, position
    )


def sorting(rng: Random, hard: float) -> Exercise:
    """Sort numbers, words or the letters of a word."""
    kind, down = rng.randrange(3), rng.random() < 0.35
    if kind == 0:
        numbers = [a_number(rng, hard) for _ in range(up_to(rng, hard, 2, 7))]
        text, separator = joined(rng, numbers)
        pattern = (
            f"[Sort|Order|Put in order|Arrange] [|the numbers |these numbers: ]{{x}} "
            f"{DOWN if down else ORDER}[.|]"
        )
        answer = separator.join(map(str, sorted(numbers, reverse=down)))
        return made_by(sorting, worded(rng, pattern, x=text), answer, numbers, down)
    items = (
        list(a_word(rng, hard, 2, 10)) if kind == 1 else rng.sample(THINGS, up_to(rng, hard, 2, 5))
    )
    text, separator = ("".join(items), "") if kind == 1 else joined(rng, items)
    end = (
        "in reverse [alphabetical order|order of the alphabet]"
        if down
        else "[alphabetically|in alphabetical order|by the alphabet]"
    )
    pattern = (
        "[Sort|Order|Arrange] "
        f"{'the letters of ' if kind == 1 else '[|the words |these words: ]'}{{x}} {end}[.|]"
    )
    return made_by(
        sorting,
        worded(rng, pattern, x=text),
        separator.join(sorted(items, reverse=down)),
        items,
        down,
    )


def comparing(rng: Random, hard: float) -> Exercise:
    """Find the greatest or the least of some numbers, or say which comes first."""
    numbers = list(
        {a_number(rng, max(hard, 0.3)) for _ in range(up_to(rng, hard, 2, 6))}
        | {a_number(rng, 1, 2)}
    )
    rng.shuffle(numbers)
    text, _ = joined(rng, numbers)
    least = rng.random() < 0.5
    if len(numbers) == 2 and rng.random() < 0.5:
        low, high = numbers
        question = worded(
            rng,
            "Is {a} [less|smaller] than {b}?"
            if least
            else "Is {a} [more|greater|larger] than {b}?",
            a=low,
            b=high,
        )
        return made_by(
            comparing, question, "yes" if (low < high) == least else "no", numbers, least
        )
    which = (
        "[least|smallest|lowest] number" if least else "[greatest|largest|highest|biggest] number"
    )
    pattern = f"[What|Which] is the {which} [of|in|among] {{x}}?"
    return made_by(
        comparing,
        worded(rng, pattern, x=text),
        min(numbers) if least else max(numbers),
        numbers,
        least,
    )


def adding(rng: Random, hard: float) -> Exercise:
    """Add or subtract two numbers."""
    a, b = a_number(rng, hard), a_number(rng, hard)
    if rng.random() < 0.4:
        a, b = max(a, b), min(a, b)
        pattern = (
            "[{a}-{b}|{a} - {b}|{a} minus {b}|Subtract {b} from {a}.|What is {a} - {b}?|Compute "
            "{a}-{b}.|{a} - {b} =|{a}-{b}=?]"
        )
        return made_by(adding, worded(rng, pattern, a=a, b=b), a - b, a, -b)
    pattern = (
        "[{a}+{b}|{a} + {b}|{a} plus {b}|Add {a} and {b}.|What is {a} + {b}?|Compute {a}+{b}.|{a} "
        "+ {b} =|{a}+{b}=?|What is the sum of {a} and {b}?]"
    )
    return made_by(adding, worded(rng, pattern, a=a, b=b), a + b, a, b)


def multiplying(rng: Random, hard: float) -> Exercise:
    """Ask to multiply by one digit, or to divide without a rest."""
    a, b = a_number(rng, hard, 2), rng.randrange(1, 10)
    if rng.random() < 0.3:
        pattern = "[{a}/{b}|{a} / {b}|Divide {a} by {b}.|What is {a} divided by {b}?]"
        return made_by(multiplying, worded(rng, pattern, a=a * b, b=b), a, a * b, 1 / b)
    pattern = (
        "[{a}*{b}|{a} * {b}|{a} times {b}|Multiply {a} by {b}.|What is {a} * {b}?|{a} x {b} =|What "
        "is the product of {a} and {b}?]"
    )
    return made_by(multiplying, worded(rng, pattern, a=a, b=b), a * b, a, b)


def chaining(rng: Random, hard: float) -> Exercise:
    """Ask for a chain of sums and differences, one step at a time."""
    total, text = rng.randrange(1, 10 if hard < 0.4 else 50), ""
    steps, first = [], total
    for _ in range(up_to(rng, hard, 2, 4)):
        b = rng.randrange(1, 10 if hard < 0.6 else 20)
        sign = "-" if b <= total and rng.random() < 0.4 else "+"
        after = total + b if sign == "+" else total - b
        text += f" {sign} {b}"
        steps.append(f"{total}{sign}{b}={after}")
        total = after
    chain = f"{first}{text}"
    if rng.random() < 0.6:
        pattern = "[Work out|Compute|Calculate|What is] {x} step by step[.|, one step a line.]"
        return made_by(
            chaining, worded(rng, pattern, x=chain), "\n".join([*steps, f"#### {total}"]), chain
        )
    return made_by(
        chaining, worded(rng, "[Compute {x}.|What is {x}?|{x} =|{x}]", x=chain), total, chain
    )


def continuing(rng: Random, hard: float) -> Exercise:
    """Continue a row of numbers or letters, or count from one number to another."""
    if rng.random() < 0.4:
        low, count = rng.randrange(30), up_to(rng, hard, 2, 8)
        numbers = list(range(low, low + count))
        if rng.random() < 0.4:
            numbers.reverse()
        pattern = "[Count from {a} to {b}.|Write the numbers from {a} to {b}.]"
        return made_by(
            continuing,
            worded(rng, pattern, a=numbers[0], b=numbers[-1]),
            " ".join(map(str, numbers)),
            numbers,
        )
    if rng.random() < 0.3:
        position = rng.randrange(1, 25)
        step, name = rng.choice(((1, "after"), (-1, "before")))
        question = worded(
            rng,
            "Which letter [comes|is] {n} {c}[ in the alphabet|]?",
            n=name,
            c=ascii_lowercase[position],
        )
        return made_by(
            continuing, question, ascii_lowercase[position + step], ascii_lowercase[position], step
        )
    low, step = rng.randrange(20), rng.choice((1, 2, 3, 5, 10, -1, -2))
    row = [low + 40 * (step < 0) + i * step for i in range(up_to(rng, hard, 4, 6))]
    pattern = "[What comes next: {x}|Continue: {x}|Which number is next in {x}?|Next number: {x}]"
    return made_by(continuing, worded(rng, pattern, x=", ".join(map(str, row[:-1]))), row[-1], row)


def changing_letters(rng: Random, hard: float) -> Exercise:
    """Replace, remove or double letters, or change their case."""
    text = a_word(rng, hard, 3, 10)
    letter, other = rng.choice(text), rng.choice(ascii_lowercase)
    pattern, answer = rng.choice(
        (
            ("Write {x} in [capital letters|capitals|upper case].", text.upper()),
            ("Replace [every|each] {c} [with|by] {d} in {x}.", text.replace(letter, other)),
            (
                "[Remove|Delete|Leave out] [every|each|the letter] {c} [from|in] {x}.",
                text.replace(letter, ""),
            ),
            (
                "[Remove|Delete] the vowels [from|in|of] {x}.",
                "".join(c for c in text if c not in VOWELS),
            ),
            ("[Remove|Delete|Leave out] the first letter of {x}.", text[1:]),
            ("[Remove|Delete|Leave out] the last letter of {x}.", text[:-1]),
            ("[Write|Put] {d} [after|at the end of] {x}.", text + other),
            ("Write each letter of {x} twice.", "".join(c * 2 for c in text)),
        )
    )
    return made_by(
        changing_letters,
        worded(rng, pattern, x=text, c=letter, d=other),
        answer or "nothing",
        text,
        letter,
        other,
    )


def filtering(rng: Random, hard: float) -> Exercise:
    """Keep or leave out some items of a list."""
    numbers = [a_number(rng, hard, 2) for _ in range(up_to(rng, hard, 3, 7))]
    limit = rng.choice(numbers)
    words = {
        "even": [n for n in numbers if n % 2 == 0],
        "odd": [n for n in numbers if n % 2],
        "more": [n for n in numbers if n > limit],
        "less": [n for n in numbers if n < limit],
        "once": list(dict.fromkeys(numbers)),
    }
    rule = rng.choice(list(words))
    text, separator = joined(rng, numbers)
    pattern = {
        "more": "[Keep|Write|List] the numbers [greater|larger|more] than {n}: {x}",
        "less": "[Keep|Write|List] the numbers [less|smaller] than {n}: {x}",
        "once": "[Remove what comes twice|Write each number once]: {x}",
    }.get(rule, f"[Keep|Write|List] the {rule} numbers[ of|:] {{x}}")
    return made_by(
        filtering,
        worded(rng, pattern, n=limit, x=text),
        separator.join(map(str, words[rule])) or "none",
        numbers,
        rule,
        limit,
    )


def deciding(rng: Random, hard: float) -> Exercise:
    """Answer yes or no: membership, evenness, equality, first letters."""
    kind = rng.randrange(4)
    if kind == 0:
        items = some_items(rng, hard, 3, 7)
        item = rng.choice(items) if rng.random() < 0.5 else some_items(rng, hard, 1, 1)[0]
        question = worded(rng, "Is {i} [in|one of|among] {x}?", i=item, x=joined(rng, items)[0])
        return made_by(deciding, question, "yes" if item in items else "no", kind, item, items)
    if kind == 1:
        number, even = a_number(rng, hard), rng.random() < 0.5
        question = worded(rng, f"Is {number} [an|] {'even' if even else 'odd'}[| number]?").replace(
            "  ", " "
        )
        return made_by(
            deciding, question, "yes" if (number % 2 == 0) == even else "no", kind, number, even
        )
    text = a_word(rng, hard, 3, 8)
    if kind == 2:
        letter = rng.choice(text) if rng.random() < 0.5 else rng.choice(ascii_lowercase)
        question = worded(
            rng,
            "[Does {x} [contain|have] the letter {c}?|Is there a {c} in {x}?]",
            x=text,
            c=letter,
        )
        return made_by(deciding, question, "yes" if letter in text else "no", kind, text, letter)
    other = text if rng.random() < 0.5 else text[:-1] + rng.choice(ascii_lowercase)
    question = worded(rng, "[Are {x} and {y} the same?|Is {x} equal to {y}?]", x=text, y=other)
    return made_by(deciding, question, "yes" if text == other else "no", kind, text, other)


def looking_up(rng: Random, hard: float) -> Exercise:
    """Read one value of a small table or of JSON."""
    count = up_to(rng, hard, 2, 4)
    names = rng.sample(NAMES, count)
    columns = rng.sample(("age", "colour", "town", "animal"), up_to(rng, hard, 1, 2))
    value: dict[str, Callable[[], int | str]] = {
        "age": lambda: rng.randrange(1, 90),
        "colour": lambda: rng.choice(COLOURS),
        "town": lambda: rng.choice(PLACES),
        "animal": lambda: rng.choice(THINGS),
    }
    rows = {name: {c: value[c]() for c in columns} for name in names}
    person, what = rng.choice(names), rng.choice(columns)
    form = rng.randrange(3)
    if form == 0:
        table = json.dumps(rows[person])
        question = worded(rng, "[What is the {c}?|Give the {c}.|Read {c}.]\n", c=what) + table
    else:
        lines = [
            ["name", *columns],
            *([name, *map(str, row.values())] for name, row in rows.items()),
        ]
        table = "\n".join((",", " | ")[form - 1].join(line) for line in lines)
        question = worded(
            rng,
            "{t}\n[What is the {c} of {w}?|Give the {c} of {w}.|Which {c} does {w} have?]",
            t=table,
            c=what,
            w=person,
        )
    return made_by(looking_up, question, rows[person][what], rows, person, what)


def writing_json(rng: Random, hard: float) -> Exercise:
    """Write keys and values, or a list, as JSON."""
    if rng.random() < 0.4:
        items = some_items(rng, hard, 2, 5)
        value: Any = [int(i) for i in items] if items[0].isdigit() else items
        question = worded(rng, "Write [|the list ]{x} as [a JSON list|JSON].", x=", ".join(items))
        return made_by(writing_json, question, json.dumps(value), value)
    keys = rng.sample(("name", "age", "colour", "count", "place"), up_to(rng, hard, 1, 3))
    choose = {
        "name": NAMES,
        "age": range(1, 90),
        "colour": COLOURS,
        "count": range(30),
        "place": PLACES,
    }
    value = {key: rng.choice(choose[key]) for key in keys}
    text = rng.choice((", ", "; ")).join(f"{k} {v}" for k, v in value.items())
    return made_by(
        writing_json,
        worded(rng, "Write [|this ]as [JSON|a JSON object]: {x}", x=text),
        json.dumps(value),
        value,
    )


def reading(rng: Random, hard: float) -> Exercise:
    """Answer a question over a short text."""
    count = up_to(rng, hard, 2, 4)
    people, things = rng.sample(NAMES, count), rng.sample(THINGS, count)
    colours, places = rng.sample(COLOURS, count), rng.sample(PLACES, count)
    facts = [*zip(people, colours, things, places, strict=True)]
    text = " ".join(
        worded(rng, "{p} [has|found|bought] a {c} {t} in the {w}.", p=p, c=c, t=t, w=w)
        for p, c, t, w in facts
    )
    p, c, t, w = rng.choice(facts)
    question, answer = rng.choice(
        (
            ("Who has the {t}?", p),
            ("Which colour [is|has] the {t}?", c),
            ("What does {p} have?", t),
            ("Where is the {t}?", w),
            ("Where is {p}?", w),
        )
    )
    question = worded(rng, question, p=p, t=t)
    return made_by(
        reading,
        worded(rng, "[{x} {q}|{x}\n{q}|{q}\n{x}]", x=text, q=question),
        answer,
        facts,
        question,
    )


def following(rng: Random, hard: float) -> Exercise:
    """Follow a thing from hand to hand."""
    people = rng.sample(NAMES, 3)
    thing, holder = rng.choice(THINGS), people[0]
    sentences, moves = [f"{holder} has the {thing}."], [holder]
    for _ in range(up_to(rng, hard, 1, 4)):
        after = rng.choice([p for p in people if p != holder])
        sentences.append(
            worded(rng, "{a} [gives|hands] [it|the {t}] to {b}.", a=holder, b=after, t=thing)
        )
        holder = after
        moves.append(holder)
    question = worded(rng, "[Who has the {t} [now|in the end]?|Who has it?]", t=thing)
    return made_by(following, f"{' '.join(sentences)} {question}", holder, moves)


def telling(rng: Random, hard: float) -> Exercise:
    """Add or subtract in a story."""
    a, b = a_number(rng, max(hard, 0.4), 2), a_number(rng, hard, 2)
    p, q = rng.sample(NAMES, 2)
    t = rng.choice(THINGS)
    if rng.random() < 0.5:
        pattern = (
            "{p} has {a} {t}s[ and|. {p}] [gets|buys|finds] {b} more. How many {t}s does {p} "
            "have[| now]?"
        )
        return made_by(telling, worded(rng, pattern, p=p, a=a, b=b, t=t), a + b, a, b)
    if rng.random() < 0.4:
        pattern = "{p} has {a} {t}s and {q} has {b}. How many do they have together?"
        return made_by(telling, worded(rng, pattern, p=p, q=q, a=a, b=b, t=t), a + b, a, b)
    a, b = max(a, b), min(a, b)
    pattern = (
        "{p} has {a} {t}s[ and|. {p}] [loses|sells|gives away] {b}. How many {t}s [are left|does "
        "{p} have now]?"
    )
    return made_by(telling, worded(rng, pattern, p=p, a=a, b=b, t=t), a - b, a, -b)


def choosing(rng: Random, hard: float) -> Exercise:
    """Choose the option that holds a given thing; the reply is its letter."""
    options = rng.sample(rng.choice((THINGS, COLOURS, PLACES)), up_to(rng, hard, 2, 4))
    right = rng.randrange(len(options))
    listed = rng.choice(("\n", " ")).join(
        f"{letter}) {o}" for letter, o in zip("ABCD", options, strict=False)
    )
    pattern = "[Which option is {o}?|Choose {o}.|Which letter stands before {o}?]\n{x}"
    return made_by(
        choosing,
        worded(rng, pattern, o=options[right], x=listed),
        "ABCD"[right],
        options,
        options[right],
    )


def calling(rng: Random, hard: float) -> Exercise:
    """Call one of the offered tools, or answer from what it returned."""
    text, a, b = a_word(rng, hard, 2, 8), a_number(rng, hard), a_number(rng, hard)
    offers: dict[str, tuple[dict[str, str], str, dict[str, Any], int | str]] = {
        "add": (
            {"a": "integer", "b": "integer"},
            "[What is {a} plus {b}?|Add {a} and {b}.]",
            {"a": a, "b": b},
            a + b,
        ),
        "multiply": (
            {"a": "integer", "b": "integer"},
            "Multiply {a} by {b}.",
            {"a": a, "b": b},
            a * b,
        ),
        "search": (
            {"query": "string"},
            "[Search for|Find|Look up] {x}.",
            {"query": text},
            rng.choice(THINGS),
        ),
        "weather": (
            {"place": "string"},
            "How is the weather in {x}?",
            {"place": text},
            rng.choice(("sun", "rain")),
        ),
    }
    names = rng.sample(list(offers), up_to(rng, hard, 1, 2))
    right = rng.choice(names)
    _, pattern, arguments, result = offers[right]
    question = worded(rng, pattern, a=a, b=b, x=text)
    tools = tuple(
        ToolSpec(
            name=name,
            description=f"{name.capitalize()}.",
            parameters={
                "properties": {
                    key: {"title": key.capitalize(), "type": kind}
                    for key, kind in offers[name][0].items()
                },
                "required": list(offers[name][0]),
                "type": "object",
            },
        )
        for name in names
    )
    call = ToolCall(name=right, arguments=arguments, id="call")
    made = replace(made_by(calling, question, "", right, arguments, result), tools=tools)
    if rng.random() < 0.6:
        return replace(made, call=call)
    before = (
        Message("assistant", "", calls=(call,)),
        Message("tool", str(result), call_id="call", name=right),
    )
    return replace(made, before=before, answer=str(result))


SKILLS: dict[Callable[[Random, float], Exercise], float] = {
    copying: 1.5,
    reversing_letters: 2,
    reversing_lists: 1,
    spelling: 1,
    counting: 1,
    picking: 1,
    sorting: 1.5,
    comparing: 1,
    adding: 2,
    multiplying: 1,
    chaining: 1,
    continuing: 1,
    changing_letters: 1.5,
    filtering: 1,
    deciding: 1,
    looking_up: 1,
    writing_json: 0.7,
    reading: 1,
    following: 0.7,
    telling: 0.7,
    choosing: 0.7,
    calling: 1,
}
"""The skills with their shares of the mixture."""

FORMS = (
    ("[End with|Write|Finish with] #### and the [result|answer].", "#### {}"),
    ("[Put|Write] the answer [in|between] <answer> tags.", "<answer>{}</answer>"),
    ("Put the [final |]answer in \\boxed.", "\\boxed{{{}}}"),
    ('Begin with "Answer:".', "Answer: {}"),
    ("[Say|Write] it in a sentence.", "The answer is {}."),
    ("[Answer with|Give|Write] the [answer|result] [only|alone].", "{}"),
    ("[No explanation.|Be brief.|Only the answer, please.]", "{}"),
)
"""Requests for a form of the answer, and the form."""

SYSTEMS = (
    "You are a helpful assistant.",
    "Be brief.",
    "Answer the question.",
    "Give the answer only.",
)


def exercise(rng: Random, hard: float = 1.0) -> Exercise:
    """Draw a skill, a wording and a form of the answer; difficulty is at most *hard*."""
    (skill,) = rng.choices(list(SKILLS), weights=list(SKILLS.values()))
    made = skill(rng, rng.uniform(0, hard))
    if made.call is None and "####" not in made.answer and rng.random() < 0.35:
        request, form = rng.choice(FORMS)
        request, gap = worded(rng, request), rng.choice((" ", "\n"))
        whole = rng.choice(
            (
                f"{made.question}{gap}{request}",
                f"{made.question}{gap}{request}",
                f"{request}{gap}{made.question}",
            )
        )
        made = replace(made, question=whole, answer=form.format(made.answer))
    return replace(made, system=rng.choice(SYSTEMS)) if rng.random() < 0.15 else made
