"""New criteria for a rubric: a judge writes them from contrasting replies; offline, rules propose
sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import pstdev
from typing import Any

from quintain_judge import JudgeService, Texts, UnreadableVerdict, check, text_of, usable

from .rubric import ChatTask, Criterion

Proposal = tuple[str, float]
"""Text and weight of a criterion: 1 for a quality, -1 for a fault."""
INSTRUCTION = (
    "You improve the rubric by which replies to one prompt are scored. Read the replies and find "
    "what makes some of them better than others and no criterion states yet. Write criteria that "
    "separate these replies from each other, each about one thing that can be seen in a reply, in "
    "one sentence of the form 'Does ...' or 'Has ...'. Give each a kind: quality for what a better "
    "reply does, fault for a mistake that at least one of these replies makes. Do not repeat or "
    "reverse an existing criterion, and do not write both a quality and its opposite as a fault. "
    "If the replies do not differ in anything that matters, give an empty list.\n\nExisting "
    "criteria:\n"
)
CATALOGUE: tuple[Proposal, ...] = (
    ("Has at most 8 words.", 1.0),
    ("Has at most 12 words.", 1.0),
    ("Has at most 40 words.", 1.0),
    ("Has at least 4 words.", 1.0),
    ("Has at most 3 sentences.", 1.0),
    ("Repeats no sentence.", 1.0),
    ('Ends with ".".', 1.0),
    ("Opens with praise.", -1.0),
    ("Praises itself.", -1.0),
    ('Mentions "very".', -1.0),
    ('Mentions "I must say".', -1.0),
)
"""What rules may propose, besides the words of the prompt."""


async def propose(
    judge: JudgeService,
    task: ChatTask,
    replies: Sequence[str],
    *,
    active: Sequence[Criterion],
    known: Sequence[str],
    most: int,
) -> list[Proposal]:
    """Return new criteria for *task* from *replies*, at most *most*.

    Args:
        active: generated criteria in use; the judge sees them and the persistent ones.
        known: texts of all criteria so far.

    Raises:
        InfrastructureError: the judge did not write any that can be read.
    """
    if not most:
        return []
    if judge.offline:
        return by_rules(task, replies, known)[:most]
    existing = "\n".join(
        f"- {c.text} ({'quality' if c.weight > 0 else 'fault'})" for c in (*task.criteria, *active)
    )
    texts = [
        ("prompt", text_of(task.prompt)),
        *((f"reply {n}", reply) for n, reply in enumerate(replies, 1)),
    ]
    rows = await judge.write(
        INSTRUCTION + (existing or "(none)"), texts, Texts(("criterion", "kind"), most)
    )
    proposals: list[Proposal] = []
    for row in rows:
        if row["kind"] not in ("quality", "fault"):
            raise UnreadableVerdict(
                f"a new criterion is of the kind {row['kind'][:50]!r}; expected quality or fault"
            )
        text = " ".join(row["criterion"].split())
        if usable(text):
            proposals.append((text, 1.0 if row["kind"] == "quality" else -1.0))
    return proposals


def by_rules(task: ChatTask, replies: Sequence[str], known: Sequence[str]) -> list[Proposal]:
    """Return sentences of the grammar that some replies meet and others do not, the most divided
    first.
    """
    words = dict.fromkeys(re.findall(r"[A-Za-z]{4,}", text_of(task.prompt)))
    candidates = [*CATALOGUE, *((f'Mentions "{word}".', 1.0) for word in words)]
    divided: list[tuple[float, Any]] = []
    for text, weight in candidates:
        spread = pstdev([float(bool(check(text, reply))) for reply in replies])
        if spread > 0 and text not in known:
            divided.append((spread, (text, weight)))
    return [proposal for _, proposal in sorted(divided, key=lambda pair: -pair[0])]
