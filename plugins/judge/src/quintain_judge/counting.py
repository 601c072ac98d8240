"""What a text has, by Unicode's rules: words (UAX 29), sentences, paragraphs, lines, list items, and
the places of a phrase.

Rules and environments count with these functions, so that they agree. Each is linear in the length
of the text. A sentence follows UAX 29 with the tailoring that its section 5.1 leaves to a language:
abbreviations, initials and quoted speech (`sentences`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import regex

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc"
"""Chinese characters and kana, which stand without spaces between words."""
_JOINED = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without spaces, in which only a dictionary finds the words."""
_LINE_END = regex.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
_INVISIBLE = regex.compile(
    r"(?V1)(?!(?<=\p{Extended_Pictographic}\p{Emoji_Modifier}?\ufe0f?)\u200d)"
    r"\p{Default_Ignorable_Code_Point}"
)
_HAS_WORD = regex.compile(r"[\p{Alphabetic}\p{N}]")


def visible(text: str) -> str:
    """Return *text* composed (NFC), without what nobody sees: soft hyphens, zero width spaces,
    marks of byte order and direction. The joiner inside an emoji stays.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def lines(text: str) -> list[str]:
    """Return the lines of *text* that are not blank."""
    return [line for line in _LINE_END.split(visible(text)) if line.strip()]


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of *text*: runs of lines between blank lines."""
    runs: list[list[str]] = [[]]
    for line in _LINE_END.split(visible(text)):
        if line.strip():
            runs[-1].append(line)
        elif runs[-1]:
            runs.append([])
    return ["\n".join(run) for run in runs if run]


_WORD_EDGE = regex.compile(r"(?V1w)\b")
_FLAGS = regex.compile(r"\p{Regional_Indicator}+")
"""Letters of flags: no words, and `regex` counts them from the beginning at each of them."""
_HYPHENS = frozenset("-\u2010\u2011")
_ALONE = regex.compile(rf"[{_UNSPACED}]\p{{M}}*")
_IN_RUN = regex.compile(rf"[{_JOINED}]")
_JOINT = regex.compile(r"(?<=\p{Ll}{2})\.(?=\p{Lu}(?:\p{Ll}|\Z))")


def words(text: str) -> list[str]:
    """Return the words of *text*: the segments of UAX 29 with a letter or a digit.

    So ``can't``, ``3.50``, ``U.S`` and ``example.com`` are one word. Beyond UAX 29, a word with
    hyphens is one, each Chinese character and each kana is one, as their writers count, and two
    sentences without a blank between them share no word. A run of Thai, Lao, Khmer or Burmese
    letters is one, because only a dictionary divides it.
    """
    found: list[str] = []
    before = ""
    hyphen = False  # between the last word and what follows, nothing but one hyphen
    for piece in _WORD_EDGE.split(_FLAGS.sub(" ", visible(text))):
        if not piece:
            continue
        if not _HAS_WORD.search(piece):
            joins = piece in _HYPHENS and not hyphen and before and not _ALONE.match(before)
            hyphen = bool(joins)
            before = before if hyphen else ""
            continue
        for part in _parts(piece):
            in_run = _IN_RUN.match(part) and before and _IN_RUN.match(before) and not hyphen
            if found and (in_run or (hyphen and not _ALONE.match(part))):
                found[-1] += part if in_run else f"-{part}"
            else:
                found.append(part)
            hyphen = False
            before = part
    return found


def _parts(piece: str) -> Iterator[str]:
    """Yield the words of a segment: single kana, and what a full stop without a blank divides."""
    if _ALONE.match(piece):
        yield from _ALONE.findall(piece)
    else:
        yield from _JOINT.split(piece)


