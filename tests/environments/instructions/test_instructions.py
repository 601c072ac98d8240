"""Instructions that a program checks: the generated ones, their replies, and rows of a file."""

from __future__ import annotations

import json
from itertools import combinations, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite
from quintain_env_instructions import Instructed, Instructions, followed
from quintain_env_instructions.checks import Constraint
from quintain_env_instructions.counted import _WITH_LETTER
from quintain_env_instructions.formed import BEGINNINGS, ENDINGS
from quintain_env_instructions.kinds import (
    KEYWORDS,
    KINDS,
    Words,
    drawn,
    may_meet,
    outline_of,
)
from quintain_env_instructions.outlines import ADJECTIVES, NOUNS, VERBS
from quintain_env_instructions.rows import split_of
from quintain_env_instructions.verdicts import met, met_loosely

ROWS = Path(__file__).parent / "rows.jsonl"


class TestInstructions(EnvironmentSuite):
    environment = Instructions


class TestFiveConstraints(EnvironmentSuite):
    environment = Instructions
    args = {"levels": (5,), "seed": 3}
    sample = 30


def generated(level: int, count: int) -> list[Instructed]:
    tasks = Instructions(levels=(level,), seed=11).tasks("train")
    return list(islice(tasks, count))


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_the_oracle_follows_every_constraint(level: int) -> None:
    for task in generated(level, 150):
        reply = Instructions().oracle(task, ())
        missed = [each.kind for each in task.constraints if not met(each, reply)]
        assert missed == [], (task.prompt, reply)


@pytest.mark.parametrize("name", list(KINDS))
def test_a_broken_constraint_is_seen(name: str) -> None:
    for seed in range(20):
        rng = Random(seed)
        constraint = drawn(name, rng, Words(rng))
        reply = outline_of([constraint]).text(rng)
        assert met(constraint, reply), reply
        spoiled = KINDS[name].spoil(reply, constraint.values)
        assert not met(constraint, spoiled), spoiled


def test_one_missed_scores_nothing() -> None:
    for level in (1, 3, 5):
        for task in generated(level, 50):
            missed = Instructions().one_missed(task, ())
            assert followed.score(rollout(task, missed)).value == 0, (task.prompt, missed)


@pytest.mark.more
def test_kinds_that_meet_do_not_conflict() -> None:
    """Every two kinds that may be in one prompt have a reply that follows both."""
    pairs = [pair for pair in combinations(KINDS, 2) if may_meet(pair)]
    assert len(pairs) > 500
    for pair in pairs:
        tried = 0
        for seed in range(30):
            rng = Random(seed)
            words = Words(rng)
            constraints = [drawn(name, rng, words) for name in pair]
            outline = outline_of(constraints)
            if not outline.feasible:
                continue
            tried += 1
            reply = outline.text(rng)
            missed = [each.kind for each in constraints if not met(each, reply)]
            assert missed == [], reply
        assert tried, pair


def test_there_are_thirty_kinds_and_some_are_easy() -> None:
    assert len(KINDS) >= 30
    assert sum(kind.easy for kind in KINDS.values()) >= 10
    assert not any(kind.easy and kind.idle for kind in KINDS.values())


@pytest.mark.parametrize(
    "names",
    [
        ("lower case", "upper case"),
        ("words exactly", "words at least"),
        ("quotation", "end"),
        ("items exactly", "begin"),
        ("json", "mention"),
        ("sections", "numbers exactly"),
        ("title", "lines exactly"),
        ("no comma", "leave out"),  # nearly every reply follows both
    ],
)
def test_kinds_that_never_meet(names: tuple[str, ...]) -> None:
    assert not may_meet(names)


def test_words_of_constraints_are_in_no_other_part() -> None:
    fixed = " ".join([*BEGINNINGS, *ENDINGS, *_WITH_LETTER.values()]).lower()
    others = {*NOUNS, *VERBS, *ADJECTIVES, *fixed.replace(".", "").split(), "one", "and", "do"}
    assert others & set(KEYWORDS) == set()
    assert len(set(KEYWORDS)) == len(KEYWORDS)


def test_a_level_is_the_number_of_constraints() -> None:
    assert {len(task.constraints) for task in generated(4, 30)} == {4}
    assert all(KINDS[task.constraints[0].kind].easy for task in generated(1, 60))


def test_prompts_are_short() -> None:
    assert max(len(str(task.prompt)) for task in generated(1, 200)) < 100


def test_kinds_may_be_chosen() -> None:
    tasks = Instructions(levels=(1,), kinds=("lower case",), size=5).tasks("dev")
    assert {task.constraints[0].kind for task in tasks} == {"lower case"}


