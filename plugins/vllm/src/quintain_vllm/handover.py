"""Tensors that are handed to an engine in this process, by key: nothing is copied on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

handed: dict[str, Mapping[str, Any]] = {}
