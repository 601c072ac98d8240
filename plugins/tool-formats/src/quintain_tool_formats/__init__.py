"""Tool-call formats: calls, results and descriptions of tools as text, and the way back."""

from __future__ import annotations

from .adapter import TokenizerFormat, Treatment
from .harmony import Harmony
from .json_formats import DeepSeek, Hermes, LlamaJSON, Mistral
from .pythonic import Pythonic
from .tool_format import Auto, ToolFormat, detect, formats, tool_format
from .values import fault_of, mismatch
from .xml_formats import GLM, Qwen3Coder, Tags

__all__ = [
    "GLM",
    "Auto",
    "DeepSeek",
    "Harmony",
    "Hermes",
    "LlamaJSON",
    "Mistral",
    "Pythonic",
    "Qwen3Coder",
    "Tags",
    "TokenizerFormat",
    "ToolFormat",
    "Treatment",
    "detect",
    "fault_of",
    "formats",
    "mismatch",
    "tool_format",
]
