"""Chat templates in Jinja that go on where they left off, so that a turn costs what it adds.

A template is a program over all messages. Nearly all of its work is one loop over them, and a body
of a loop of Jinja cannot change what stands outside of it, except for the attributes of a
``namespace``. So a loop over messages that has grown may begin behind the passes whose results are
known, if everything that these passes could read is what it was: the variables at the start of the
loop, their messages, and nothing that further messages change, such as ``loop.last`` in the last
pass or the number of messages. All of it is observed while the template runs, so that the text is
that of a whole rendering for any template. What cannot be observed is rendered as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from operator import is_
from typing import Any

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.runtime import Context, Macro, Undefined
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_STEPS, _PLACE = "quintain_steps", "quintain_loop"
_OF_LOOP = frozenset(
    {"index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem"}
)
_IMPURE = frozenset({"strftime_now", "cycler", "joiner", "lipsum", "random"})
"""What does not give the same for the same arguments."""


class NotObservableError(Exception):
    """The template does something that cannot be observed."""


@lru_cache(maxsize=16)
def observable(source: str) -> Template | None:
    """Return the template *source*, compiled so that `Rendering` can observe its loops; ``None`` if
    it cannot.
    """
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        return _observable(source, _compile_jinja_template(source).environment)
    except (ImportError, TemplateError, NotObservableError):
        return None


def _observable(source: str, environment: Environment) -> Template:
    tree = environment.parse(source)
    for kind in (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block):
        if tree.find(kind) is not None:
            raise NotObservableError
    for part in (*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)):
        names = {n.name for n in part.find_all(nodes.Name)} | {
            f.name for f in part.find_all(nodes.Filter)
        }
        if names & _IMPURE:
            raise NotObservableError
    _observe(tree.body, count())
    return environment.from_string(tree)


def _observe(body: Sequence[nodes.Node], numbers: Iterator[int]) -> None:
    """Let the loops of *body* that no other loop is around take their items from `_STEPS`."""
    for node in body:
        if isinstance(node, nodes.If):
            for part in (node.body, node.else_, *(other.body for other in node.elif_)):
                _observe(part, numbers)
        elif (
            isinstance(node, nodes.For)
            and isinstance(node.iter, nodes.Name)
            and not (node.test or node.else_ or node.recursive)
        ):
            place = _Place()
            node.body = [place.visit(child) for child in node.body]
            target = [node.target, nodes.Name(_PLACE, "store")]
            node.target = nodes.Tuple(target, "store")
            arguments = [nodes.ContextReference(), nodes.Const(next(numbers)), node.iter]
            steps = nodes.Name(_STEPS, "load")
            node.iter = nodes.Call(steps, arguments, [], None, None)


class _Place(NodeTransformer):
    """Gives the body of a loop `_Pass` in place of ``loop``."""

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if isinstance(node.node, nodes.Name) and node.node.name == "loop":
            if node.attr not in _OF_LOOP:
                raise NotObservableError
            node.node = nodes.Name(_PLACE, "load")
            return node
        return self.generic_visit(node)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name == "loop":
            raise NotObservableError
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.else_ or node.recursive:
            raise NotObservableError
        node.iter = self.visit(node.iter)  # its body has a loop of its own
        return node


@dataclass(kw_only=True)
class _Checkpoint:
    """Passes of a loop that need not run again.

    Attributes:
        start: the variables before the loop, and which of the messages it begins with.
        passes: number of passes that no later message changes.
        namespaces: the attributes of each namespace after them.
        span: of the characters that they wrote.
    """

    start: tuple[int, dict[str, Any]]
    passes: int
    namespaces: dict[str, dict[str, Any]]
    span: tuple[int, int]


@dataclass
class Rendering:
    """Renders one conversation again and again while it grows.

    Args:
        template: of `observable`.
        variables: what the template gets beside the messages; always the same objects.
    """

    template: Template
    variables: Mapping[str, Any]
    _messages: Sequence[Any] = ()
    _checkpoints: dict[int, _Checkpoint] = field(default_factory=dict)

    def render(self, messages: Sequence[Mapping[str, Any]], known: str) -> str:
        """Return the conversation as text.

        Args:
            messages: plain data that nobody changes; the same object stands for the same message.
            known: a text that begins with the last one that was returned.

        Raises:
            Exception: the template refuses the messages or cannot be observed with them.
        """
        grown = len(messages) >= len(self._messages) and all(map(is_, messages, self._messages))
        run = _Run(messages, known, self._checkpoints if grown else {})
        context = self.template.new_context(
            {**self.variables, "messages": Messages(run, 0), _STEPS: run.steps}
        )
        for piece in self.template.root_render_func(context):
            run.write(piece)
        self._messages, self._checkpoints = messages, run.reached
        return "".join(run.pieces)


class _Run:
    """One rendering.

    Attributes:
        open: the pass at hand has read what later messages change.
    """

    def __init__(
        self, messages: Sequence[Any], known: str, checkpoints: Mapping[int, _Checkpoint]
    ) -> None:
        self.messages, self._known, self._old = messages, known, checkpoints
        self.reached: dict[int, _Checkpoint] = {}
        self.pieces: list[str] = []
        self._written = 0  # characters
        self.open = False

    def write(self, piece: str) -> None:
        self.pieces.append(piece)
        self._written += len(piece)

    def steps(self, context: Context, number: int, items: Any) -> Iterator[tuple[Any, _Pass]]:
        """Yield the items of loop *number*, each with its place, from the first that has to run."""
        if not isinstance(items, Messages):
            run = _Run([*items], "", {})
            yield from ((item, _Pass(run, 0, i)) for i, item in enumerate(run.messages))
            return
        before, reached = (items.start, _state(context)), self._written
        old = self._old.get(number)
        if old is not None and _same(old.start, before):
            self.write(self._known[slice(*old.span)])
            for name, attributes in old.namespaces.items():
                current = _attributes(context.vars[name])
                current.clear()
                current.update(attributes)
        else:
            old = None
        checkpoint = _Checkpoint(
            start=before,
            passes=old.passes if old else 0,
            namespaces=_namespaces(context),
            span=(reached, self._written),
        )
        stable = True
        for i in range(checkpoint.passes, len(self.messages) - items.start):
            self.open = False
            yield self.messages[items.start + i], _Pass(self, items.start, i)
            stable = stable and not self.open
            if stable:
                checkpoint.passes = i + 1
                checkpoint.namespaces = _namespaces(context)
                checkpoint.span = (reached, self._written)
        self.reached[number] = checkpoint


class Messages:
    """The messages from number *start* on, as a template reads them. It has what does not depend on
    later messages, and notes what does; all else of a list is an error, after which the whole is
    rendered as a list.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, run: _Run, start: int) -> None:
        self._run, self.start = run, start

    def __eq__(self, other: object) -> bool:
        raise NotObservableError

    def __len__(self) -> int:
        self._run.open = True
        return len(self._run.messages) - self.start

    def __bool__(self) -> bool:
        some = len(self._run.messages) > self.start
        self._run.open |= not some
        return some

    def __iter__(self) -> Iterator[Any]:
        self._run.open = True
        return iter(self._run.messages[self.start :])

    def __reversed__(self) -> Iterator[Any]:
        self._run.open = True
        return iter(self._run.messages[self.start :][::-1])

    def __getitem__(self, key: Any) -> Any:
        messages, start = self._run.messages, self.start
        if isinstance(key, slice):
            first, end = key.start or 0, key.stop
            if key.step in (None, 1) and 0 <= first <= len(messages) - start:
                if end is None:
                    return Messages(self._run, start + first)
                if 0 <= end <= len(messages) - start:
                    return messages[start + first : start + end]
            self._run.open = True
            return messages[start:][key]
        if not 0 <= key < len(messages) - start:
            self._run.open = True
            return messages[start:][key]
        return messages[start + key]