_TITLES = frozenset(
    "dr mr mrs ms prof gen col capt lt sgt rev hon gov sen rep pres messrs mme mlle sra srta cmdr "
    "maj adm cpl pvt supt insp det fr br ing hr fam mag dipl sig dott avv dra".split()
)
"""Stand before a name, with a capital; a name follows them always."""
_SMALL_TITLES = frozenset("dr mr mrs ms prof".split())
_INSIDE = frozenset(
    "e.g i.e cf vs v viz approx ca resp eg ie incl excl esp ibid p.s p.p.s a.k.a aka z.b d.h u.a bzw "
    "bzgl ggf evtl inkl exkl vgl sog p.ex ud uds ee".split()
)
"""Stand inside a sentence always."""
_NUMBERED = frozenset(
    "no nos nr nro fig figs eq eqs vol ch chap sec art p pp op ver par tel ext str abb kap bd jan feb "
    "mar apr jun jul aug sep sept oct nov dec".split()
)
"""Stand before a number."""
_WORDS_TOO = frozenset("no art p par mar op sec ch str ext".split())
"""Those of them that are words at the end of a sentence, too."""
_DAYS = frozenset("mon tue tues wed thu thur thurs fri sat sun".split())
_BEFORE_NAMES = frozenset(
    "jr sr st mt ft esq uu calif mass conn fla mich minn neb nev okla tenn tex wash wis wyo ariz "
    "colo".split()
)
"""May end a sentence, and a name may follow them; a word that begins sentences decides."""
_LAST = frozenset(
    "inc ltd co corp llc bros plc gmbh etc al ex dept univ assn ave blvd rd usw est max min mins hr hrs "
    "sec secs lb lbs oz yd sq cu gal qt pt tsp tbsp kg km cm mm mg mph a.m p.m b.c a.d c.e "
    "b.c.e".split()
)
"""May end a sentence; a small letter or a digit after them says that they do not."""
_STARTERS = frozenset(
    "the it he she they we i you this that these those there here a an but and so then his her its "
    "their our my your in on at after before when while if as for from with what why how who where "
    "is are was were do does did no yes not one some many most all both however also now today "
    "later yet or by to of maybe perhaps please let".split()
)
"""Words that begin a sentence rather than go on with a name."""
_TIMES = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june "
    "july august september october november december est edt cst cdt mst mdt pst pdt gmt utc bst "
    "cet cest eastern central pacific".split()
)
_AFTER_ORDINALS = frozenset(
    "januar februar m\u00e4rz april mai juni juli august september oktober november dezember "
    "jahrhundert und oder bis".split()
)
"""What follows a German ordinal, such as ``5. Mai``."""

_STOP = regex.compile(
    r"(?P<marks>[\p{SB=STerm}\p{SB=ATerm}\u2026]+)"
    r"(?P<closers>(?:\[\d{1,3}\]|[\p{SB=Close}*_~`])*+)(?P<gap>[\p{Zs}\t]*+)"
)
_TOKEN = regex.compile(r"[\p{L}\p{M}\p{N}.]*\Z")
_NEXT = regex.compile(
    r"[*_\"'(\[\u201c\u2018\u00ab\u201e]*(?P<word>[\p{L}\p{M}\p{N}]*)(?P<dot>\.?)"
)
_INITIALS = regex.compile(r"(?:\p{L}{1,3}\.)+\p{L}{1,3}")
_ROMAN = regex.compile(r"[IVXLC]{1,6}")
_LIST_MARK = regex.compile(r"[\s>#*_\-+(]*\p{N}{1,3}")
_QUOTES = regex.compile(r"[\p{SB=Close}--[*_~`]]", regex.V1)
_NEAR = 48
"""Characters on each side of a mark that decide whether it ends a sentence."""


def sentences(text: str) -> list[str]:
    """Return the sentences of *text* that have a word, each with its end mark.

    A line end ends a sentence. A mark of Unicode's classes STerm and ATerm does, except a full
    stop inside a number, an address, an abbreviation (``e.g.``, ``Dr.``, ``9 a.m. in``), initials
    or the number of a list, three dots before a small letter, and a mark in quotes before one
    (``He said "Stop!" and left.``).
    """
    found: list[str] = []
    for line in _LINE_END.split(visible(text)):
        start = 0
        for stop in _STOP.finditer(line):
            if stop.end() < len(line) and _ends(line, start, stop):
                found.append(line[start : stop.end()])
                start = stop.end()
        found.append(line[start:])
    return [sentence.strip() for sentence in found if _HAS_WORD.search(sentence)]


def _ends(line: str, start: int, stop: regex.Match[str]) -> bool:
    """Return whether the marks *stop* end the sentence of *line* that begins at *start*."""
    follows = _NEXT.match(line, stop.end(), min(len(line), stop.end() + _NEAR))
    assert follows is not None  # it may be empty
    word = follows["word"]
    first = word[:1]
    small = first.islower()
    unspaced = bool(_ALONE.match(word))
    following = line[stop.end()]
    if _QUOTES.search(stop["closers"]) and (small or unspaced or following in ",;:"):
        return False
    full_stop = set(stop["marks"]) <= {".", "\u2024"}
    if not stop["gap"]:
        return unspaced or _touching(line, stop, full_stop, first, word)
    if regex.match(r"[\p{SB=SContinue}\p{SB=STerm}\p{SB=ATerm}]", following):
        return False
    if (len(stop["marks"]) > 1 and full_stop) or stop["marks"] == "\u2026":
        return not small
    return not full_stop or _full_stop_ends(line, start, stop.start(), follows)


def _touching(line: str, stop: regex.Match[str], full_stop: bool, first: str, word: str) -> bool:
    """Return whether marks without a blank behind them end a sentence, as in ``burned.It was``."""
    if not full_stop:
        return first.isupper() or not stop["marks"].isascii()
    capital = first.isupper() and (len(word) == 1 or word[1].islower())
    before = line[max(0, stop.start() - 2) : stop.start()]
    return capital and len(before) == 2 and before.isalpha() and before.islower()


