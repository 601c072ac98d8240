"""One spelling for each notation, so that equal answers become equal strings and the parser sees
plain LaTeX.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from .arguments import braced
from .notation import COMMANDS, GREEK, ROOTS, SUBSCRIPTS, SUPERSCRIPTS, SYMBOLS

_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|bigg|Bigg|big|Big|left|right|middle|"
    r"boldsymbol|bm|phantom|strut|normalsize|large|Large|nonumber)(?![A-Za-z])\.?"
)
_COLOUR = re.compile(
    r"\\(?:textcolor|colorbox|pagecolor|color)\s*(?:\[[^\[\]{}]*\])?\s*\{[^{}]*\}"
    r"|\\fcolorbox\s*(?:\[[^\[\]{}]*\])?\s*\{[^{}]*\}\s*\{[^{}]*\}|\\normalcolor(?![A-Za-z])"
)
"""Commands of colour with the names of colours; what they colour stays."""
_SPACE = re.compile(
    r"(?<!\\)\\(?:[;: ]|quad(?![A-Za-z])|qquad(?![A-Za-z])|enspace|thinspace|space(?![A-Za-z]))|~|\\hspace\{[^{}]*\}"
)
_WRAP = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|rm|bf|it|operatorname\*?|pmb|vec|hat|widehat|mathop)\s*\{([^{}]*)\}"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|sc|up|md)?|mbox|hbox|textnormal|emph)\s*\{([^{}]*)\}"
)
_INTRODUCTION = re.compile(
    r"(?i)^\s*\\text\{\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:final\s+)?(?:answer|result|solution|function|value|formula|equation)\s*(?:is|:|is\s*:)\s*\}"
)
_NAME = re.compile(r"\\[A-Za-z]+(?:\{i\})?")
_FUNCTIONS = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm"
)
_PLAIN_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_PLAIN_GREEK = re.compile(
    r"(?<![\\A-Za-z])(pi|theta|alpha|beta|gamma|lambda|omega|phi|infinity|infty|inf|oo)(?![A-Za-z])"
)
_EMOJI = (
    "\u2705\u2611\u2713\u2714\u2728\u2b50\u27a1\u2728\u2b05-\u2b07\u2194-\u21aa"
    "\U0001f300-\U0001f44d\U0001f44f-\U0001f6aa\U0001f6ac-\U0001faff\ufe0f\u200d"
)
_EMPHASIS = (
    r"[\u3010\u3011]|_{1,3}|==|`{1,3}|</?(?:b|i|u|em|strong|mark|code|big|span|p|br|center)\s?/?>"
)
_PYTHON_COMPLEX = re.compile(r"^(\(?[+-]?\d+(?:\.\d+)?\s*[+-]\s*\d+(?:\.\d+)?)j(?=\)?$)")
_BOLD = re.compile(r"(?<![^\s(])(\*\*|__)(?=\S)([^*_\n]+)(?<=\S)\1(?![^\s.,;:!?)])")
_ITALIC = re.compile(r"^([*_])([^*_\n]+)\1$")
_QUOTE = re.compile(r"^>\s+(?=[*_`$])")
_MARKS = re.compile(
    rf"^(?:{_EMPHASIS}|\*{{1,3}}|\#{{1,6}}(?=\s)|[{_EMOJI}])+"
    # one star behind a letter is a part of its name, as in A* and x^*
    rf"|(?:(?<![\\^])(?:{_EMPHASIS}|\*{{2,3}})|(?<=[\d.!$])\*|[{_EMOJI}])+$"
)
_SMALL = r"(?:\d|[A-Za-z]|\\pi(?![A-Za-z]))"


def normalise(text: str) -> str:
    """Return *text* in one spelling: plain LaTeX with exact numbers, no styles, no spaces but those
    between words.

    >>> normalise("\\\\dfrac12"), normalise("1,200"), normalise("√2"), normalise("0.(3)")
    ('\\\\frac{1}{2}', '1200', '\\\\sqrt{2}', '\\\\frac{3}{9}')
    """
    text = _unicode(text)
    text = _delimiters(text)
    text = _styles(text)
    text = _texts(text)
    text = _plain_notation(text)
    text = _numbers(text)
    text = _braces(text)
    text = braced(text)
    return _spaces(text)


def _unicode(text: str) -> str:
    if text.isascii():
        return text
    text = unicodedata.normalize("NFC", text)
    text = re.sub(
        r"(\d+\.?\d*?)((?:\d\u0305)+)",
        lambda m: m[1] + r"\overline{" + m[2].replace("\u0305", "") + "}",
        text,
    )
    out: list[str] = []
    for c in text:
        if unicodedata.category(c) in ("Cf", "Cc") and c not in "\n\t":
            continue
        kind = "^" if c in SUPERSCRIPTS else "_" if c in SUBSCRIPTS else ""
        if kind:
            digit = SUPERSCRIPTS.get(c) or SUBSCRIPTS[c]
            if out and out[-1].startswith(kind + "{"):
                out[-1] = out[-1][:-1] + digit + "}"
            else:
                out.append(f"{kind}{{{digit}}}")
        elif c in SYMBOLS:
            out.append(SYMBOLS[c])
        elif c in GREEK:
            out.append(f"\\{GREEK[c]} ")
        elif c in ROOTS:
            out.append(f"\\sqrt[{ROOTS[c]}]" if ROOTS[c] else r"\sqrt")
        else:
            out.append(_compatible(c))
    return "".join(out)


def _compatible(c: str) -> str:
    """Return a vulgar fraction as LaTeX, a digit of any script as ASCII, a compatibility form as
    what it stands for.
    """
    if c.isascii():
        return c
    plain = unicodedata.normalize("NFKC", c)
    if "\u2044" in plain:
        top, _, bottom = plain.partition("\u2044")
        return rf"\frac{{{top}}}{{{bottom}}}" if bottom else plain
    value = unicodedata.decimal(c, None)
    return plain if value is None else str(value)


def _delimiters(text: str) -> str:
    """Remove math mode's delimiters, boxes and final punctuation; ``\\$`` stays, as a unit."""
    text = _unquoted(unmarked(text)).strip()
    text = text.replace(r"\$", "\0").replace("$$", " ")
    if re.fullmatch(r"\s*\$\s*[\d.,]+\s*", text):
        text = text.replace("$", "\0")
    text = text.replace("$", " ").replace("\0", r"\text{dollar}")
    text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text)
    text = re.sub(
        r"\\(?:begin|end)\{(?:align|equation|gather|aligned|split|math|displaymath)\*?\}", " ", text
    )
    if "matrix" not in text and "array" not in text and "cases" not in text:
        text = text.replace("&", "")
    for _ in range(3):
        text, count = re.subn(
            r"\\(?:f?box(?:ed)?|fbox)\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}", r"\1", text
        )
        if not count:
            break
    text = text.strip()
    while len(text) > 1 and text[-1] in ".,;:" and not text.endswith(r"\ldots."):
        if text.endswith(("...", r"\;", r"\,", r"\:")):
            break
        text = text[:-1].rstrip()
    return text


