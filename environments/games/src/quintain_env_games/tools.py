"""The environment `tools`: carry out orders in a store by calling its tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Score,
    Task,
    ToolCall,
    control,
    reward,
)
from quintain.errors import UsageError

from .calculator import calculate
from .habits import slips
from .splits import problems

GOODS = ("nuts", "bolts", "pins", "caps", "rods")
PLAIN = ("put", "take")
LONG = ("boxes", "all")
"""Kinds of steps: of one call, and of two."""
MOST = 999
"""Items of a kind that the store can hold, and that a call can move."""
Stock = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an order: ``put`` or ``take`` a *count*, put as many *boxes* of *count*, or take
    ``all``.
    """

    kind: str
    good: str
    count: int = 0
    boxes: int = 0

    @property
    def text(self) -> str:
        if self.kind == "boxes":
            return f"Put {self.boxes} boxes of {self.count} {self.good}."
        return (
            f"Take all {self.good}."
            if self.kind == "all"
            else f"{self.kind.title()} {self.count} {self.good}."
        )

    def after(self, stock: Stock) -> Stock:
        """Return the stock after the step."""
        change = {
            "put": self.count,
            "take": -self.count,
            "boxes": self.boxes * self.count,
            "all": -stock[self.good],
        }
        return {**stock, self.good: stock[self.good] + change[self.kind]}


