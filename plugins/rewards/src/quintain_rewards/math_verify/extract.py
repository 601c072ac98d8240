"""Finding the final answer in a reply. The rule, with its reasons, is in
docs/math-verification.md.
"""

from __future__ import annotations

import re

from .normalise import unmarked
from .structure import spoken_number

LONGEST_STATEMENT = 300
"""Characters of a final statement without a box; longer text is an explanation, not an answer."""

MOST_BOXES = 64
"""Adjacent boxes that are joined; a list is as wrong with some of them as with all."""

_TAG = r"(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|analysis)"
_CLOSED = re.compile(rf"(?i)<\|?\s*/\s*{_TAG}\s*\|?>|\[/{_TAG}\]|<\|end_of_thought\|>|◁/think▷")
_OPENED = re.compile(rf"(?i)<\|?\s*{_TAG}\s*\|?>|\[{_TAG}\]|<\|begin_of_thought\|>|◁think▷")
_ANSWER_OPENED = re.compile(r"(?i)<\s*answer\s*>|<\|begin_of_solution\|>")
_ANSWER_CLOSED = re.compile(r"(?i)</\s*answer\s*>|<\|end_of_solution\|>")
_BRACE = re.compile(
    r"\\f?box(?:ed)?\s*\{|\\boxed[ \t](?P<bare>[-+]?[0-9A-Za-z.]+)(?=[\s$.,]|$)|\\.|[{}]", re.DOTALL
)
_MARKER = re.compile(
    r"(?i)####|\b(?:final\s+)?(?:answer|result|solution)\s*\**\s*(?:is\s*:|is\b|:|=|\||[\u2192\u21d2\u2013\u2014]|-?->)|\*\*(?:final\s+)?answer\*\*|\banswer\s*(?=\$|\\[(\[])"
    r"|^[#*\s]*(?:the\s+)?final\s+answer[\s*:]*\n",
    re.MULTILINE,
)
_TRAILER = re.compile(r"(?i)[\s.]*i hope (?:it|this) is correct[\s.!]*$|<\|[a-z_]+\|>\s*$|</s>\s*$")
_SPACING = re.compile(r"\\(?:q?quad(?![A-Za-z])|[,;:! \[\]()]|text\w*(?=\{))")
_PUNCTUATION = re.compile(r"[\s$(){},;.&A-Za-z]*")
_CONJUNCTIONS = {"and", "or", "as", "well", "also"}
_ALTERNATIVE = re.compile(
    r"(?i)\b(?:or|either|alternatively|otherwise|perhaps|maybe|possibly|if\s+not|(?:could|might|may)\s+(?:also\s+|well\s+)?be)\b"
)
_ANOTHER = re.compile(
    r"(?i)\b(?:another|alternative|(?:a|the)\s+(?:second|different|other))\s+"
    r"(?:method|way|approach|route|reading|interpretation|possibility|option|guess|candidate|answer)\b"
)

