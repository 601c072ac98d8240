"""Rewards on the text of the policy's turns: repetition, language, keywords."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby, repeat
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveInt

from quintain import Rollout, Score, reward
from quintain.errors import RewardFault

Part = Literal["reasoning", "reply", "all"]
"""What of a turn is read: the reasoning, the reply without reasoning and tool calls, or the text as
sampled.
"""


def texts(rollout: Rollout[Any, Any], part: Part) -> list[str]:
    """Return that part of each turn of the policy's own player.

    Raises:
        RewardFault: *part* is unknown.
    """
    if part not in get_args(Part):
        raise RewardFault(f"part is {part!r}; expected one of {get_args(Part)}")
    policy_turns = [turn for turn in rollout.turns if not turn.player]
    return [
        {"reasoning": turn.reasoning, "reply": turn.reply, "all": turn.text}[part]
        for turn in policy_turns
    ]


_JOINED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"
"""Thai, Lao, Tibetan, Burmese, Khmer and Tai, which only a dictionary divides into words."""
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters and kana."""
_WORD_LIKE = re.compile(rf"(?P<joined>[{_JOINED}]+)|[{_SINGLE}]|[^\s{_JOINED}{_SINGLE}]+")
LETTERS = 3
"""Letters, with their marks, that stand for a word of Thai: about as many as its words have."""


def words_of(text: str) -> Iterator[str]:
    """Yield the runs without white space of *text*; each Chinese character and each kana alone; and
    of a run of Thai, Lao, Tibetan, Burmese or Khmer each `LETTERS` letters that follow one another.

    >>> list(words_of("so 好的")), len(list(words_of("\u0e44\u0e1b" * 3)))
    (['so', '好', '的'], 4)
    """
    for found in _WORD_LIKE.finditer(text):
        if not found["joined"]:
            yield found[0]
            continue
        letters: list[str] = []
        for character in found["joined"]:
            if letters and unicodedata.category(character)[0] == "M":
                letters[-1] += character
            else:
                letters.append(character)
        for first in range(max(1, len(letters) - LETTERS + 1)):
            yield "".join(letters[first : first + LETTERS])


@reward(range=(-1, 0))
def repetition(rollout: Rollout[Any, Any], *, ngram: PositiveInt = 3, part: Part = "all") -> float:
    """The share of word n-grams that repeat an earlier one of the same turn, negated (Yeo et al.
    2025, arXiv:2502.03373, appendix C.2)::

        distinct / all - 1     over the n-grams of every turn; 0 without any

    Bounds: -1 (never reached) and 0. Words are split at white space, in lower case. A Chinese
    character or a kana is a word. In Thai, Lao, Tibetan, Burmese and Khmer three letters in
    sequence are one, from each letter on. This is the form for a whole answer, as in the authors'
    code and in open-r1, whose n is 3. The paper also punishes each repeated token, with n = 40; a
    shaping reward has no values for single tokens.

    Args:
        ngram: words of an n-gram. Common phrases repeat where it is small.
        part: what is read: ``reasoning``, ``reply``, or ``all`` that was sampled.

    Raises:
        RewardFault: *ngram* is not above 0.
    """
    if ngram < 1:
        raise RewardFault(f"repetition: ngram is {ngram!r}; expected a number of words above 0")
    distinct = total = 0
    for text in texts(rollout, part):
        words = list(words_of(text.lower()))
        ngrams = [tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)]
        distinct, total = distinct + len(set(ngrams)), total + len(ngrams)
    return distinct / total - 1 if total else 0.0


Script = Literal[
    "latin",
    "han",
    "japanese",
    "korean",
    "cyrillic",
    "greek",
    "arabic",
    "hebrew",
    "devanagari",
    "thai",
]
"""A writing system; ``japanese`` is Chinese characters with kana, as ISO 15924's Jpan."""

_OF_CHARACTER = {
    "LATIN": "latin",
    "CJK": "han",
    "IDEOGRAPHIC": "han",
    "HIRAGANA": "kana",
    "KATAKANA": "kana",
    "KATAKANA-HIRAGANA": "kana",
    "HANGUL": "korean",
    "CYRILLIC": "cyrillic",
    "GREEK": "greek",
    "ARABIC": "arabic",
    "HEBREW": "hebrew",
    "DEVANAGARI": "devanagari",
    "THAI": "thai",
}
"""First word of a character's Unicode name to its script."""
_WITHOUT_SPACES = {"han", "kana", "thai"}
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")


