"""A judge by what a command line says: a server, a recipe, or neither."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from quintain.errors import UsageError

from .service import JudgeService


def judge_named(url: str = "", model: str = "", recipe: Path | None = None) -> JudgeService:
    """Return the judge behind *url*, that of ``[services.judge]`` in the file *recipe*, or else
    rules; it is not started.

    Raises:
        UsageError: both are given, the recipe has no such judge, or a setting is wrong.
    """
    if recipe is not None and (url or model):
        raise UsageError("the recipe has the judge's settings; leave out its server and model")
    if model and not url:
        raise UsageError(f"the judge's model {model!r} belongs to a server; give its URL, too")
    args: dict[str, Any] = {"base_url": url, "model": model} if url else {}
    try:
        return TypeAdapter(JudgeService).validate_python(_of_recipe(recipe) if recipe else args)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        raise UsageError(
            f"the judge's setting {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from e


def _of_recipe(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(f"{path} cannot be read: {e}") from e
    table = data.get("services", {}).get("judge", {})
    if table.get("use") not in ("judge", "quintain-judge/judge"):
        raise UsageError(
            f'{path}: [services.judge] with use = "judge" is needed; a judge of a run needs its run'
        )
    return dict(table.get("args", {}))