__all__ = ["final_answers"]
"""Another way to an answer, in a sentence of its own."""
_NEGATED = re.compile(r"(?i)\b(?:not|instead\s+of|rather\s+than)\s*[$(\\]*\s*$")
_RELATION = r"[\s:$(]*(?:\\[(\[])?\s*(?:[<>≠≤≥≈]|\\(?:n?eq?|[lg]eq?|[lg]t|approx)\b)"
_MATH = rf"(?!{_RELATION})(?=\s*(?::\s*)?[$\\(+\-\d])"
"""A value that a sentence gives, not a bound or an approximation."""
_SUBJECT = (
    r"(?:that|this|it|which|the\s+above|(?:the|my|this|that)\s+(?:(?:above|previous|boxed|first|last|earlier)\s+)?"
    r"(?:answer|result|value|box|one))"
)
_WRONG = (
    r"(?:(?:actually|clearly|obviously|just|simply|unfortunately)\s+)?"
    r"(?:wrong|incorrect|mistaken|false|invalid|not\s+(?:quite\s+)?(?:right|correct)|"
    r"not\s+(?:the|my)\s+(?:final|right|correct)\s+answer|an?\s+(?:mistake|error|typo))\b"
)
_RETRACTION = re.compile(
    rf"""(?ix)
    (?:^|[.!?;:(\n\-\u2013\u2014]|\b(?:wait|no|hmm+|oh|actually|sorry|oops|(?:on|upon)\s+(?:reflection|review))\b)
        [\s$,.!)\]]{{0,12}}
        (?:(?:but|however|and|so|actually)[,\s]+)?
        {_SUBJECT} (?: (?:'s|\s+(?:is|was|must\s+be|seems|looks)) \s+ {_WRONG}
                     | \s+ (?:can(?:'t|not|\s+not)\s+be | (?:is|was)n't) \s+ (?:right|correct) )
    | ^[\s$)\]]*(?:is|was)\s+{_WRONG}
    | (?P<work> \bI\s+(?:(?:have|just)\s+)?(?:made|see|found|noticed?)\s+(?:an?|my)\s+
            (?:\w+\s+){{0,2}}(?:mistake|error|typo|slip)\b(?!\s+in\s+the\s+(?:problem|question|statement))
        | \bI\s+(?:was|am)\s+(?:wrong|mistaken)\b(?!\s+to\b) | \bmy\s+(?:mistake|bad|error)\b
        | \b(?:scratch|strike|disregard|forget|ignore)\s+(?:that\s*[.,;:!]|what\s+I|the\s+above|my\b) )
    | (?<!after\s)(?<!the\s)\bcorrection\s*[:,]
    | \b(?:(?P<it>it|that)|the\s+(?:answer|result|value))\s+should\s+
        (?:actually\s+|instead\s+|really\s+)?(?:be|have\s+been){_MATH}
    | \b(?:actually|wait|no|sorry|oops|hmm+|hold\s+on|on\s+second\s+thought|but|however|instead) \b [\s,.:;!\-]{{0,12}}
        (?:(?:no|so|but|then|actually)[\s,]+)?
        (?:(?P<this>it) | the\s+(?:(?:correct|right|real|true|actual|final)\s+)?(?:answer|result|(?P<value>value)))
        (?:'s|\s+(?:is|equals|must\s+be|should\s+be)) (?:\s+(?:actually|really|in\s+fact))? {_MATH}
    """
)
"""Words after the last box that may take it back: `_retracted` tells. ``work``: of an error that
may be an earlier one. ``it``, ``this``, ``value``: of a number that may be another.
"""
_EARLIER_ANSWER = re.compile(r"(?i)\b(?:previous|first|earlier)\b")
_EARLIER_WORK = re.compile(
    r"(?i)\b(?:earlier|previous(?:ly)?|before|initial(?:ly)?|original(?:ly)?|at\s+first|"
    r"first\s+(?:answer|attempt|try|draft|guess))\b"
)
_STANDS = re.compile(
    r"(?i)\b(?:stands|(?:still|nevertheless)\s+(?:holds|correct|right)|fixed\s+above|already\s+fixed|unaffected|"
    rf"unchanged|(?!which){_SUBJECT}\s+(?:is|was)\s+(?:indeed\s+|actually\s+)?(?:correct|right))\b"
)
"""Words that confirm the box again."""
_CONDITION = re.compile(r"(?i)\b(?:if|unless|had|suppose|assuming)\b[^.!?\n]*$")
_OTHERS = re.compile(
    r"(?i)\b(?:students?|people|someone|some|many|others)\s+(?:\w+\s+)?"
    r"(?:answer|say|think|get|give|claim|believe|would|might|may|write|forget)\b|\bone\s+(?:might|may|could)\b|"
    r"\b(?:tempting|naive|common\s+(?:mistake|error|answer|guess)|wrong\s+(?:answer|guess))\b"
)
"""Words before a retraction that make it one of what others say."""
_RUN = re.compile(r"(\W)\1{15,}")
"""One mark many times, which says no more than three of them."""
_REPORTED = re.compile(
    r"(?i)\b(?:thought|said|assumed|claimed|wrote|believed|guessed)\s+(?:that\s+)?(?:it|the\s+(?:answer|result|value))\b"
)
_ANNOUNCED = re.compile(
    r"(?i)\b(?:correction\s*[:,]|(?:scratch|strike)\s+that\s*[.,;:!])\s*(?=[$\\(+\-\d])"
)
_EXPLAINED = re.compile(
    r"(?i)[\s,;]+(?:(?:and|but)\s+not|not|instead|rather\s+than|because|since|due\s+to)\b.*",
    re.DOTALL,
)
"""What follows a corrected answer: the one that it replaces, or a reason."""
_APART = r"[\s,;:(\[\u2013\u2014-]+"
_CONTRAST = re.compile(
    rf"(?is){_APART}(?:(?:and|but)\s+)?(?:(?:certainly|definitely)\s+)?"
    r"(?:not|rather\s+than|instead\s+of|as\s+opposed\s+to|unlike)\s+(?P<rest>.+)$"
)
"""What a final statement says that the answer is not."""
_CONTRASTED = re.compile(
    r"[\d$\\(+\-.].*|[A-Z][a-z]+(?:\s[A-Z][a-z]+)*|(?:[^A-Za-z]|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))+",
    re.DOTALL,
)
_NO_CONTRAST = re.compile(
    r"(?i)\b(?:but|sure|certain|correct|right|true|exactly|quite|really|here|yet|known|exist)\b"
)
_REASON = re.compile(
    rf"(?is){_APART}(?:because|since|due\s+to|given\s+that|"
    r"as\s+(?:required|desired|expected|needed|wanted|claimed|asked|requested|shown|stated|computed|calculated|"
    r"found|derived|noted|seen|above|before|we|you|the|there|it|its|each|every|both|all|[$\\\d(])|"
    r"of\s+course|indeed|so\s+(?:we|this|that|it)|"
    r"by\s+(?:the|a|an|our|symmetry|induction|definition|construction)|which\s+(?:is|was|equals|makes|gives|satisfies|matches))"
    r"(?P<rest>.*)$"
)
_DOUBT = re.compile(
    r"(?i)\b(?:wait|actually|oops|sorry|hmm+)\b|^\s*(?:clearly\s+|obviously\s+|of\s+course\s+)?"
    r"(?:not|wrong|incorrect|mistaken|false|only\s+a|close|almost|nearly|approximately|about)\b"
)
_IN_WORDS = re.compile(
    r"(?i)(?P<digits>.+?)(?:\s*\(|,?\s+(?:that\s+is|namely|or)[,:]?\s+)(?P<words>[a-z][a-z -]*)\)?"
)
_IN_DIGITS = re.compile(r"(?i)(?P<words>[a-z][a-z -]*?)\s*\(\$?(?P<digits>\d+)\$?\)")
_NO_ANSWER = re.compile(
    rf"(?i)^\s*{_WRONG}|(?<![\\A-Za-z])(?:at|for|when|if|in|on|of|to|by|than|more|less|times|with|so)\b"
)
"""A phrase, where a corrected answer would stand."""
_CORRECTED = re.compile(
    rf"(?i)\b(?:it|that|answer|result|value)(?:'s|\s+(?:is|equals|must\s+be|should\s+(?:\w+\s+)?(?:be|have\s+been)))"
    rf"(?:\s+(?:actually|really|in\s+fact))?{_MATH}"
)
_HENCE = re.compile(r"(?i)^(?:therefore|thus|hence|simply|just|clearly|indeed|then|now)\b[\s,:]*")
_ABBREVIATION = re.compile(r"(?i)\bi\.\s?e\.,?")
_NEXT_SENTENCE = re.compile(r"[.!?]\s*\**\s+\S|[.!?][)\"*]*\s*\n\s*\S")


