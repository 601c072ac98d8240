"""Rewards on text: repetition, language, keywords, boxes; any text stays in the bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Rollout, Task, Turn
from quintain.errors import BindingError, RewardFault
from quintain.registry.binding import bind
from quintain.testing import rollout
from quintain_authoring import RewardSuite
from quintain_rewards.shaping import boxed, keyword, language_consistency, repetition
from quintain_rewards.shaping.text import scripts

TASK = Task(prompt="?", answer="4")
ANY_TEXT = st.text() | st.lists(
    st.sampled_from(
        [
            "a",
            " ",
            "wait ",
            "so ",
            "你",
            "好",
            "カ",
            "\\boxed{",
            "}",
            "\\{",
            "\n",
            "é",
            "\u0301",
            "的 x ",
        ]
    )
).map("".join)


def thought(*reasoning: str) -> Rollout[Any, Any]:
    """A rollout with one turn for each text of *reasoning*."""
    return rollout(TASK, *(f"<think>{text}</think>4" for text in reasoning))


class TestBoxed(RewardSuite):
    reward = boxed

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, "so \\boxed{4}."), 1),
            (rollout(TASK, "\\boxed{\\frac{1}{2}}"), 1),
            (rollout(TASK, "\\boxed{\\{1, 2\\}}"), 1),
            (rollout(TASK, "\\boxed{\\}}"), 1),
            (rollout(TASK, "<think>\\boxed{5}? no</think>\\boxed{4}"), 1),
            (rollout(TASK, "wait", "\\boxed{4}"), 1),
            (rollout(TASK), 0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        said = (
            "",
            "4",
            "\\boxed 4",
            "\\boxed{}",
            "\\boxed{ \n}",
            "\\boxed{{}}",
            "\\boxed{\\,}",
            "\\boxed{\\text{ }\\quad}",
            "\\boxed{4",
            "\\boxed{{4}",
            "\\boxed{4\\}",
            "\\boxed{4} or \\boxed{5}",
            "\\boxed{4 \\boxed{5}}",
            "<think>\\boxed{4}</think>four",
            "\\boxed{" * 1000,
        )
        return [rollout(TASK, text) for text in said]


class TestRepetition(RewardSuite):
    reward = repetition(ngram=2)
    lowest = -0.5

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, "this is a test"), 0),
            (rollout(TASK, "this this this this this"), -0.75),  # 1 of 4 bigrams is distinct
            (rollout(TASK, "this is a this is a test"), -2 / 6),
            (rollout(TASK, "one"), 0),
            (rollout(TASK), 0),
            (rollout(TASK, "a b", "a b"), 0),  # within a turn only
            (rollout(TASK, "a a a", "a b c"), -1 / 4),
            (rollout(TASK, "好的好的"), -1 / 3),
            (rollout(TASK, "<think> a a a </think> 4"), -1 / 5),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [
            rollout(TASK, "so " * 100),
            rollout(TASK, "So so " * 100),
            rollout(TASK, "= " * 100),
        ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม", "ไป"),
        ("ມະນຸດເກີດມາມີສິດເສລີພາບ ແລະສະເໝີໜ້າກັນໃນທາງກຽດຕິສັກ", "ໄປ"),
        ("មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងសមភាពក្នុងសេចក្តីថ្លៃថ្នូរនិងសិទ្ធិ", "ទៅ"),
        ("လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသူများဖြစ်သည်", "သွား"),
        ("འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང་", "ཡིན་"),
        (
            "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
            "好的",
        ),
        (
            "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
            "はい",
        ),
        ("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.", "네 "),
    ],
    ids=["thai", "lao", "khmer", "burmese", "tibetan", "chinese", "japanese", "korean"],
)
def test_languages_without_spaces_repeat_as_others_do(text: str, word: str) -> None:
    """A letter of Thai as a word took a tenth from honest text: it has few letters."""
    assert repetition.score(rollout(TASK, text)).total > -0.05
    assert repetition.score(rollout(TASK, word * 12)).total < -0.5
    assert repetition.score(rollout(TASK, text * 2)).total < -0.3


class TestLanguageConsistency(RewardSuite):
    reward = language_consistency(script="han")

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (thought("我们先算二加二"), 1),
            (thought("我们 first 算"), 3 / 4),
            (
                thought("设 x = 2, \\frac{x}{y} 得 4"),
                1,
            ),  # variables and LaTeX commands are no words
            (thought("我", "so"), 1 / 2),
            (thought("我り"), 1 / 2),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        """No reasoning, no words, the reply in the language instead of the reasoning."""
        said = (
            "你好",
            "<think></think>你好",
            "<think>1 + 1 = 2, x</think>你好",
            "<think>first we add</think>你好",
        )
        return [rollout(TASK, text) for text in said]


class TestKeyword(RewardSuite):
    reward = keyword(words=("Because", "therefore", "step by step"), needed=2)

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (rollout(TASK, "because it is"), 0.5),
            (rollout(TASK, "BECAUSE, therefore"), 1),
            (rollout(TASK, "step by step, because, therefore"), 1),
            (rollout(TASK, "because", "therefore"), 1),
            (rollout(TASK, "because " * 100), 0.5),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        said = ("", "stepwise", "becauses thereforex", "<think>because therefore</think>4")
        return [rollout(TASK, text) for text in said]


def test_keyword_settings() -> None:
    """By default all keywords are needed; other parts, parts of words and case are settings."""
    said = rollout(TASK, "<think>Aha, wait</think>awaiting")
    assert keyword(words=("wait", "aha"), part="all").score(said).total == 1
    assert keyword(words=("wait", "hm"), part="reasoning").score(said).total == 0.5
    assert keyword(words=("wait", "hm"), part="reasoning").score(said).reason == "absent: hm"
    assert keyword(words=("wait",)).score(said).total == 0
    assert keyword(words=("wait",), whole_words=False).score(said).total == 1
    assert keyword(words=("aha",), part="reasoning", match_case=True).score(said).total == 0
    assert keyword(words=("C++", "(a|b"), needed=1).score(rollout(TASK, "use C++!")).total == 1


def test_other_players_are_not_read() -> None:
    """Each reward reads the turns of the policy's own player."""
    other = Turn(
        text="so so so so", reply="so because \\boxed{4}", reasoning="hello there", player="user"
    )
    said = thought("我").replace(turns=(*thought("我").turns, other))
    assert repetition(ngram=1).score(said).total == 0
    assert language_consistency(script="han").score(said).total == 1
    assert keyword(words=("because",)).score(said).total == 0
    assert boxed.score(said).total == 0