@reward(range=(0, 1))
def language_consistency(
    rollout: Rollout[Any, Any], *, script: Script, part: Part = "reasoning"
) -> Score:
    """The share of words in the target language (DeepSeek-R1, arXiv:2501.12948, section 2.3.2)::

        words in the target script / words

    Bounds: 0 and 1. Without words it is 0: a policy that stops reasoning gains nothing. The paper does not say how
    it finds a word's language. Here it is the script, which separates English from Chinese, R1's
    case, but not English from French. A word is a run of letters of one script; a Chinese
    character, a kana or a Thai letter is a word. Numbers, symbols, LaTeX commands and single Latin
    or Greek letters (variables) are no words; code is Latin.

    Args:
        script: of the target language.
        part: what is read: ``reasoning``, ``reply``, or ``all`` that was sampled.

    Raises:
        RewardFault: *script* is unknown.
    """
    if script not in get_args(Script):
        raise RewardFault(
            f"language_consistency: script is {script!r}; expected one of {get_args(Script)}"
        )
    accepted = {"han", "kana"} if script == "japanese" else {script}
    scripts_used: list[str] = []
    for text in texts(rollout, part):
        scripts_used.extend(scripts(text))
    if not scripts_used:
        return Score(value=0.0, reason=f"no words in: {part}")
    return Score(value=sum(one in accepted for one in scripts_used) / len(scripts_used))


def scripts(text: str) -> Iterator[str]:
    """Yield the script of each word of *text*; empty for letters of a script that has no name
    here.
    """
    letters = map(_script, unicodedata.normalize("NFKC", _LATEX_COMMAND.sub(" ", text)))
    for script, run in groupby(letter for letter in letters if letter != _PART_OF_A_WORD):
        length = sum(1 for _ in run)
        if script in _WITHOUT_SPACES:
            yield from repeat(script, length)
        elif script != _NO_LETTER and (length > 1 or script not in ("latin", "greek")):
            yield script


_NO_LETTER, _PART_OF_A_WORD = "no letter", "part of a word"


@lru_cache(maxsize=8192)
def _script(char: str) -> str:
    category = unicodedata.category(char)
    if category[0] == "M" or category == "Cf":  # accents, vowel signs, joiners
        return _PART_OF_A_WORD
    if category[0] != "L":
        return _NO_LETTER
    return _OF_CHARACTER.get(unicodedata.name(char, "").partition(" ")[0], "")


@reward(range=(0, 1))
def keyword(
    rollout: Rollout[Any, Any],
    *,
    words: Annotated[tuple[str, ...], Field(min_length=1)],
    needed: PositiveInt | None = None,
    part: Part = "reply",
    whole_words: bool = True,
    match_case: bool = False,
) -> Score:
    """The share of the wanted keywords that appear::

        min(1, different keywords that appear / needed)

    Bounds: 0 and 1. A keyword counts once, so repeating it gains nothing; a negative weight forbids
    the keywords. Source: `reasoning_steps_reward` of open-r1, min(1, count / 3), which counts every
    occurrence.

    Args:
        words: the keywords or phrases.
        needed: different keywords for the value 1; by default all.
        part: what is read: ``reasoning``, ``reply``, or ``all`` that was sampled.
        whole_words: a keyword inside a longer word does not count. Turn it off for text without
            spaces.
        match_case: upper and lower case differ.

    Raises:
        RewardFault: *words* is empty, repeats a keyword or has an empty one, or has fewer than
            *needed*.
    """
    wanted = {word if match_case else word.lower() for word in words}
    enough = len(wanted) if needed is None else needed
    if not wanted or "" in wanted or len(wanted) < len(words):
        raise RewardFault(f"keyword: words are {words!r}; expected different, non-empty texts")
    if not 1 <= enough <= len(wanted):
        raise RewardFault(
            f"keyword: needed is {needed!r}; expected 1 to {len(wanted)}, the number of words"
        )
    text = "\n".join(texts(rollout, part))
    text = text if match_case else text.lower()
    edges = (r"(?<!\w)", r"(?!\w)") if whole_words else ("", "")
    absent = sorted(word for word in wanted if not re.search(re.escape(word).join(edges), text))
    reason = f"absent: {', '.join(absent)}" if len(wanted) - len(absent) < enough else ""
    return Score(value=min(1.0, (len(wanted) - len(absent)) / enough), reason=reason)