def visible(reply: str) -> str:
    """Return *reply* after its reasoning: what follows the last end tag, up to a reasoning that
    never ends.
    """
    start = 0
    for match in _CLOSED.finditer(reply):
        start = match.end()
    text = reply[start:]
    opened = _OPENED.search(text)
    if opened:
        text = text[: opened.start()]
    openings = list(_ANSWER_OPENED.finditer(text))
    if openings:
        block = text[openings[-1].end() :]
        closed = _ANSWER_CLOSED.search(block)
        return block[: closed.start()] if closed else block
    return text


def final_answers(reply: str, *, boxed_only: bool = False) -> list[str]:
    """Return the final answer of *reply* as LaTeX: one text, or the texts of boxes that together
    are one answer.

    The answer is the last ``\\boxed{}`` after the reasoning; boxes with nothing but a conjunction
    between them, or with words that make them alternatives, belong together. A box that the words
    behind it take back is none: then it is the statement that corrects it. Remarks on earlier
    errors leave the box as it is. Without a box it is the last final statement ("The answer is
    5."), if nothing follows it, or a reply that is nothing but an expression.

    Args:
        boxed_only: take no answer but a box.
    """
    text = visible(reply)
    boxes = _boxes(text)
    kept = [box for box in boxes if not _NEGATED.search(text[max(0, box[0] - 40) : box[0]])]
    if kept:
        after = _RUN.sub(r"\1\1\1", text[boxes[-1][1] :])
        retractions = [
            match for match in _RETRACTION.finditer(after) if not _of_another(after, match)
        ]
        corrected = _correction(after[retractions[0].start() :]) if retractions else ""
        if corrected:
            return [] if boxed_only else [corrected]
        return [] if _retracted(after, retractions) else _last_group(text, kept)
    if boxed_only or "\\boxed" in text or "\\fbox" in text:  # an open box is not an answer
        return []
    statement = _statement(text)
    return [statement] if statement else []