def unmarked(text: str) -> str:
    """Return *text* without the marks around it: emphasis of Markdown or HTML, and emoji that do
    not say "wrong".

    A mark at one end alone is the rest of a pair that began before the text, as in
    ``**Answer: 5**``. ``-`` and ``>`` begin numbers and inequalities, and stay.
    """
    text = _QUOTE.sub("", text.strip().replace(r"\*\*", "**"))
    text = _ITALIC.sub(r"\2", _BOLD.sub(r"\2", text))
    before = None
    while text != before:
        before = text
        text = _MARKS.sub("", text.strip())
    return text


def _unquoted(text: str) -> str:
    """Return *text* without quotation marks around it; an apostrophe at the end alone is a
    prime.
    """
    bare = text.lstrip("\"'`")
    for _ in range(len(text) - len(bare)):
        bare = bare.removesuffix("'")
    return bare.rstrip('"`')


def _styles(text: str) -> str:
    text = re.sub(r"\\!\s*|\\/", "", _COLOUR.sub(" ", text))
    text = re.sub(r"(\d)\\,(?=\d{3}(?!\d))", r"\1", text)
    text = _STYLE.sub(" ", text)
    text = _SPACE.sub(" ", re.sub(r"(?<!\\)\\,", " ", text))
    text = _NAME.sub(lambda m: COMMANDS.get(m[0], m[0]), text)
    text = re.sub(r"\\not\s*=", r"\\ne ", text)
    text = re.sub(
        r"\^\s*\{?\s*((?:\\prime(?![A-Za-z])\s*)+)\}?", lambda m: "'" * m[1].count("p"), text
    )
    text = re.sub(r"\\log_\s*\{?\s*e\s*\}?(?![A-Za-z])", r"\\ln ", text)
    # a subscript is one token
    text = re.sub(r"\\log_([2-9])(\d+)(?=$|[^\d\s({\\A-Za-z])", r"\\log_{\1}{\2}", text)
    return re.sub(
        r"\{\s*((?:[^{}]|\{[^{}]*\})+?)\s*\\over(?![A-Za-z])\s*((?:[^{}]|\{[^{}]*\})+?)\s*\}",
        r"\\frac{\1}{\2}",
        text,
    )


