"""Tool-call formats: calls, results and descriptions of tools as text, and the way back."""

from __future__ import annotations

from .adapter import TokenizerFormat, Treatment
from .detection import Auto, detect, formats, tool_format
from .harmony import Harmony
from .json_formats import DeepSeek, Hermes, LlamaJSON, Mistral
from .pythonic import Pythonic
from .tool_format import ToolFormat
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
    "formats",
    "tool_format",
]