def test_words_of_several_scripts() -> None:
    """A word is a run of letters of one script; characters of scripts without spaces stand
    alone.
    """
    assert list(scripts("Wörter, дом λόγος בית")) == ["latin", "cyrillic", "greek", "hebrew"]
    assert (
        list(scripts("नमस्ते दुनिया مرحبا 한국어 문장"))
        == ["devanagari"] * 2 + ["arabic"] + ["korean"] * 2
    )
    assert list(scripts("GPU的カ")) == ["latin", "han", "kana"]
    assert list(scripts("สวัส")) == ["thai"] * 3  # a vowel sign belongs to its letter
    # other forms of the same letters
    assert list(scripts("\uff21\uff42\uff43 \ufb01ne")) == ["latin"] * 2
    assert list(scripts("x \u03c0 a\u0304 \\alpha 12 + \u0301")) == []
    assert list(scripts("я")) == ["cyrillic"]
    assert list(scripts("\U000103a0\U000103a1")) == [""]  # Old Persian, of no target language


def test_long_texts_and_ngrams_take_no_time() -> None:
    """A megabyte of text costs well under the time limit of a reward; an n-gram longer than any
    text costs nothing.
    """
    said = rollout(TASK, "<think>" + "so 好 " * 100_000 + "</think>4")
    started = time.perf_counter()
    assert repetition.score(said).total < -0.99
    assert repetition(ngram=10**12).score(said).total == 0
    assert language_consistency(script="latin").score(said).total == 0.5
    assert keyword(words=("because",), part="all").score(said).total == 0
    assert boxed.score(rollout(TASK, "\\boxed{" + "{}" * 100_000)).total == 0
    assert time.perf_counter() - started < 20


