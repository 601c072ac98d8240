"""The learner `tinker` where Tinker's SDK is not installed."""

from __future__ import annotations

import sys

import pytest

from quintain.errors import UsageError
from quintain_learners.tinker import Tinker


def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(UsageError, match=r"pip install 'quintain-learners\[tinker\]'"):
        Tinker()
