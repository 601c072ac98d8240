"""The default model: small, Qwen3-shaped and trained here, so that a first run downloads nothing.

`source` is the model source `default` with its cache, `warm_start` the supervised training on
demonstrations, `architecture` the network and the tokenizer before any training.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["arithmetic_starter", "general_starter"]


def general_starter() -> Path:
    """Return the folder of the general starter, which comes with the package: warm starts begin
    from it.
    """
    return Path(__file__).parent / "general_model"


def arithmetic_starter() -> Path:
    """Return the folder of the model that the quickstart trains, which comes with the package: it
    adds columns correctly and forgets about half of the carries.
    """
    (folder,) = (Path(__file__).parent / "models").glob("arithmetic-*")
    return folder