def _texts(text: str) -> str:
    """Write words as ``\\text{...}``; upright or bold letters, and numbers in text, as they are."""

    def content(match: re.Match[str]) -> str:
        inside = match[1].strip()
        letter = inside in ("i", "e") or (
            len(inside) == 1 and inside.isalpha() and match.start() == 0
        )
        if letter or re.fullmatch(r"[-+]?[\d.,/:]+", inside):
            return inside
        if match.string[match.end() : match.end() + 1] == "_" and inside.isalnum():
            return inside  # digits with a base
        counted = re.fullmatch(r"([-+]?[\d.,/]+)\s*([A-Za-z][A-Za-z ]*)", inside)
        return rf"{counted[1]}\text{{{counted[2]}}}" if counted else rf"\text{{{inside}}}"

    def unwrapped(match: re.Match[str]) -> str:
        inside = match[1].strip()
        if re.fullmatch(_FUNCTIONS, inside):
            return f"\\{inside} "
        return inside if not re.fullmatch(r"[A-Za-z][A-Za-z .]+", inside) else rf"\text{{{inside}}}"

    text = _WRAP.sub(unwrapped, text)
    text = re.sub(
        r"\\(?:mathrm|mathbf|mathit|operatorname|vec|hat)\s+([A-Za-z])(?![A-Za-z])", r"\1", text
    )
    text = _INTRODUCTION.sub("", text)
    text = re.sub(r"\^\s*\{?\s*\\text\w*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", "", text)
    return _TEXT.sub(content, text)


def _plain_notation(text: str) -> str:
    """Write calculator and programming notation as LaTeX: ``**``, ``*``, ``<=``, ``sqrt(2)``,
    ``pi``, ``5C2``, ``1e6``.
    """
    text = (
        text.replace("**", "^")
        .replace("<=", r"\le ")
        .replace(">=", r"\ge ")
        .replace("!=", r"\ne ")
        .replace("=<", r"\le ")
    )
    text = re.sub(r"(?<!\^)\*", r"\\cdot ", text)
    text = re.sub(
        r"(?<![\dA-Za-z.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})(?![\w.])", r"\1\\cdot 10^{\2}", text
    )
    text = _PYTHON_COMPLEX.sub(r"\1i", text)
    text = re.sub(r"10\^\s*\(\s*([+-]?\d+)\s*\)", r"10^{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])(?:sqrt|root)(?=\s*[({\[])", r"\\sqrt", text)
    text = _calls(text, r"\sqrt", lambda inside: rf"\sqrt{{{inside}}}")
    text = re.sub(r"(?<![\\A-Za-z])cbrt\s*\(([^()]*)\)", r"\\sqrt[3]{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])abs\s*\(([^()]*)\)", r"|\1|", text)
    if r"\text" not in text or re.search(r"[()\d]", text):
        text = _outside_text(text, lambda part: _PLAIN_FUNCTION.sub(r"\\\1 ", part))
    text = re.sub(r"(?i)\\text\{(?:positive )?infinity\}", r"\\infty ", text)
    text = _outside_text(text, lambda part: _PLAIN_GREEK.sub(_greek, part))
    text = re.sub(r"(?:\{\})?[\^_]\{?(\d+)\}?\s*C_\{?(\d+)\}?", r"\\binom{\1}{\2}", text)
    text = re.sub(r"(?<![\w\\{])(\d+)\s*C\s*_?\{?(\d+)\}?(?!\w)", r"\\binom{\1}{\2}", text)
    text = re.sub(r"(?<![\w\\])C\((\d+),\s*(\d+)\)", r"\\binom{\1}{\2}", text)
    text = re.sub(r"([A-Za-z0-9)}])\^\(([^()]*)\)", r"\1^{\2}", text)
    return re.sub(r"(\\sqrt)\s*\(", r"\1(", text)


def _greek(match: re.Match[str]) -> str:
    return r"\infty " if match[0] in ("infinity", "infty", "inf", "oo") else f"\\{match[0]} "


def _outside_text(text: str, change: Callable[[str], str]) -> str:
    parts = re.split(r"(\\text\{[^{}]*\}|\\(?:begin|end)\{[^{}]*\})", text)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def _calls(text: str, name: str, change: Callable[[str], str]) -> str:
    """Replace each ``name(...)`` of *text* whose parentheses balance by *change* of what is
    inside.
    """
    start = text.find(name + "(")
    for _ in range(20):
        if start < 0:
            break
        i, depth = start + len(name), 0
        while i < len(text):
            depth += (text[i] == "(") - (text[i] == ")")
            i += 1
            if not depth:
                text = text[:start] + change(text[start + len(name) + 1 : i - 1]) + text[i:]
                break
        else:
            break
        start = text.find(name + "(", start)
    return text


