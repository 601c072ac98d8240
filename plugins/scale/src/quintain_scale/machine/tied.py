"""Run Python with the arguments after the first, and end with the process of that number:
``python -m quintain_scale.machine.tied PARENT -m my_package.rank``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG; a keeper then ends its server
    if os.getppid() != int(sys.argv[1]):  # it has ended before
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
