"""The environment `returns`: ask a customer, whom another engine plays, and then book what they
want.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from quintain import (
    Agent,
    Engine,
    Environment,
    Limits,
    Message,
    Rollout,
    Task,
    control,
    need,
    reward,
)
from quintain.errors import UsageError

from .customers import COLOURS, brief
from .habits import slips
from .splits import problems

RULES = (
    "Ask for order, wish and, to exchange, colour. Then DO refund ORDER or DO exchange ORDER "
    "COLOUR."
)
ACTION = re.compile(r"\ADO (refund|exchange) (\d{1,6})(?: ([a-z]+))?\Z")


@dataclass(frozen=True, kw_only=True)
class Wish(Task):
    """What the customer wants: a *refund* or an *exchange* of the *order*, the latter for another
    *colour*.
    """

    order: int
    wish: str
    colour: str

    @property
    def booking(self) -> Booking:
        """The entry in the books that the customer wants."""
        return Booking(action=self.wish, order=self.order, colour=self.colour)


@dataclass(frozen=True, kw_only=True)
class Booking:
    """An entry in the books; *colour* is empty for a refund."""

    action: str
    order: int
    colour: str


@dataclass(frozen=True, kw_only=True)
class Books:
    """The state after the episode: the booking, if there is one, and the number of questions before
    it.
    """

    booking: Booking | None
    questions: int


@reward(range=(0, 1))
def booked(rollout: Rollout[Wish, Books]) -> float:
    """Return 1 where the books hold exactly what the customer wants, else 0."""
    return float(rollout.result.booking == rollout.task.booking)


class Returns(Environment[Wish, Books]):
    """A desk for returns: find out what a customer wants, who says only what they are asked, and
    book it.

    The customer is the engine of the slot `simulated_user`: by default a script; a model behind a server
    does as well. Its system message has the wish, and the policy's replies are its user's. A reply
    that is an action ends the episode.

    Attributes:
        top: greatest number of an order; the least is 10.
        questions: most questions before the customer leaves.
        refunds: share of the customers who want their money back.
        slips: share of the demonstrations that take a refund for granted, or the first colour; the
            others ask.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the wishes drawn. Which split a wish belongs to does not depend on it.
    """

    reward = booked
    limits = Limits(turns=50)

    top: int = 99
    questions: int = 4
    refunds: float = 0.25
    slips: float = 0.6
    size: int = 200
    seed: int = 0
    customer: Engine = need("simulated_user")

    def __post_init__(self) -> None:
        if not 10 <= self.top <= 999_999 or self.questions < 1 or self.size < 1:
            raise UsageError(
                f"returns: top {self.top}, questions {self.questions}, size {self.size}; expected "
                "10 to 999999, and 1 or more twice"
            )
        if not (0 <= self.refunds <= 1 and 0 <= self.slips <= 1):
            raise UsageError(
                f"returns: refunds {self.refunds}, slips {self.slips}; expected shares, 0 to 1"
            )

    def tasks(self, split: str) -> Iterable[Wish]:
        for order, wish, colour in problems(
            self._draw, split=split, size=self.size, seed=self.seed
        ):
            yield Wish(
                prompt=RULES,
                answer=f"DO {wish} {order} {colour}".rstrip(),
                level=3 if colour else 2,
                order=order,
                wish=wish,
                colour=colour,
            )

    def _draw(self, rng: Random) -> tuple[int, str, str]:
        order = rng.randint(10, self.top)
        return (
            (order, "refund", "")
            if rng.random() < self.refunds
            else (order, "exchange", rng.choice(COLOURS))
        )

    async def rollout(self, task: Wish, agent: Agent) -> Books:
        customer = agent.player("customer", self.customer)
        customer.system(brief(task.order, task.wish, task.colour))
        customer.user("Hello?")
        agent.user(f"{task.prompt}\n{(await customer.turn()).reply}")
        questions = 0
        async for turn in agent.turns():
            booking = booking_of(turn.reply)
            if booking is not None:
                return Books(booking=booking, questions=questions)
            questions += 1
            if questions > self.questions:
                break
            customer.user(turn.reply)
            agent.user((await customer.turn()).reply)
        return Books(booking=None, questions=questions)

    @control()
    def demonstrator(self, task: Wish, messages: Sequence[Message]) -> str:
        """Ask for all that is needed; as often as `slips` says, take the rest for granted after the
        first question.
        """
        replies = _asked(messages)
        if len(replies) == 1 and slips(task, messages, self.slips):
            return f"DO refund {task.order}"
        if len(replies) == 2 and task.colour and slips(task, messages, self.slips):
            return f"DO exchange {task.order} {COLOURS[0]}"
        return self.oracle(task, messages)

    @control(scores="max")
    def oracle(self, task: Wish, messages: Sequence[Message]) -> str:
        """Ask for order, wish and colour, in this order, then act. A question repeats the order's
        number, once known.

        A small model learns to copy the number from these repetitions; a reply that is an action
        has it only once.
        """
        questions = [
            "Order?",
            f"{task.order}: wish?",
            *([f"{task.order}: colour?"] if task.colour else []),
        ]
        replies = _asked(messages)
        return questions[len(replies)] if len(replies) < len(questions) else str(task.answer)

    @control(scores="min")
    def nop(self, task: Wish, messages: Sequence[Message]) -> str:
        """Reply with nothing."""
        return ""

    @control(scores="min")
    def every_action(self, task: Wish, messages: Sequence[Message]) -> str:
        """Give the right action among others."""
        return f"DO refund {task.order}\n{task.answer}\nDO exchange {task.order} {COLOURS[-1]}"

    @control(scores="min")
    def asks_for_ever(self, task: Wish, messages: Sequence[Message]) -> str:
        """Ask questions without an end."""
        return "Order? Wish? Colour?"


def booking_of(reply: str) -> Booking | None:
    """Return the booking of a reply that is an action and nothing else.

    >>> booking_of("DO refund 417")
    Booking(action='refund', order=417, colour='')
    >>> booking_of("Shall I DO refund 417") is None
    True
    """
    action = ACTION.match(reply.strip())
    if action is None:
        return None
    return Booking(action=action[1], order=int(action[2]), colour=action[3] or "")


def _asked(messages: Sequence[Message]) -> list[str]:
    return [m.content for m in messages if m.role == "assistant"]
