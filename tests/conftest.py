"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before any library is imported: no network, no telemetry, no window, and threads that leave a core to the rest.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data that ``QUINTAIN_DATA`` names; the test is skipped without it."""
    folder = os.environ.get("QUINTAIN_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("QUINTAIN_DATA does not name a folder with real data")
    return Path(folder)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugin switches of the caller's shell do not reach the tests."""
    for name in ("QUINTAIN_PLUGINS", "QUINTAIN_STRICT_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