def _full_stop_ends(line: str, start: int, place: int, follows: regex.Match[str]) -> bool:
    """Return whether the full stop at *place*, with a blank behind it, ends a sentence."""
    before = line[max(start, place - _NEAR) : place]
    found = _TOKEN.search(before)
    token = found[0].lstrip(".") if found else ""
    word = follows["word"]
    starter = word.lower() in _STARTERS and not follows["dot"] and not word[:1].islower()
    alone = place - start <= _NEAR and not before.removesuffix(token).strip(" \t(\"'*_>#-+")
    if token.isdecimal():
        if alone and _LIST_MARK.fullmatch(before):
            return False
        return not (len(token) < 3 and word.lower() in _AFTER_ORDINALS)
    if len(token) == 1:
        return _letter_ends(token, alone, starter, follows)
    decided = _abbreviation_ends(token, starter, follows)
    if decided is None and _INITIALS.fullmatch(token):
        return starter
    return decided is not False


def _letter_ends(token: str, alone: bool, starter: bool, follows: regex.Match[str]) -> bool:
    """Return whether a full stop behind a single letter ends a sentence: one of initials, of an
    abbreviation such as ``z. B.``, of a name or a number (``p. 5``) does not.
    """
    word = follows["word"]
    if token.isupper():
        after_others = token == "I" and not alone and not follows["dot"]
        return not word[:1].islower() and (starter or after_others)
    abbreviated = len(word) == 1 and bool(follows["dot"])
    return not (abbreviated or word[:1].islower() or word[:1].isdecimal() or token == "v")


def _abbreviation_ends(token: str, starter: bool, follows: regex.Match[str]) -> bool | None:
    """Return whether a full stop behind an abbreviation ends a sentence; ``None`` if *token* is
    none.
    """
    name = token.lower()
    word = follows["word"]
    small = word[:1].islower()
    number = word[:1].isdecimal()
    if name in _INSIDE or (name in _TITLES and (token[0].isupper() or name in _SMALL_TITLES)):
        return False
    if name in _NUMBERED:
        roman = _ROMAN.fullmatch(word) and (len(word) > 1 or name not in _WORDS_TOO)
        counted = number or roman
        return not (counted or (small and name not in _WORDS_TOO))
    if name in _DAYS:
        return not (small and token[0].isupper())
    if name in _BEFORE_NAMES:
        return starter
    if name in _LAST:
        timed = name in ("a.m", "p.m") and word.lower() in _TIMES
        another = follows["dot"] and word.lower() in _LAST  # Co. Ltd.
        return not (small or number or timed or another)
    return None


_FENCED = regex.compile(r"^[ \t]*(?:```|~~~)")
_RULED = regex.compile(r"\s*([-*_])(?:\s*\1){2,}\s*")
_BULLET = r"[-*+\u2013\u2014\u00b7\u2192]"
_MARK = (
    r"[\u2022\u2023\u2043\u2219\u25e6\u25aa\u25ab\u25cf\u25cb\u25a0\u25a1\u25b6\u25ba\u2713\u2714"
    r"\u27a2\u27a4\u2460-\u2473]"
)
"""Bullets that need no blank behind them."""
_NUMBER = (
    r"(?:\d{1,9}[.)]|\(\d{1,9}\)|\p{Script=Latin}\)|\([a-zA-Z]\)|[ivxIVX]{1,5}\)|\([ivxIVX]{1,5}\))"
)
_ITEM = regex.compile(
    rf"\s*+(?:(?:{_BULLET}|{_NUMBER})\s++|{_MARK}\s*+|[\d\u4e00-\u5341]{{1,3}}+\u3001\s*+)"
    r"(?=[^\n]*[^\s\-*+_])\S"
)
_LETTERED = regex.compile(r"\s*+([a-zA-Z])\.\s++\S")


def list_items(text: str) -> list[str]:
    """Return the lines of *text* that are items of a list, outside of fenced code: behind a bullet
    of any kind, a dash, ``1.``, ``1)``, ``(1)``, ``a)`` or ``(a)`` and a blank.

    Letters with a full stop count where two follow each other (``A.``, ``B.``), so that initials
    do not. A rule such as ``- - -`` is no item.
    """
    found: list[str] = []
    lettered: list[tuple[str, str]] = []
    code = False
    for line in _LINE_END.split(visible(text)):
        if _FENCED.match(line):
            code = not code
        elif not code and not _RULED.fullmatch(line):
            letter = _LETTERED.match(line)
            if letter:
                lettered.append((letter[1], line))
            elif _ITEM.match(line):
                found.append(line.strip())
    letters = {letter for letter, _ in lettered}
    for letter, line in lettered:
        if {chr(ord(letter) - 1), chr(ord(letter) + 1)} & letters:
            found.append(line.strip())
    return found