class _Pass:
    """What ``loop`` is in a pass over *run*'s messages from number *start* on."""

    def __init__(self, run: _Run, start: int, index0: int) -> None:
        self._run, self._start = run, start
        self.index0, self.index, self.first = index0, index0 + 1, not index0

    @property
    def last(self) -> bool:
        is_last = self._start + self.index == len(self._run.messages)
        self._run.open |= is_last
        return is_last

    @property
    def length(self) -> int:
        self._run.open = True
        return len(self._run.messages) - self._start

    @property
    def revindex(self) -> int:
        return self.length - self.index0

    @property
    def revindex0(self) -> int:
        return self.length - self.index

    @property
    def previtem(self) -> Any:
        place = self._start + self.index0 - 1
        return Undefined("there is no previous item") if self.first else self._run.messages[place]

    @property
    def nextitem(self) -> Any:
        place = self._start + self.index
        return Undefined("there is no next item") if self.last else self._run.messages[place]


def _attributes(namespace: Namespace) -> dict[str, Any]:
    """Return what *namespace* holds. Jinja keeps it under a name of its own and offers no other
    way to all of it.
    """
    attributes: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return attributes


def _state(context: Context) -> dict[str, Any]:
    """Return the variables that the template has set; macros are the same in every rendering."""
    return {
        name: dict(_attributes(value)) if isinstance(value, Namespace) else value
        for name, value in context.vars.items()
        if not isinstance(value, Macro)
    }


def _namespaces(context: Context) -> dict[str, dict[str, Any]]:
    return {
        name: dict(_attributes(value))
        for name, value in context.vars.items()
        if isinstance(value, Namespace)
    }


def _same(a: Any, b: Any) -> bool:
    """Return whether a template cannot tell *a* from *b*; false where that is not known."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (str, int, float, bool)):
        return bool(a == b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, Messages):
        # `render` has checked that both begin with the same messages.
        return bool(a.start == b.start)
    return isinstance(a, Undefined)