def _numbers(text: str) -> str:
    text = text.replace("{,}", "").replace("{:}", ":")
    text = re.sub(r"^\s*(\d+)\s*(?:\\text\{\s*)?(?:st|nd|rd|th)\s*\}?\s*$", r"\1", text)
    text = (
        re.sub(r"(?<![\d.])(\d{1,3})((?:,\s?\d{3})+)(?![\d])(?=[^,]*$)", _thousands, text)
        if _plain_commas(text)
        else text
    )
    text = re.sub(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,])", lambda m: m[0].replace(" ", ""), text)
    text = re.sub(r"(?<=\d)_(?=\d{3}(?!\d)(?<=000))", "", text)
    text = re.sub(  # dots over the first and the last digit of the block
        r"(?<!\d)(\d{0,60})\.(\d{0,60}?)\\dot\s*\{?(\d)\}?(\d{0,60})\\dot\s*\{?(\d)\}?",
        lambda m: _repeating(m[1] or "0", m[2], m[3] + m[4] + m[5]),
        text,
    )
    text = re.sub(
        r"(?<!\d)(\d{0,60})\.(\d{0,60}?)(?:\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))|\((\d+)\))",
        _repeating_block,
        text,
    )
    if "..." in text or r"\ldots" in text:
        repeated = r"(?<!\d)(\d{0,20})\.(\d{0,8}?)(\d{1,6}?)\3{1,20}\d{0,5}(?:\.\.\.|\\ldots)"
        text = re.sub(repeated, _repeating_dots, text)
    text = re.sub(r"(\\frac\{\d+\}\{9+0*\})(?:\\ldots|\.\.\.)", r"\1", text)
    text = re.sub(r"(?<!\d)\.(?=\d)", "0.", text)
    return re.sub(r"(?<=\d)\.(?=$|[\s}\\,)])(?!\.)", "", text)


def _plain_commas(text: str) -> bool:
    """Return whether commas may separate thousands: outside brackets, where a comma separates
    elements.
    """
    return not re.search(r"[(\[]|\\\{|\\langle|;", text) and ", " not in text


def _thousands(match: re.Match[str]) -> str:
    return re.sub(r"[,\s]", "", match[0])


def _repeating_block(match: re.Match[str]) -> str:
    whole, fixed, block = match[1] or "0", match[2], match[3] or match[4] or match[5]
    return _repeating(whole, fixed, block)


def _repeating_dots(match: re.Match[str]) -> str:
    """Read ``0.1212...``: digits that occur at least twice repeat without end."""
    return _repeating(match[1] or "0", match[2], match[3])


def _repeating(whole: str, fixed: str, block: str) -> str:
    top = int(whole + fixed + block) - int(whole + fixed)
    return rf"\frac{{{top}}}{{{'9' * len(block)}{'0' * len(fixed)}}}"


def _braces(text: str) -> str:
    """Write ``\\frac12`` and ``\\sqrt2`` with braces, mixed numbers as sums, percent words as
    ``\\%``.
    """
    text = re.sub(r"\\frac\s*(?=[^\s{])", r"\\frac ", text)
    text = re.sub(rf"\\frac\s*({_SMALL})\s*({_SMALL})", r"\\frac{\1}{\2}", text)
    text = re.sub(rf"\\frac\s*({_SMALL})\s*\{{", r"\\frac{\1}{", text)
    text = re.sub(
        rf"(\\frac\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})\s*({_SMALL})(?![^{{]*\}}\{{)",
        r"\1{\2}",
        text,
    )
    text = re.sub(rf"\\sqrt\s*(\[[^\]]*\])?\s*(\d+|{_SMALL})", r"\\sqrt\1{\2}", text)
    text = re.sub(r"\\binom\s*(\d)\s*(\d)", r"\\binom{\1}{\2}", text)
    text = re.sub(r"(?<!\\)%|\\%", r"\\%", text)
    text = re.sub(
        r"(?<=[\d}\s)])(?:\\text\{\s*)?(?:percentage|percent|pct)(?:\s*\})?", r"\\%", text
    )
    text = re.sub(r"(?<![\d.}^_{\w])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}", _mixed, text)
    return re.sub(
        r"(?<![\d.}^_{\w/])(\d+)(?:\s+|\s*\\text\{and\}\s*)(\d+)\s*/\s*(\d+)(?![\d/])", _mixed, text
    )


def _mixed(match: re.Match[str]) -> str:
    whole, top, bottom = int(match[1]), int(match[2]), int(match[3])
    if not bottom or top >= bottom:
        return match[0]
    return rf"\frac{{{whole * bottom + top}}}{{{bottom}}}"


def _spaces(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(\\[A-Za-z]+) (?![A-Za-z])", r"\1", text)
    out = _outside_text(
        text, lambda part: re.sub(r"(?<![A-Za-z0-9.]) | (?![A-Za-z0-9.\\])", "", part)
    )
    return re.sub(r"^\{(\w*)\}$", r"\1", out)