_SAME_LOOK = {"<wide>", "<narrow>", "<font>", "<compat>", "<noBreak>"}
_SAME_LOOK |= {"<circle>", "<square>", "<initial>", "<medial>", "<final>", "<isolated>"}
_SPACES = regex.compile(r"\s+")
_APOSTROPHE = regex.compile(
    r"(?<=[\p{L}\p{N}])[\u2018\u2019\u02bc\u2032\u00b4\u201b]|"
    r"[\u2018\u2019\u02bc\u2032\u00b4\u201b](?=[\p{L}\p{N}])|(?<=\p{L})`(?=\p{L})"
)
_STRUCK = regex.compile(r"[\u0305\u0332-\u0338]")
"""Lines through, over and under a letter."""
_HYPHEN = regex.compile(r"[\u2010\u2011\ufe63]")
_LETTER_RUN = regex.compile(r"[\p{Latin}\p{Cyrillic}\p{Greek}]+")
_LATIN = regex.compile(r"\p{Latin}")
_LOOKALIKES = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u04bb\u0501\u051b\u051d\u04cf"
    "\u03bf\u03b1\u03bd\u03c1\u03c5\u03b9\u03ba",
    "aeopcyxijshdqwl" + "oavpuik",
)
"""Small Cyrillic and Greek letters that look like Latin ones (UTS 39)."""


def folded(text: str) -> str:
    """Return *text* as phrases are compared: `visible`, without case, compatible forms of a letter
    as the letter, apostrophes and hyphens of one kind, one blank for each gap.

    In a word that mixes Latin with Cyrillic or Greek letters, those that look Latin are.
    """
    text = visible(text)
    if not text.isascii() or "`" in text:
        text = "".join(_one_look(c) for c in text)
        text = _HYPHEN.sub("-", _APOSTROPHE.sub("'", _STRUCK.sub("", text))).casefold()
        text = unicodedata.normalize("NFC", text)
        text = _LETTER_RUN.sub(_one_script, text)
    return str(_SPACES.sub(" ", text.casefold()))


@lru_cache(4096)
def _one_look(character: str) -> str:
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if kind in _SAME_LOOK else character


def _one_script(run: regex.Match[str]) -> str:
    letters = str(run[0])
    return letters.translate(_LOOKALIKES) if _LATIN.search(letters) else letters


def prepared(text: str, phrase: str) -> str:
    """Return *text* as `pattern_of` *phrase* reads it: `folded`, or, for a phrase without letters
    and digits, only `visible`.
    """
    if _HAS_WORD.search(phrase):
        return folded(text).strip()
    return str(_SPACES.sub(" ", visible(text))).strip()


@lru_cache(1024)
def pattern_of(phrase: str) -> regex.Pattern[str]:
    """Return what finds *phrase*, which is not empty, as whole words in a `prepared` text.

    No letter, mark or digit may touch it, nor ``.5`` behind a number, nor ``++`` or ``#`` behind a
    letter. In a script without spaces it is found anywhere.
    """
    text = prepared(phrase, phrase) or phrase
    first = text[0]
    last = text[-1]
    # No half of an emoji that a zero width joiner (U+200D) makes one of two.
    before = r"(?<!\u200d)"
    after = r"(?![\p{M}\p{Emoji_Modifier}\u200d])"
    spaceless = rf"[{_UNSPACED}{_JOINED}]"
    if _HAS_WORD.match(first) and not regex.match(spaceless, first):
        before = r"(?<![\p{L}\p{M}\p{N}])" + (r"(?<!\d[.,])" if first.isdecimal() else "")
    if _HAS_WORD.match(last) and not regex.match(spaceless, last):
        after = r"(?![\p{L}\p{M}\p{N}])" + (r"(?![.,]\d)" if last.isdecimal() else r"(?!\+\+|#)")
    return regex.compile(before + regex.escape(text, literal_spaces=True) + after)


def places(text: str, phrase: str) -> list[int]:
    """Return where *phrase* begins in the `prepared` *text*, whatever its case and its form in
    Unicode.
    """
    return [m.start() for m in pattern_of(phrase).finditer(prepared(text, phrase))]


def begins_with(text: str, phrase: str) -> bool:
    """Return whether *text* begins with *phrase*."""
    return bool(pattern_of(phrase).match(prepared(text, phrase)))


def ends_with(text: str, phrase: str) -> bool:
    """Return whether *text* ends with *phrase*."""
    whole = prepared(text, phrase)
    found = pattern_of(phrase).finditer(
        whole, max(0, len(whole) - 2 * len(phrase)), overlapped=True
    )
    return any(m.end() == len(whole) for m in found)
