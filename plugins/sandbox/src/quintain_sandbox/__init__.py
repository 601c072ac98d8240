"""Sandboxes for Quintain: programs that a policy wrote run apart from the trainer, with limits that
are probed.
"""

from __future__ import annotations

from .axes import AXES, Axes, Guarantee
from .best import BestSandbox
from .bubblewrap import Bubblewrap
from .build_context import BuildContext, BuildError, context_files
from .containers import Containers
from .docker import Docker
from .guard import guarded
from .landlock import Landlock
from .opened import Box, Finish, open_streams
from .program import Program, ProgramLimits, ProgramResult, Usage
from .protocol import ProbedSandbox
from .remote import RemoteSandbox
from .rlimits import Rlimits
from .running import LineTimeout, LineTooLong, ReadError, RunningProgram
from .session import Interpreter, PythonOutcome, SandboxSession, SessionFileError
from .task_container import CommandResult, TaskContainer, TaskLimits
from .tools import python_tool

__all__ = [
    "AXES",
    "Axes",
    "BestSandbox",
    "Box",
    "Bubblewrap",
    "BuildContext",
    "BuildError",
    "CommandResult",
    "Containers",
    "Docker",
    "Finish",
    "Guarantee",
    "Interpreter",
    "Landlock",
    "LineTimeout",
    "LineTooLong",
    "ProbedSandbox",
    "Program",
    "ProgramLimits",
    "ProgramResult",
    "PythonOutcome",
    "ReadError",
    "RemoteSandbox",
    "Rlimits",
    "RunningProgram",
    "SandboxSession",
    "SessionFileError",
    "TaskContainer",
    "TaskLimits",
    "Usage",
    "context_files",
    "guarded",
    "open_streams",
    "python_tool",
]
