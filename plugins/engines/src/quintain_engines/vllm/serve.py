"""``python -m quintain_engines.vllm.serve ARGS``: vLLM's server, which ends when the process that started
it does.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = os.environ.pop("QUINTAIN_VLLM_PARENT", "")
    if sys.platform == "linux" and parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit("the process that started this server has ended")
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
