"""Tool-call formats: calls, results and descriptions of tools as text, and the way back."""

from __future__ import annotations

from .adapter import TokenizerFormat, Treatment
from .gemma import Gemma
from .harmony import Harmony
from .json_formats import DeepSeek, FunctionaryV32, LlamaJSON, Mistral
from .marked import (
    Apertus,
    Apriel,
    Cohere,
    Functionary,
    GigaChat,
    Granite,
    Hermes,
    InternLM,
    Jamba,
    Kimi,
    Nemotron,
)
from .pythonic import LFM2, Pythonic
from .tool_format import Auto, ToolFormat, detect, formats, tool_format
from .values import fault_of, mismatch, unknown_types
from .xml_formats import GLM, Invoke, Qwen3Coder, SeedOSS, Tags

__all__ = [
    "GLM",
    "LFM2",
    "Apertus",
    "Apriel",
    "Auto",
    "Cohere",
    "DeepSeek",
    "Functionary",
    "FunctionaryV32",
    "Gemma",
    "GigaChat",
    "Granite",
    "Harmony",
    "Hermes",
    "InternLM",
    "Invoke",
    "Jamba",
    "Kimi",
    "LlamaJSON",
    "Mistral",
    "Nemotron",
    "Pythonic",
    "Qwen3Coder",
    "SeedOSS",
    "Tags",
    "TokenizerFormat",
    "ToolFormat",
    "Treatment",
    "detect",
    "fault_of",
    "formats",
    "mismatch",
    "tool_format",
    "unknown_types",
]