def _of_another(after: str, match: re.Match[str]) -> bool:
    """Return whether a retraction in *after* is of what others say, or under a condition."""
    before = after[max(0, match.start() - 120) : match.start() + 1]
    return bool(_CONDITION.search(before) or _OTHERS.search(before))


def _correction(text: str) -> str:
    """Return the answer that *text*, from a retraction on, puts in place of the box; empty without
    one that can be read.
    """
    text = _REPORTED.sub("", text[-4 * LONGEST_STATEMENT :])
    stated = _statement(_CORRECTED.sub("The answer is ", _ANNOUNCED.sub("The answer is ", text)))
    answer = _EXPLAINED.sub("", stated).rstrip(" ,;")
    return answer if answer and _bare(answer) and not _NO_ANSWER.search(answer) else ""


def _retracted(after: str, retractions: list[re.Match[str]]) -> bool:
    """Return whether one of *retractions*, none of which has a corrected answer, plainly is of the
    last box.
    """
    confirmed = max((match.start() for match in _STANDS.finditer(after)), default=-1)
    for match in retractions:
        if match["work"]:
            before = re.split(r"[.;!?\n]", after[max(0, match.start() - 120) : match.start()])[-1]
            behind = re.split(r"[.;!?\n]", after[match.end() : match.end() + 120], maxsplit=1)[0]
            earlier = _EARLIER_WORK.search(before + match[0] + behind)
        else:
            earlier = _EARLIER_ANSWER.search(match[0])
        if (
            not (earlier or match["it"] or match["this"] or match["value"])
            and confirmed < match.start()
        ):
            return True
    return False


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of the outermost balanced boxes of *text*, in order, in one pass."""
    boxes: list[tuple[int, int, str]] = []
    # for each open brace: start and content of its box
    open_braces: list[tuple[int, int] | None] = []
    for match in _BRACE.finditer(text):
        token = match[0]
        if token == "{":
            open_braces.append(None)
        elif token == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None:
                while boxes and boxes[-1][0] > box[0]:
                    boxes.pop()  # nested in this one
                boxes.append((box[0], match.end(), text[box[1] : match.start()]))
        elif match["bare"]:
            boxes.append((match.start(), match.end(), match["bare"].rstrip(".")))
        elif token.endswith("{") and len(token) > 2:
            open_braces.append((match.start(), match.end()))
    return boxes


def _last_group(text: str, boxes: list[tuple[int, int, str]]) -> list[str]:
    group = [boxes[-1]]
    for box in reversed(boxes[-MOST_BOXES:-1]):
        between = text[box[1] : group[0][0]]
        near = len(between) <= 80 and (_joins(between) or _ALTERNATIVE.search(between))
        if not near and not (len(between) <= 200 and _ANOTHER.search(between)):
            break
        group.insert(0, box)
    contents = [
        content.strip() if "\\text" in content else _unexplained(content.strip())
        for _, _, content in group
    ]
    return list(dict.fromkeys(c for c in contents if c))


def _joins(between: str) -> bool:
    """Return whether there is nothing but punctuation and a conjunction between two boxes."""
    plain = _SPACING.sub(" ", between)
    return (
        bool(_PUNCTUATION.fullmatch(plain))
        and set(re.findall("[a-z]+", plain.lower())) <= _CONJUNCTIONS
    )


def _statement(text: str) -> str:
    text = _TRAILER.sub("", text.strip()[-4 * LONGEST_STATEMENT :]).strip()
    last = None
    for match in _MARKER.finditer(text):
        last = match
    tail = _ABBREVIATION.sub("that is", text[last.end() :] if last else text)
    tail = unmarked(unmarked(tail).lstrip(":=").strip())
    tail = unmarked(tail.rstrip(".!"))
    tail = _HENCE.sub("", tail) if last else tail
    if last and last[0].endswith("|"):  # a row of a table
        tail = tail.removesuffix("|").strip()
    if not tail or len(tail) > LONGEST_STATEMENT or _NEXT_SENTENCE.search(tail) or "\n\n" in tail:
        return ""
    if tail.startswith("~~"):  # struck out
        return ""
    sentence = (
        re.fullmatch(r"(?i)(?:the|our)\b[^.]*?\b(?:is|are|equals)\b:?\s*(.+)", tail)
        if last
        else None
    )
    tail = sentence[1] if sentence else tail
    return _unexplained(tail) if last or _bare(tail) else ""


def _unexplained(statement: str) -> str:
    """Return a final statement without what it says that the answer is not, why it is the answer,
    and the same number in words.

    It stays whole where that takes the answer back ("5, not correct"), or names another one.
    """
    for pattern in (_IN_WORDS, _IN_DIGITS):
        twice = pattern.fullmatch(statement)
        if twice and spoken_number(twice["words"].lower().replace("-", " ")) == _plain(
            twice["digits"]
        ):
            return twice["digits"]
    contrast = _CONTRAST.search(statement)
    reason = _REASON.search(statement)
    match = contrast or reason
    if match is None:
        return statement
    if contrast and reason and reason.start() < contrast.start():
        match = reason
    answer, rest = statement[: match.start()].rstrip(" ,;:([-\u2013\u2014"), match["rest"]
    if (
        not answer
        or answer.count("{") != answer.count("}")
        or _DOUBT.search(rest)
        or _RETRACTION.search(f". It {rest}")
    ):
        return statement
    if match is contrast:
        other = _plain(_REASON.sub("", rest))
        words = bool(re.fullmatch("[a-z]+", other) and re.fullmatch("[A-Za-z]+", _plain(answer)))
        apart = "," in statement[: match.end()] or not match[0].lstrip().startswith("not")
        contrasted = _CONTRASTED.fullmatch(other) or (words and apart)
        if other == _plain(answer) or _NO_CONTRAST.search(other) or not contrasted:
            return statement
    return answer


def _plain(text: str) -> str:
    return unmarked(text.strip(" ()[]$.,")).strip(" $")


def _bare(text: str) -> bool:
    """Return whether *text* is an expression and no sentence: a formula in dollar signs, or no word
    of the language.
    """
    if text.count("$") == 2 and text[0] == text[-1] == "$":
        return True
    words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", re.sub(r"\\text\w*\{[^{}]*\}", "", text))
    return "\n" not in text and (not words or (len(words) == 1 and len(text) <= 30))