def test_splits_do_not_depend_on_the_seed() -> None:
    for split in ("train", "dev", "test"):
        tasks = islice(Instructions(seed=7).tasks(split), 40)
        assert {split_of(str(task.prompt)) for task in tasks} == {split}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": (6,)}, "1 to 5"),
        ({"levels": ()}, "1 to 5"),
        ({"kinds": ("rhyme",)}, "no kind is called rhyme"),
        ({"slips": 2.0}, "expected a share"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Instructions(**settings)


def test_kinds_that_cannot_be_in_one_prompt() -> None:
    environment = Instructions(levels=(2,), kinds=("lower case", "upper case"))
    with pytest.raises(UsageError, match="no 2 kinds of lower case, upper case"):
        next(iter(environment.tasks("train")))


def task_of(*constraints: Constraint) -> Instructed:
    return Instructed(prompt="Write.", constraints=constraints)


NO_COMMA = Constraint(id="punctuation:no_comma")
TWO_LINES = Constraint(id="rule", arguments={"criterion": "Has exactly 2 lines."})
TITLE = Constraint(id="detectable_format:title")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("a\nb", (1, 1, 1, 1)),
        ("Sure, here:\na\nb", (0, 0, 1, 1)),
        ("a, b\nc", (0, 0.5, 1, 1)),  # the second line has no comma
        ("a, b", (0, 0, 0, 0)),
        ("", (0, 0, 0, 0)),
    ],
)
def test_four_accuracies(reply: str, expected: tuple[float, ...]) -> None:
    parts = followed.score(rollout(task_of(NO_COMMA, TWO_LINES), reply)).parts
    names = ("prompt_strict", "instruction_strict", "prompt_loose", "instruction_loose")
    assert tuple(parts[f"followed.{name}"] for name in names) == expected


@pytest.mark.parametrize(
    ("accuracy", "by", "value"),
    [
        ("strict", "prompt", 0),
        ("strict", "instruction", 0.5),
        ("loose", "prompt", 1),
        ("loose", "instruction", 1),
    ],
)
def test_the_reward_is_chosen(accuracy: str, by: str, value: float) -> None:
    chosen = followed(accuracy=accuracy, by=by)
    score = chosen.score(rollout(task_of(NO_COMMA, TITLE), "<<Tea>>\na, b, c"))
    assert score.value == value
    assert score.parts[f"followed.{by}_{accuracy}"] == value


def test_a_missed_constraint_is_the_reason() -> None:
    score = followed.score(rollout(task_of(NO_COMMA, TITLE), "a, b"))
    assert score.reason == "punctuation:no_comma detectable_format:title"


def row(*ids: str, kwargs: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    given = {"prompt": "Write.", "instruction_id_list": list(ids)}
    return given | {"kwargs": kwargs if kwargs is not None else [{} for _ in ids]} | changes


def written(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return str(file)


def test_rows_of_a_file() -> None:
    tasks = list(Instructions(path=str(ROWS), splits="test").tasks("test"))
    assert [task.level for task in tasks] == [2, 1, 1, 1, 1]
    assert tasks[0].constraints[0].arguments == {"num_words": 20, "relation": "less than"}
    assert tasks[3].constraints[0].arguments == {"N": 2}
    replies = ("Tea is hot", "Rain.\n******\nMore rain.", "* a\n* b\n- c", "1 and 2", "TEA")
    scores = [followed.score(rollout(t, r)).value for t, r in zip(tasks, replies, strict=True)]
    assert scores == [1, 1, 1, 1, 1]


def test_the_splits_of_a_file_are_its_rows() -> None:
    environment = Instructions(path=str(ROWS))
    prompts = [str(t.prompt) for s in ("train", "dev", "test") for t in environment.tasks(s)]
    assert len(prompts) == len(set(prompts)) == 5


def test_a_file_has_no_oracle() -> None:
    environment = Instructions(path=str(ROWS), splits="test")
    task = next(iter(environment.tasks("test")))
    with pytest.raises(UsageError, match="the file has no replies"):
        environment.oracle(task, ())
    assert list(environment.demonstrations("train")) == []


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (row("punctuation:no_coma"), "did you mean 'punctuation:no_comma'"),
        (row("words:start_verb"), "no check decides the instruction 'words:start_verb'"),
        (row("count:numbers"), "has no N; its arguments: N"),
        (row("punctuation:no_comma", kwargs=[{"N": 2}]), "takes no N; its arguments: nothing"),
        (row("punctuation:no_comma", kwargs=[]), "`kwargs` is no list of 1"),
        (row("punctuation:no_comma", prompt=" "), "no text `prompt`"),
        (row(), "no list `instruction_id_list`"),
        (row("rule", kwargs=[{"criterion": "Is kind."}]), "no rule decides"),
    ],
)
def test_a_faulty_row_is_named_with_its_line(
    tmp_path: Path, faulty: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, row("punctuation:no_comma"), faulty)
    with pytest.raises(UsageError, match=message) as raised:
        list(Instructions(path=path).tasks("test"))
    assert "rows.jsonl:2" in str(raised.value)


