"""Programming tasks with hidden tests: functions, contest programs and modules with a pytest suite."""

from __future__ import annotations

from .extract import Extraction, extract
from .tasks import Case, CodeTask, Kind

__all__ = ["Case", "CodeTask", "Extraction", "Kind", "extract"]
