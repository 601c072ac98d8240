"""Names of a recipe become components."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import UnknownNameError
from quintain.recipe.resolve import with_model


@pytest.mark.parametrize("engine", ["openai", "openai-tokens", "vllm-server"])
def test_a_model_that_a_server_knows_is_no_run(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that asks a server takes the server's name of a model."""
    monkeypatch.chdir(tmp_path)

    assert with_model(engine, {"model": "served"}).args == {"model": "served"}


def test_a_model_of_this_machine_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnknownNameError, match="no run 'served'"):
        with_model("embedded", {"model": "served"})
