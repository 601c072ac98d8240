"""Programming tasks with hidden tests: functions, contest programs and modules with a pytest
suite.
"""

from __future__ import annotations

from .environment import Code, grade_reply, passes_tests
from .extract import Extraction, extract
from .grading import Grade, Grader
from .outcomes import OUTCOMES
from .rows import task_of
from .tasks import Case, CodeTask, Kind

__all__ = [
    "OUTCOMES",
    "Case",
    "Code",
    "CodeTask",
    "Extraction",
    "Grade",
    "Grader",
    "Kind",
    "extract",
    "grade_reply",
    "passes_tests",
    "task_of",
]
