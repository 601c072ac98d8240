"""Sandboxes for Quintain: programs that a policy wrote run apart from the trainer, with limits that are probed."""

from __future__ import annotations

from .bubblewrap import Bubblewrap
from .protocol import AXES, Guarantee, ProbedSandbox, Program, ProgramLimits, ProgramResult, Usage

__all__ = ["AXES", "Bubblewrap", "Guarantee", "ProbedSandbox", "Program", "ProgramLimits", "ProgramResult", "Usage"]
