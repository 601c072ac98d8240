"""What a warm interpreter executes inside its box: imports, a wait, then the program as ``python3
-I`` would run it.

Until the program comes, nothing of a policy has run here. It runs alone: standard library only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def take(size: int) -> bytes:
    """Read exactly *size* bytes of the standard input, of which `sys.stdin` has read none."""
    import os

    pieces: list[bytes] = []
    while size:
        piece = os.read(0, min(size, 1 << 20))
        if not piece:
            os._exit(0)  # not needed any more
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def prepare(imports: list[str]) -> list[str]:
    """Import, wait for the program, write its files and set its limits; its command line."""
    import gc
    import importlib
    import json
    import math
    import os
    import resource

    for name in imports:
        importlib.import_module(name)
    gc.freeze()  # the collections at the end skip what the imports made
    os.write(1, b"ready\n")
    header: dict[str, Any] = json.loads(take(int.from_bytes(take(8), "big")))
    for name, size in header["files"]:
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(take(size))
    for kind, value in header["limits"].items():
        if kind == "CPU":  # the imports do not count
            usage = resource.getrusage(resource.RUSAGE_SELF)
            value += math.ceil(usage.ru_utime + usage.ru_stime)
        resource.setrlimit(getattr(resource, "RLIMIT_" + kind), (value, value))
    argv: list[str] = header["argv"]
    return argv


def become(argv: list[str]) -> None:
    """Run the program in a new ``__main__``, and end as the interpreter does after a script.

    The first ``__main__`` is frozen, so that the last collections would pass over what is in it.
    """
    import builtins
    import importlib.machinery
    import os
    import sys
    import types

    main = sys.modules["__main__"] = types.ModuleType("__main__")
    names = vars(main)
    names.update(
        __loader__=importlib.machinery.BuiltinImporter, __annotations__={}, __builtins__=builtins
    )
    sys.orig_argv[:] = argv
    if argv[2] == "-X":
        sys._xoptions["int_max_str_digits"] = "0"
        sys.set_int_max_str_digits(0)
        argv = argv[:2] + argv[4:]
    if argv[2] == "-c":
        sys.argv[:] = ["-c", *argv[4:]]
        file, source = "<string>", argv[3].encode("utf-8", "surrogateescape")
    else:
        sys.argv[:] = argv[2:]
        file = os.path.join(os.getcwd(), argv[2])
        names.update(__file__=file, __cached__=None)
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", file)
        with open(file, "rb") as script:
            source = script.read()
    try:
        exec(compile(source, file, "exec", dont_inherit=True), names)
    except SystemExit:
        raise
    except BaseException as e:  # noqa: BLE001 - shown as the interpreter shows it
        # Without the frame of this function, which no one started from a file would see.
        trace = None if e.__traceback__ is None else e.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(e), e, trace
        sys.excepthook(type(e), e.with_traceback(trace), trace)
        raise SystemExit(130 if type(e) is KeyboardInterrupt else 1) from None
