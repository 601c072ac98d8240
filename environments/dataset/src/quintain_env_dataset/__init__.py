"""Questions and answers of one's own as an environment: a file, a folder, or a data set of the
hub.
"""

from __future__ import annotations

from .environment import Dataset, Row, same_answer

__all__ = ["Dataset", "Row", "same_answer"]
