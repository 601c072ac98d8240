"""Sandboxes for Quintain: programs that a policy wrote run apart from the trainer, with limits that are probed."""

from __future__ import annotations

from .bubblewrap import Bubblewrap
from .docker import Docker
from .program import Program, ProgramLimits, ProgramResult, Usage
from .protocol import AXES, Guarantee, ProbedSandbox
from .running import LineTimeout, LineTooLong, ReadError, RunningProgram
from .session import Interpreter, PythonOutcome, Session, SessionFileError

__all__ = [
    "AXES",
    "Bubblewrap",
    "Docker",
    "Guarantee",
    "Interpreter",
    "LineTimeout",
    "LineTooLong",
    "ProbedSandbox",
    "Program",
    "ProgramLimits",
    "ProgramResult",
    "PythonOutcome",
    "ReadError",
    "RunningProgram",
    "Session",
    "SessionFileError",
    "Usage",
]
