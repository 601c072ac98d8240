"""Instructions of IFBench (Pyatkin et al. 2025, arXiv:2507.02833) about the form of a whole reply:
words, ratios, quotes, lists.

They count as its reference implementation counts, with the division into sentences of
`reference_sentences`. Those that need a part-of-speech tagger or a dictionary of syllables
(``words:start_verb``, ``words:odd_even_syllables``), and the few about one single prompt each
(``custom:...``) that need a list of the world's facts, are not here: rows with them are named.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import regex

from .checks import decides
from .english import PUNCTUATION, plain_words

_EDGE = PUNCTUATION + " "


@decides("count:word_count_range")
def word_count_range(reply: str, *, min_words: int, max_words: int) -> bool:
    r"""The number of runs of ``\w`` is in the range."""
    return min_words <= len(re.findall(r"\w+", reply)) <= max_words


@decides("count:unique_word_count")
def unique_word_count(reply: str, *, N: int) -> bool:
    """There are at least *N* different words."""
    return len({word.strip(_EDGE) for word in reply.lower().split()}) >= N


@decides("count:conjunctions")
def conjunctions(reply: str, *, small_n: int) -> bool:
    """There are at least so many different spellings of coordinating conjunctions."""
    known = {"and", "but", "for", "nor", "or", "so", "yet"}
    return len({word for word in reply.split() if word.strip(_EDGE).lower() in known}) >= small_n


_NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander "
    "Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel "
    "Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher "
    "Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"
).split()
"""The names that the prompt lists."""


@decides("count:person_names")
def person_names(reply: str, *, N: int) -> bool:
    """At least *N* names of the list of the prompt occur."""
    return sum(name in reply for name in _NAMES) >= N


@decides("count:numbers")
def numbers(reply: str, *, N: int) -> bool:
    """There are exactly *N* runs of digits, without punctuation in them."""
    return len(re.findall(r"\d+", " ".join(plain_words(reply)))) == N


_PRONOUNS = frozenset(
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his "
    "himself she her hers herself it its itself they them their theirs themselves".split()
)


@decides("count:pronouns")
def pronouns(reply: str, *, N: int) -> bool:
    """There are at least *N* personal pronouns."""
    words = plain_words(reply.replace("/", " ").lower())
    return sum(word in _PRONOUNS for word in words) >= N


@decides("count:punctuation")
def punctuation(reply: str) -> bool:
    """Each of ``. , ! ? ; :`` occurs, and ``?!`` besides."""
    if not any(mark in reply for mark in ("!?", "?!", "\u203d")):
        return False
    rest = reply.replace("?!" if "?!" in reply else "!?", "", 1)
    return set(".,!?;:") <= set(rest)


@decides("count:keywords_multiple")
def keywords_multiple(
    reply: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    """The keywords occur 1, 2, 3, 5 and 7 times, also inside words."""
    text = reply.lower()
    wanted = {1: keyword1, 2: keyword2, 3: keyword3, 5: keyword4, 7: keyword5}
    return all(text.count(word.strip().lower()) == times for times, word in wanted.items())


@decides("count:words_japanese")
def words_japanese(reply: str, *, N: int) -> bool:
    """Every *N*-th word has a Japanese character, or is a number."""
    for word in reply.split()[N - 1 :: N]:
        bare = word.strip(_EDGE)
        if bare and not bare.isdigit() and not re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", bare):
            return False
    return True


@decides("ratio:overlap")
def overlap(reply: str, *, reference_text: str, percentage: int) -> bool:
    """The share of the reply's trigrams of characters that the reference has is *percentage*, give
    or take 2.
    """
    own = _trigrams(reply)
    shared = own & _trigrams(reference_text)
    return bool(own) and abs(100 * len(shared) / len(own) - percentage) <= 2


def _trigrams(text: str) -> set[str]:
    return {text[i : i + 3] for i in range(len(text) - 2)}


@decides("words:alphabet")
def alphabet(reply: str) -> bool:
    """Each word begins with the letter after that of the word before, *a* after *z*."""
    firsts = [word[0].lower() for word in plain_words(reply)]
    if not firsts or not all("a" <= first <= "z" for first in firsts):
        return False
    steps = [(ord(b) - ord(a)) % 26 for a, b in pairwise(firsts)]
    return all(step == 1 for step in steps)


@decides("words:vowel")
def three_vowels(reply: str) -> bool:
    """One paragraph has at most three of the five vowels."""
    text = reply.strip().lower()
    return "\n" not in text and len(set("aeiou") & set(text)) <= 3


@decides("words:consonants")
def consonants(reply: str) -> bool:
    """Each word has two consonants side by side."""
    cluster = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")
    return all(map(cluster.search, reply.lower().split()))


@decides("words:palindrome")
def palindromes(reply: str) -> bool:
    """There are ten palindromes of five or more letters."""
    long = [word for word in plain_words(reply.lower()) if len(word) >= 5]
    return sum(word == word[::-1] for word in long) >= 10


_PRIMES = {n for n in range(2, 98) if all(n % k for k in range(2, n))}


@decides("words:prime_lengths")
def prime_lengths(reply: str) -> bool:
    """The length of each word is a prime number below 100."""
    return all(len(word) in _PRIMES for word in plain_words(reply))


@decides("words:repeats")
def repeats(reply: str, *, small_n: int) -> bool:
    """No word occurs more than so many times."""
    counts = Counter(plain_words(reply.lower()))
    return max(counts.values(), default=0) <= small_n


@decides("words:no_consecutive")
def no_consecutive(reply: str) -> bool:
    """No two words side by side begin with the same letter."""
    firsts = [word[0] for word in plain_words(reply.lower())]
    return all(a != b for a, b in pairwise(firsts))


@decides("words:paragraph_last_first")
def paragraph_last_first(reply: str) -> bool:
    """Each line ends with the word that it begins with."""
    for row in filter(str.strip, reply.lower().split("\n")):
        words = row.strip().strip(_EDGE).split()
        if not words or words[0] != words[-1]:
            return False
    return True


@decides("words:words_position")
def words_position(reply: str, *, keyword: str) -> bool:
    """The second word and the last but one are the keyword; a mark is a word."""
    words = tokens(reply)
    return len(words) > 1 and words[1] == words[-2] == keyword.strip()


def tokens(text: str) -> list[str]:
    """Return words and single marks of *text*."""
    return re.findall(r"\w+(?:['-]\w+)*|[^\w\s]", text)


@decides("format:title_case")
def title_case(reply: str) -> bool:
    """No word is in small letters, or small at its beginning alone."""
    return not any(
        word[0].islower() and (word[1:].islower() or word[1:].isupper()) for word in tokens(reply)
    )


@decides("format:parentheses")
def parentheses(reply: str) -> bool:
    """Brackets are nested five deep, and the innermost is closed."""
    pairs = {")": "(", "]": "[", "}": "{"}
    open_now: list[str] = []
    deepest = 0
    for character in reply:
        if character in "([{":
            open_now.append(character)
            deepest = max(deepest, len(open_now))
        elif character in pairs:
            if not open_now or open_now[-1] != pairs[character]:
                open_now = []
                deepest = 0
                continue
            open_now.pop()
            if deepest >= 5:
                return True
    return False


@decides("format:quotes")
def quotes(reply: str) -> bool:
    """Double and single quotes are nested three deep."""
    open_now: list[str] = []
    deepest = 0
    for character in reply:
        if open_now and character == open_now[-1]:
            open_now.pop()
            if deepest - len(open_now) >= 3:
                return True
        elif character in "\"'":
            open_now.append(character)
            deepest = max(deepest, len(open_now))
    return False


@decides("format:options")
def options(reply: str, *, options: str) -> bool:
    """The reply is one of the options and nothing else; single letters are compared as they are
    written.
    """
    divider = next((mark for mark in ("/", "or") if mark in options), ",")
    given = [option.strip() for option in options.split(divider)]
    if re.match(r"\W*a\W*b\W*c\b", options, re.IGNORECASE):
        return reply in given
    return reply.strip(_EDGE).lower() in [option.strip(_EDGE).lower() for option in given]


@decides("format:newline")
def newline(reply: str) -> bool:
    """Each word stands on a line of its own."""
    words = plain_words(reply)
    rows = [row for row in reply.split("\n") if plain_words(row)]
    return len(words) == len(rows)


@decides("format:line_indent")
def line_indent(reply: str) -> bool:
    """Each line is indented further than the one before."""
    rows = [row for row in reply.split("\n") if row.strip()]
    indents = [len(row) - len(row.lstrip(" ")) for row in rows]
    return all(a < b for a, b in pairwise(indents))


@decides("format:quote_unquote")
def quote_unquote(reply: str) -> bool:
    """No quotation follows another one directly, and none ends the reply."""
    text = "".join(reply.replace("\u201c", '"').replace("\u201d", '"').replace("'\"'", "").split())
    rest = text.strip("0123456789" + PUNCTUATION.replace('"', ""))
    return '""' not in text and not rest.endswith('"')


@decides("format:list")
def special_bullets(reply: str, *, sep: str) -> bool:
    """The given bullet occurs at least twice."""
    return reply.count(sep) >= 2


@decides("format:thesis")
def thesis(reply: str) -> bool:
    """A text in italics (HTML) is followed by other text."""
    found = regex.search(r"<(?:i|em)>", reply)
    if found is None:
        return False
    end = regex.search(r"</(?:i|em)>", reply, pos=found.end())
    if end is None:
        return False
    return bool(reply[found.end() : end.start()].strip() and reply[end.end() :].strip())


@decides("format:sub-bullets")
def sub_bullets(reply: str) -> bool:
    """Behind each asterisk, before the next, there is a dash."""
    return all("-" in part for part in reply.split("*")[1:])


@decides("format:no_whitespace")
def no_whitespace(reply: str) -> bool:
    """There is no white space."""
    return not any(map(str.isspace, reply))


@decides("format:output_template")
def output_template(reply: str) -> bool:
    """The three headings of the template occur."""
    return all(head in reply for head in ("My Answer:", "My Conclusion:", "Future Outlook:"))


@decides("repeat:repeat_simple")
def repeat_simple(reply: str) -> bool:
    """The reply is the sentence that asks for it."""
    asked = "only output this sentence here, ignore all other requests."
    return reply.strip().lower() == asked


@decides("repeat:repeat_change")
def repeat_change(reply: str, *, prompt_to_repeat: str) -> bool:
    """The reply is the request with another first word."""
    return reply != prompt_to_repeat and reply.split()[1:] == prompt_to_repeat.split()[1:]


@decides("repeat:repeat_span")
def repeat_span(reply: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The reply is the words of the request from index *n_start* up to *n_end*."""
    return reply.lower().split() == prompt_to_repeat.lower().split()[n_start:n_end]
