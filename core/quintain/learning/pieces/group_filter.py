"""Admission: which complete groups train. Reads the verdict, so that shaping cannot make a solved group look
undecided.
"""

from __future__ import annotations

from ...interfaces.algorithm import Candidate
from ...interfaces.pieces import admission
from .advantages import TOLERANCE, is_constant


@admission
def minimum(candidate: Candidate, *, members: int = 2) -> str:
    """At least *members* valid members."""
    valid = len(candidate.verdicts)
    return "" if valid >= members else f"{valid} of {candidate.requested} members valid, {members} needed"


@admission
def varied(candidate: Candidate, *, members: int = 2, tolerance: float = TOLERANCE, total: bool = False) -> str:
    """At least *members* valid members, and verdicts that are not all the same (dynamic sampling; DAPO, 2503.14476,
    equation 11).

    With *total*, a group whose verdicts agree is refused only if its totals agree, too, so that shaping, by length say,
    still acts on tasks that are solved.
    """
    refused = str(minimum(candidate, members=members))
    if refused or not is_constant(candidate.verdicts, tolerance):
        return refused
    if total:
        return "all rewards equal" if is_constant(candidate.totals, tolerance) else ""
    return "all verdicts equal"
