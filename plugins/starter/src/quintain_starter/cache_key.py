"""The cache key of a default model: a hash of all that the warm start sees of the environments and
their rewards.

Fields, tasks and demonstrations (the first 8,192; where episodes are played for them, their tasks)
enter by value. Code enters by the content of its source files: all those of a package, or a single
file and those that it imports from its own folder. The code of Quintain itself is left out;
`quintain_starter.source.FORMAT` stands for it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from quintain import Environment
from quintain.evaluation import tasks_of
from quintain.interfaces import yielded
from quintain_offline.sft import plays, written_demonstrations

MOST_EXAMPLES = 8192
"""Demonstrations that enter by value; making more of them takes seconds where they are
generated.
"""

_NOT_HASHED = {"quintain", *sys.stdlib_module_names}


@dataclass(frozen=True, kw_only=True)
class Values:
    """The demonstrations and tasks of environments, as they enter each key of these environments.

    Attributes:
        text: what is hashed.
        defining: the classes and functions that are part of them, whose code matters.
    """

    text: bytes
    defining: Mapping[Any, None]


def values_of(
    environments: Sequence[Environment[Any, Any]], *, examples: int, tasks: int
) -> Values:
    """Draw what enters the keys of *environments* by value, which takes seconds where much has to
    be generated.

    Args:
        examples: number of demonstrations of each environment that can train.
        tasks: number of tasks of ``dev`` that measure accuracy.
    """
    text = bytearray()
    defining: dict[Any, None] = {}
    for environment in environments:
        for demonstration in islice(
            written_demonstrations(environment), min(examples, MOST_EXAMPLES)
        ):
            text += f"{demonstration!r}\n".encode(errors="replace")  # messages and text
        if plays(environment):  # an episode is a function of its task and of code that enters, too
            for task in islice(
                yielded(environment, "tasks", "train"), min(examples, MOST_EXAMPLES)
            ):
                text += json.dumps(_plain(task, defining)).encode()
        for task in tasks_of(environment, "dev", tasks):
            text += json.dumps(_plain(task, defining)).encode()
    return Values(text=bytes(text), defining=defining)


def cache_key(
    environments: Sequence[Environment[Any, Any]],
    services: Any,
    values: Values,
    *,
    code: bool = True,
    **depends_on: Any,
) -> str:
    """Return 16 hexadecimal digits for everything that a model trained on *environments* depends
    on.

    Args:
        services: the service chosen for each slot, with its arguments.
        values: `values_of` the same environments.
        code: whether source files enter, too.
        depends_on: further settings.
    """
    digest = hashlib.sha256()
    defining: dict[Any, None] = {}  # the classes and functions whose code matters, in order
    settings = {"services": services, **depends_on}
    for environment in environments:
        arguments = {f.name: getattr(environment, f.name) for f in fields(environment)}  # type: ignore[arg-type]
        also = {
            name: getattr(environment, name) for name in ("reward", "limits", "system", "early")
        }
        settings[f"environment {len(settings)}"] = _plain(
            [type(environment), arguments, also], defining
        )
        defining |= dict.fromkeys(type(environment).__mro__)
    digest.update(json.dumps(_plain(settings, defining), sort_keys=True).encode())
    digest.update(values.text)
    defining |= values.defining
    for line in sorted(set(_code_of(defining))) if code else ():
        digest.update(line.encode())
    return digest.hexdigest()[:16]


def _plain(value: Any, defining: dict[Any, None]) -> Any:
    """Return *value* as JSON that is the same in every process; classes and functions in it are
    added to *defining*.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, defining) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, defining) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(v, defining), sort_keys=True) for v in value)
    if isinstance(value, (bytes, Path)):
        return str(value)
    kind = value if isinstance(value, (type, FunctionType)) else type(value)
    defining[kind] = None
    name = f"{kind.__module__}.{kind.__qualname__}"
    if is_dataclass(value) and not isinstance(value, type):
        return [
            name,
            {
                f.name: _plain(getattr(value, f.name, None), defining)
                for f in fields(value)
                # A setting that is new, such as a further limit, changes no model where it is off.
                if f.compare and not (f.default is None and getattr(value, f.name, None) is None)
            },
        ]
    dump = getattr(value, "model_dump", None)  # of pydantic
    return (
        [name, _plain(dump(), defining)] if callable(dump) and not isinstance(value, type) else name
    )


def _code_of(defining: Iterable[Any]) -> Iterator[str]:
    """Yield a line for each source file that defines one of *defining*; for what has no file, the
    code itself.
    """
    seen: set[str] = set()
    left = [(o.__module__, o) for o in defining]
    while left:
        name, thing = left.pop()
        top, module = name.partition(".")[0], sys.modules.get(name)
        if top in _NOT_HASHED and top != "__main__":
            continue
        file = Path(getattr(module, "__file__", None) or "")
        if file.suffix != ".py" or not file.is_file():
            yield f"{name}.{getattr(thing, '__qualname__', '')} {_compiled(thing)}\n"  # a notebook
            continue
        root = getattr(sys.modules.get(top), "__path__", None)
        key = top if root else str(file)
        if key in seen:
            continue
        seen.add(key)
        if root:
            for folder in map(Path, root):
                yield from (
                    _line(f"{top}/{p.relative_to(folder)}", p) for p in folder.rglob("*.py")
                )
        else:
            yield _line(file.name, file)
            left += [(n, None) for n in _imported(module) if _beside(n, file)]


def _line(name: str, file: Path) -> str:
    return f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"


def _imported(module: ModuleType | None) -> set[str]:
    """Return the names of the modules that the names of *module* come from."""
    values = vars(module).values() if module else ()
    return {
        v.__name__ if isinstance(v, ModuleType) else str(getattr(v, "__module__", ""))
        for v in values
    }


def _beside(name: str, file: Path) -> bool:
    other = getattr(sys.modules.get(name), "__file__", None) or ""
    return file.parent in (Path(other).parent, Path(other).parent.parent) and Path(other) != file


def _compiled(thing: Any) -> str:
    """Return the bytecode of a function, or of the functions of a class."""
    members = vars(thing).values() if inspect.isclass(thing) else [thing]
    functions = [
        f for m in members if isinstance(f := inspect.unwrap(m) if callable(m) else m, FunctionType)
    ]
    return hashlib.sha256("".join(_bytecode(f.__code__) for f in functions).encode()).hexdigest()


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"