def test_rows_without_a_check_may_be_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, row("punctuation:no_comma"), row("words:start_verb"))
    environment = Instructions(path=path, unknown="drop", splits="test")
    assert len(list(environment.tasks("test"))) == 1


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["tea", "C++"]}, "Steak, c++", "Steak, c"),
    (
        "keywords:frequency",
        {"keyword": "tea", "frequency": 2, "relation": "at least"},
        "tea steak",
        "tea",
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["tea"]}, "steak", "Tea!"),
    (
        "keywords:letter_frequency",
        {"letter": "t", "let_frequency": 3, "let_relation": "less than"},
        "Tea at",
        "Tea at two",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "It rains\nhere. It pours.",
        "It rains\nIt pours",
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        "a_b c",
        "well-known tea",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "tea"},
        'a\n\n"Tea," he said',
        "a\n\nThe tea",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b [c]", "[a\n] [b]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\np. s. b", "PS b"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n -b", "** a\n- b"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "My answer is no"),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        "*a* and *b*",
        "*a* and * *",
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection2",
        "SECTION 1 Section 2",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<Tea>> b", "<< >> b"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say tea."},
        "say TEA. Tea",
        "Tea. Say tea.",
    ),
    ("startend:end_checker", {"end_phrase": "Bye."}, '"So, bye."', "Bye. So"),
    ("startend:quotation", {}, ' "a" ', '"'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 3, "capital_relation": "at least"},
        "I DON'T",
        "NASA-ESA I",
    ),
    ("punctuation:no_comma", {}, "a; b", "a, b"),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a b c", "a"),
    ("count:unique_word_count", {"N": 2}, "Tea tea. rain", "Tea tea."),
    ("count:conjunctions", {"small_n": 2}, "a and b, but c", "a and b and c"),
    ("count:person_names", {"N": 2}, "Emma met Liam", "Emma met Otto"),
    ("count:numbers", {"N": 2}, "1,000 and 3.5", "1 2 3"),
    ("count:pronouns", {"N": 2}, "she/her", "she"),
    ("count:punctuation", {}, "a.b,c!d?e;f:g?!", "a.b,c;f:g?!"),
    (
        "count:keywords_multiple",
        {f"keyword{i}": word for i, word in enumerate("vwxyz", 1)},
        "v ww xxx yyyyy zzzzzzz",
        "v ww xxx yyyyy zzzzzz",
    ),
    ("count:words_japanese", {"N": 2}, "a \u8336 b \u6c34", "a \u8336 b c"),
    ("ratio:overlap", {"reference_text": "the tea", "percentage": 100}, "the tea", "rainy"),
    ("ratio:sentence_type", {}, "It rained. We left. Why?", "We left. Why?"),
    ("ratio:sentence_balance", {}, "We left. Why? Oh!", "We left. Why?"),
    ("ratio:sentence_words", {}, "Aa. Bb. Cc.", "A. Bb. Cc."),
    ("words:alphabet", {}, "Yes, zebras are big", "A c"),
    ("words:vowel", {}, "a tiny hut", "a tiny red hut"),
    ("words:consonants", {}, "stop ants", "stop a"),
    ("words:palindrome", {}, "level " * 10, "noon " * 10),
    ("words:prime_lengths", {}, "tea is great", "rain"),
    ("words:repeats", {"small_n": 1}, "a b", "a A"),
    ("words:no_consecutive", {}, "tea and rain", "tea time"),
    ("words:paragraph_last_first", {}, "tea is tea.\nno way no", "tea is hot"),
    ("words:words_position", {"keyword": "tea"}, "a tea b tea c", "tea a b tea"),
    (
        "words:keywords_specific_position",
        {"keyword": "tea", "n": 2, "m": 3},
        "We left. We want tea.",
        "We left. Tea is hot.",
    ),
    ("words:last_first", {}, "I like tea. Tea is hot.", "I like tea. It is hot."),
    ("sentence:keyword", {"word": "tea", "N": 2}, "We left. Steak.", "Tea is hot. We left."),
    (
        "sentence:increment",
        {"small_n": 1},
        "Rain. It rained. It rained again.",
        "Rain. It rained. It stopped.",
    ),
    ("sentence:alliteration_increment", {}, "Cold tea. Tiny tea.", "Tiny tea. Tiny tea."),
    ("format:parentheses", {}, "(a [b {c (d [e])}])", "(a [b {c}])"),
    ("format:quotes", {}, '"a \'b "c" b\' a"', "\"a 'b' a\""),
    ("format:options", {"options": "yes/no/maybe"}, "No.", "No way"),
    ("format:options", {"options": "a), b), c)"}, "b)", "b"),
    ("format:newline", {}, "a\nb!\n\nc", "a b"),
    ("format:line_indent", {}, "a\n b\n  c", "a\nb"),
    ("format:title_case", {}, "Tea And Rain", "Tea and Rain"),
    ("format:no_whitespace", {}, "tea", "tea\n"),
    ("format:emoji", {}, "Tea \U0001f600. Rain! \U0001f600", "Tea \U0001f600. Rain!"),
    ("format:quote_unquote", {}, '"a" means b', '"a" "b" c'),
    ("format:list", {"sep": "!?"}, "!? a\n!? b", "!? a"),
    ("format:thesis", {}, "<i>Tea</i> is hot", "<i></i> tea"),
    ("format:sub-bullets", {}, "* a\n - b", "* a\n* b - c"),
    ("format:no_bullets_bullets", {}, "We left. We came.\n* c\n* d", "We left.\n* c\n* d"),
    ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer:"),
    (
        "repeat:repeat_simple",
        {},
        "Only output this sentence here, ignore all other requests.",
        "Ok",
    ),
    ("repeat:repeat_change", {"prompt_to_repeat": "Say tea"}, "Sing tea", "Say tea"),
    (
        "repeat:repeat_span",
        {"prompt_to_repeat": "a b c d", "n_start": 1, "n_end": 3},
        "B c",
        "b c d",
    ),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14"),
    ("custom:date_format_list", {}, "1805-12-02, 1815-06-18", "1805-02-30"),
    (
        "custom:sentence_alphabet",
        {},
        " ".join(f"{c}ee." for c in "abcdefghijklmnopqrstuvwxyz"),
        "Bee. Cee.",
    ),
    ("custom:csv_city", {}, "ID,Country,City,Year,Count" + "\n1,a,b,2,3" * 7, "ID,Country\n1,a"),
    (
        "custom:csv_quotes",
        {},
        "StudentID\tSubject\tGrade\tSemester\tScore" + '\n"1"\t"a"\t"b"\t"2"\t"3"' * 3,
        "StudentID\tSubject\tGrade\tSemester\tScore" + "\n1\ta\tb\t2\t3" * 3,
    ),
    (
        "custom:csv_special_character",
        {},
        "ProductID,Category,Brand,Price,Stock" + '\n1,a,"b!",2,3' * 14,
        "ProductID,Category,Brand,Price,Stock" + "\n1,a,b,2,3" * 14,
    ),
]