@dataclass(frozen=True, kw_only=True)
class Order(Task):
    """Steps to carry out on a *stock* that the prompt does not show; the `answer` is the stock that
    they lead to.
    """

    stock: Stock
    steps: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The stock at the end, the number of *calls*, and how many of them failed."""

    stock: Stock
    calls: int
    errors: int


@reward(range=(0, 1))
def right_stock(rollout: Rollout[Order, Stored]) -> Score:
    """Return 1 where the stock at the end is that of the order, else 0."""
    result = rollout.result
    return Score(value=float(result.stock == rollout.task.answer), reason=f"stock {result.stock}")


@dataclass
class Store:
    """The store of one episode; its methods are tools. A call that fails changes nothing and says
    why.
    """

    stock: Stock
    calls: int = 0
    errors: int = 0

    def put(self, item: str, count: int) -> str:
        """Add items."""
        return self._changed(item, count, count)

    def take(self, item: str, count: int) -> str:
        """Remove items."""
        return self._changed(item, count, -count)

    def count(self, item: str) -> str:
        """Number of items."""
        self.calls += 1
        return str(self.stock[item]) if item in self.stock else self._failed(f"no item {item!r}")

    def calculate(self, text: str) -> str:
        """Sum or product."""
        self.calls += 1
        try:
            return str(calculate(text))
        except ValueError as e:
            return self._failed(str(e))

    def _changed(self, item: str, count: int, change: int) -> str:
        self.calls += 1
        if item not in self.stock:
            return self._failed(f"no item {item!r}")
        if not 1 <= count <= MOST:
            return self._failed(f"count is not 1 to {MOST}")
        if not 0 <= self.stock[item] + change <= MOST:
            return self._failed(f"there are {self.stock[item]}")
        self.stock[item] += change
        return "ok"

    def _failed(self, reason: str) -> str:
        self.errors += 1
        return f"error: {reason}"


class Tools(Environment[Order, Stored]):
    """Carry out an order in a store by calls of its tools: `put`, `take`, `count` and `calculate`.

    The store of an episode is an object whose methods are the tools; the prompt does not show the
    stock. A step takes one call or two: to take all of an item it has to be counted, and boxes of
    several items have to be multiplied.

    Attributes:
        steps: numbers of steps of an order; each task draws one.
        plain: share of the steps that one call carries out.
        slips: share of the steps of two calls for which the demonstrations make one: they put a
            single box, or take a single item.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the orders drawn. Which split an order belongs to does not depend on it.
    """

    reward = right_stock
    limits = Limits(turns=12)

    steps: tuple[int, ...] = (1, 2)
    plain: float = 0.4
    slips: float = 0.6
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.steps or not all(1 <= n <= len(GOODS) for n in self.steps) or self.size < 1:
            raise UsageError(
                f"tools: steps {self.steps}, size {self.size}; expected 1 to {len(GOODS)}, and 1 "
                f"or more"
            )
        if not (0 <= self.plain <= 1 and 0 <= self.slips <= 1):
            raise UsageError(
                f"tools: plain {self.plain}, slips {self.slips}; expected shares, 0 to 1"
            )

    def tasks(self, split: str) -> Iterable[Order]:
        for stock, steps in problems(self._draw, split=split, size=self.size, seed=self.seed):
            answer = dict(stock)
            for step in steps:
                answer = step.after(answer)
            calls = sum(1 if step.kind in PLAIN else 2 for step in steps)
            prompt = " ".join(step.text for step in steps)
            yield Order(prompt=prompt, answer=answer, level=calls, stock=dict(stock), steps=steps)

    def _draw(self, rng: Random) -> tuple[tuple[tuple[str, int], ...], tuple[Step, ...]]:
        stock = {good: rng.randint(10, 49) for good in GOODS}
        steps = []
        for good in rng.sample(GOODS, rng.choice(self.steps)):
            kind = rng.choice(PLAIN if rng.random() < self.plain else LONG)
            count = rng.randint(2, 9) if kind != "all" else 0
            steps.append(
                Step(
                    kind=kind,
                    good=good,
                    count=count,
                    boxes=rng.randint(2, 9) if kind == "boxes" else 0,
                )
            )
        return tuple(stock.items()), tuple(steps)

    async def rollout(self, task: Order, agent: Agent) -> Stored:
        store = Store(dict(task.stock))
        agent.user(task.prompt)
        await agent.run(store.put, store.take, store.count, store.calculate)
        return Stored(stock=store.stock, calls=store.calls, errors=store.errors)

    @control()
    def demonstrator(self, task: Order, messages: Sequence[Message]) -> str | Reply:
        """Step by step; as often as `slips` says, one call for a step that needs two."""
        return self._next(task, messages, self.slips)

    @control(scores="max")
    def oracle(self, task: Order, messages: Sequence[Message]) -> str | Reply:
        """Step by step."""
        return self._next(task, messages, 0.0)

    @control(scores="max")
    def all_at_once(self, task: Order, messages: Sequence[Message]) -> str | Reply:
        """Make all changes in one turn, as someone who knows the stock."""
        if messages[-1].role == "tool":
            return "done"
        changes = {
            good: task.answer[good] - n for good, n in task.stock.items() if task.answer[good] != n
        }
        calls = [
            call("put" if n > 0 else "take", item=good, count=abs(n)) for good, n in changes.items()
        ]
        return Reply(calls=tuple(calls))

    @control(scores="min")
    def nop(self, task: Order, messages: Sequence[Message]) -> str:
        """Reply with nothing: an order always changes the stock."""
        return ""

    @control(scores="min")
    def claims(self, task: Order, messages: Sequence[Message]) -> str:
        """Say that it is done, and write what the tools would have answered."""
        return f"<tool_response>\nok\n</tool_response>\ndone: {task.answer}"

    @control(scores="min")
    def only_reads(self, task: Order, messages: Sequence[Message]) -> str | Reply:
        """Count everything and change nothing."""
        if messages[-1].role == "tool":
            return "done"
        return Reply(calls=tuple(call("count", item=good) for good in GOODS))

    @control(scores="min")
    def impossible(self, task: Order, messages: Sequence[Message]) -> str | Reply:
        """Take more than there is, of every item."""
        if messages[-1].role == "tool":
            return "done"
        return Reply(calls=tuple(call("take", item=good, count=MOST) for good in GOODS))

    def _next(self, task: Order, messages: Sequence[Message], share: float) -> str | Reply:
        """Return the call that carries on, or the last word; the calls of the steps so far are read
        from the conversation.
        """
        calls = [c for m in messages for c in m.calls if c.name in ("put", "take")]
        if len(calls) == len(task.steps):
            return "done"
        step, last = task.steps[len(calls)], messages[-1]
        if step.kind in PLAIN:
            return Reply(calls=(call(step.kind, item=step.good, count=step.count),))
        if last.role == "tool" and last.name in ("count", "calculate"):
            return Reply(
                calls=(
                    call(
                        "take" if step.kind == "all" else "put",
                        item=step.good,
                        count=int(last.content),
                    ),
                )
            )
        if slips(task, messages, share):
            name, count = ("take", 1) if step.kind == "all" else ("put", step.count)
            return Reply(calls=(call(name, item=step.good, count=count),))
        if step.kind == "all":
            return Reply(calls=(call("count", item=step.good),))
        return Reply(calls=(call("calculate", text=f"{step.boxes}*{step.count}"),))


def call(name: str, **arguments: str | int) -> ToolCall:
    """Return a call without an id: an engine numbers its calls."""
    return ToolCall(name=name, arguments=arguments)
