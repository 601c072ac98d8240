"""Seconds of one execution in smolagents' `LocalPythonExecutor`, which interprets the syntax tree
in its own process.

A line of JSON per line of input. It is no sandbox (its documentation says so), and there is no
process to start.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time

from smolagents.local_python_executor import LocalPythonExecutor

print(json.dumps({"version": importlib.metadata.version("smolagents")}), flush=True)
for code in sys.stdin:
    began = time.perf_counter()
    executor = LocalPythonExecutor(additional_authorized_imports=[])
    executor.send_tools({})
    output = executor(json.loads(code))
    print(json.dumps({"seconds": time.perf_counter() - began, "said": output.logs}), flush=True)