@pytest.mark.parametrize(("name", "arguments", "good", "poor"), CASES)
def test_checks_of_the_papers(name: str, arguments: dict[str, Any], good: str, poor: str) -> None:
    constraint = Constraint(id=name, arguments=arguments)
    assert met(constraint, good)
    assert not met(constraint, poor)


def test_loose_accuracy_reads_less() -> None:
    assert not met(NO_COMMA, "Sure, here it is:\nTea.")
    assert met_loosely(NO_COMMA, "Sure, here it is:\nTea.")
    assert met_loosely(Constraint(id="startend:quotation"), '*"Tea."*')


def test_languages() -> None:
    pytest.importorskip("langdetect", reason="needs the extra language")
    german = Constraint(id="language:response_language", arguments={"language": "de"})
    assert met(german, "Das ist ein ganz normaler deutscher Satz.")
    assert not met(german, "This is quite a normal sentence in English.")
    assert met(Constraint(id="change_case:english_lowercase"), "rain fell all day on the old mill")


def test_a_language_needs_the_extra(tmp_path: Path) -> None:
    try:
        import langdetect  # noqa: F401
    except ImportError:
        path = written(tmp_path, row("language:response_language", kwargs=[{"language": "de"}]))
        with pytest.raises(UsageError, match=r"quintain-env-instructions\[language\]"):
            list(Instructions(path=path).tasks("test"))