def test_japanese_is_characters_and_kana() -> None:
    assert language_consistency(script="japanese").score(thought("日本語のテスト")).total == 1
    assert language_consistency(script="han").score(thought("日本語のテスト")).total == 3 / 7
    assert (
        language_consistency(script="latin", part="reply").score(rollout(TASK, "so 四")).total
        == 1 / 2
    )


@given(ANY_TEXT, st.integers(1, 5), st.sampled_from(["reasoning", "reply", "all"]))
def test_any_text_stays_in_the_bounds(text: str, ngram: int, part: Any) -> None:
    """Scores are checked against the declared range, so a score outside would raise."""
    said = rollout(TASK, text, f"<think>{text}</think>")
    assert -1 < repetition(ngram=ngram, part=part).score(said).total <= 0
    assert 0 <= language_consistency(script="han", part=part).score(said).total <= 1
    assert 0 <= keyword(words=("so", "wait"), part=part).score(said).total <= 1
    assert boxed.score(said).total in (0, 1)


@given(ANY_TEXT, st.integers(2, 4))
def test_saying_it_again_never_pays(text: str, times: int) -> None:
    """A text said several times repeats at least as large a share of its n-grams."""
    once, again = (rollout(TASK, f"{text} " * n) for n in (1, times))
    assert repetition(ngram=1).score(again).total <= repetition(ngram=1).score(once).total


@given(st.text(alphabet=st.characters(exclude_characters="\\{}~$")))
def test_any_plain_text_fits_in_a_box(inside: str) -> None:
    """As long as it is not blank and holds no tag that ends the reply."""
    if "<" not in inside:
        assert boxed.score(rollout(TASK, f"\\boxed{{{inside}}}")).total == float(
            bool(inside.strip())
        )


@pytest.mark.parametrize(
    ("of", "args", "message"),
    [
        (repetition, {"ngram": 0}, "ngram is 0"),
        (keyword, {"words": ("a",), "needed": 0}, "needed is 0"),
    ],
)
def test_arguments_are_refused_before_a_run_and_in_python(
    of: Any, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(BindingError, match=message):
        bind(of, args, who="reward")
    with pytest.raises(RewardFault, match=f"{of.name}: {message}"):
        of(**args).score(rollout(TASK, "a"))


def test_no_keywords_are_refused_before_a_run() -> None:
    with pytest.raises(
        BindingError,
        match=r"words is \[\]; expected tuple\[str, \.\.\.\] \(tuple should have at least 1",
    ):
        bind(keyword, {"words": []}, who="reward")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"words": ()}, "expected different, non-empty texts"),
        ({"words": ("a", "")}, "expected different, non-empty texts"),
        ({"words": ("a", "A")}, "expected different, non-empty texts"),
        ({"words": ("a", "b"), "needed": 3}, "needed is 3; expected 1 to 2"),
    ],
)
def test_keywords_are_checked(args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardFault, match=message):
        keyword(**args).score(rollout(TASK, "a"))


def test_scripts_and_parts_are_checked() -> None:
    """A recipe is refused when it is read; Python code gets a failure, not the score 0."""
    for of, args in ((language_consistency, {"script": "french"}), (repetition, {"part": "text"})):
        key, name = list(args.items())[-1]
        with pytest.raises(BindingError, match=f"{key} is '{name}'; expected Literal"):
            bind(of, args, who="reward")
        with pytest.raises(RewardFault, match=f"{key} is '{name}'; expected one of "):
            of(**args).score(rollout(TASK, "a"))
    with pytest.raises(BindingError, match="needs the argument 'script'"):
        bind(language_consistency, {}, who="reward")
