"""Multi-hop questions that are answered by searching a corpus: generated facts, SQuAD, own
files.
"""

from __future__ import annotations

from .answers import CitedAnswer, read_answer
from .desk import ToolServer, ToolSession
from .environment import Search
from .rewards import answer_f1, answer_format, citation, exact_match, tool_calls
from .server import SearchServer
from .service import SearchService
from .tasks import Hop, SearchResult, SearchTask, Seen

__all__ = [
    "CitedAnswer",
    "Hop",
    "Search",
    "SearchResult",
    "SearchServer",
    "SearchService",
    "SearchTask",
    "Seen",
    "ToolServer",
    "ToolSession",
    "answer_f1",
    "answer_format",
    "citation",
    "exact_match",
    "read_answer",
    "tool_calls",
]
