"""The environment `maze`: reach the goal by steps, seeing only which ways are open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from quintain import Agent, Environment, Limits, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError

from .habits import slips
from .splits import problems

STEPS = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}
"""Change of (column, row); row 0 is the northern one."""
BACK = {"N": "S", "E": "W", "S": "N", "W": "E"}
MOVE = re.compile(r"\b([NESW]|north|east|south|west)\b", re.IGNORECASE)
Cell = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Labyrinth(Task):
    """A square of cells.

    Attributes:
        width: cells in a row, and rows.
        open: the open directions of each cell, row by row.
        start, goal: (column, row), row 0 in the north.
        moves: that the episode allows.
    """

    width: int
    open: tuple[str, ...]
    start: Cell
    goal: Cell
    moves: int

    def ways(self, cell: Cell) -> str:
        """Return the open directions of *cell*."""
        return self.open[cell[1] * self.width + cell[0]]

    def view(self, cell: Cell) -> str:
        """Return what the policy sees from *cell*: how far the goal is in each direction, and the
        open ways.

        >>> Labyrinth(prompt="", width=2, open=("S", "S", "NE", "NW"), start=(0, 0), goal=(1, 1), moves=3).view((0, 0))
        'goal S1 E1, open S'
        """
        return f"goal {_towards(cell, self.goal)}, open {' '.join(self.ways(cell))}"

    def distances(self) -> dict[Cell, int]:
        """Return the least number of moves from each cell to the goal."""
        distances, frontier = {self.goal: 0}, [self.goal]
        for cell in frontier:
            for way in self.ways(cell):
                if (other := after(cell, way)) not in distances:
                    distances[other] = distances[cell] + 1
                    frontier.append(other)
        return distances


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The cells of an episode, the start first, and how many moves were none.

    Attributes:
        reached: whether the last cell is the goal.
        cells: a reply that is no move, or one into a wall, repeats the cell.
        bumps: number of such replies.
    """

    reached: bool
    cells: tuple[Cell, ...]
    bumps: int


@reward(range=(0, 1))
def reached_goal(rollout: Rollout[Labyrinth, Walk]) -> float:
    """Return 1 where the goal was reached within the moves, else 0."""
    return float(rollout.result.reached)


@reward(range=(-20, 1))
def closer(rollout: Rollout[Labyrinth, Walk]) -> Score:
    """Return for each turn how much shorter the way to the goal became, as a share of its first
    length.

    The sum is 1 at the goal and depends on the last cell alone, so that no walk earns by going to
    and fro.
    """
    distances = rollout.task.distances()
    left = [distances[cell] for cell in rollout.result.cells]
    return Score(turns=tuple((before - now) / left[0] for before, now in pairwise(left)))


class Maze(Environment[Labyrinth, Walk]):
    """Walk through a generated maze; each observation is where the goal lies and which ways are
    open.

    A move is the last letter N, E, S or W of a reply that stands alone, or the direction's name.
    Walls are not seen from afar, and the way towards the goal may be closed, so that a good policy
    tries, remembers and turns back.

    Attributes:
        width: cells in a row, 2 to 9.
        loops: share of the walls of a tree-shaped maze that are taken out.
        spare: moves beyond the length of the shortest way.
        slips: share of the moves of the demonstrations that take the first open way but back,
            wherever the goal is; the others follow the shortest way.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the mazes drawn. Which split a maze belongs to does not depend on it.
    """

    reward, shaping = reached_goal, 0.5 * closer
    limits = Limits(turns=200)

    width: int = 4
    loops: float = 0.5
    spare: int = 2
    slips: float = 0.55
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.width <= 9 or not 0 <= self.spare <= 100 or self.size < 1:
            raise UsageError(
                f"maze: width {self.width}, spare {self.spare}, size {self.size}; expected 2 to 9, "
                f"0 to 100, 1 or more"
            )
        if not (0 <= self.loops <= 1 and 0 <= self.slips <= 1):
            raise UsageError(
                f"maze: loops {self.loops}, slips {self.slips}; expected shares, 0 to 1"
            )

    def tasks(self, split: str) -> Iterable[Labyrinth]:
        for ways, start, goal in problems(self._draw, split=split, size=self.size, seed=self.seed):
            task = Labyrinth(
                prompt="", width=self.width, open=ways, start=start, goal=goal, moves=1
            )
            shortest = task.distances()[start]
            moves = shortest + self.spare
            yield Labyrinth(
                prompt=f"Walk to the goal in {moves} moves.\n{task.view(start)}",
                level=shortest,
                width=self.width,
                open=ways,
                start=start,
                goal=goal,
                moves=moves,
            )

    def _draw(self, rng: Random) -> tuple[tuple[str, ...], Cell, Cell]:
        ways = _carved(rng, self.width, self.loops)
        cells = sorted(ways)
        start = rng.choice(cells)
        far = [c for c in cells if abs(c[0] - start[0]) + abs(c[1] - start[1]) >= self.width - 1]
        rows = tuple(
            "".join(d for d in STEPS if d in ways[x, y])
            for y in range(self.width)
            for x in range(self.width)
        )
        return rows, start, rng.choice(far)

    async def rollout(self, task: Labyrinth, agent: Agent) -> Walk:
        agent.user(task.prompt)
        cells, bumps = [task.start], 0
        async for turn in agent.turns():
            move = move_of(turn.reply)
            open_way = move in task.ways(cells[-1]) if move else False
            bumps += not open_way
            cells.append(after(cells[-1], move) if open_way else cells[-1])
            if cells[-1] == task.goal or len(cells) > task.moves:
                break
            agent.user(
                ("" if open_way else "wall\n" if move else "Say N, E, S or W.\n")
                + task.view(cells[-1])
            )
        return Walk(reached=cells[-1] == task.goal, cells=tuple(cells), bumps=bumps)

    @control()
    def demonstrator(self, task: Labyrinth, messages: Sequence[Message]) -> str:
        """Take the shortest way; as often as `slips` says, the first open way but back."""
        cell, last = _walked(task, messages)
        if not slips(task, messages, self.slips):
            return _best(task, cell)
        ways = task.ways(cell)
        onward = [way for way in ways if not last or way != BACK[last]]
        return (onward or list(ways))[0]

    @control(scores="max")
    def oracle(self, task: Labyrinth, messages: Sequence[Message]) -> str:
        """Take the shortest way, which no policy can see."""
        return _best(task, _walked(task, messages)[0])

    @control()
    def remembers(self, task: Labyrinth, messages: Sequence[Message]) -> str:
        """Do what a policy can do without the map: of the open ways to the least visited cells,
        take that towards the goal.
        """
        cells = _cells(task, messages)
        x, y = task.goal

        def cost(way: str) -> tuple[int, int]:
            cell = after(cells[-1], way)
            return cells.count(cell), abs(cell[0] - x) + abs(cell[1] - y)

        return min(task.ways(cells[-1]), key=cost)

    @control(scores="min")
    def every_way(self, task: Labyrinth, messages: Sequence[Message]) -> str:
        """Give all directions in one reply, one that leads nowhere last."""
        cell = _walked(task, messages)[0]
        closed = [way for way in STEPS if way not in task.ways(cell)] or [_worst(task, cell)]
        return " ".join([*STEPS, closed[0]])

    @control(scores="min")
    def walls(self, task: Labyrinth, messages: Sequence[Message]) -> str:
        """Give the direction of the goal as a word of a sentence that holds no move."""
        return f"go{_best(task, _walked(task, messages)[0])}"


def after(cell: Cell, way: str) -> Cell:
    """Return the cell next to *cell* in direction *way*."""
    x, y = STEPS[way]
    return cell[0] + x, cell[1] + y


def move_of(reply: str) -> str:
    """Return the last direction of a reply as a letter; empty where there is none.

    >>> move_of("I go south."), move_of("N, then E"), move_of("NE")
    ('S', 'E', '')
    """
    moves = MOVE.findall(reply)
    return moves[-1][0].upper() if moves else ""


def _towards(cell: Cell, goal: Cell) -> str:
    x, y = goal[0] - cell[0], goal[1] - cell[1]
    parts = [f"{'S' if y > 0 else 'N'}{abs(y)}"] * bool(y) + [
        f"{'E' if x > 0 else 'W'}{abs(x)}"
    ] * bool(x)
    return " ".join(parts)


def _carved(rng: Random, width: int, loops: float) -> Mapping[Cell, set[str]]:
    """Return the open directions of each cell: a random tree that joins all cells, then some walls
    taken out.
    """
    ways: dict[Cell, set[str]] = {(x, y): set() for x in range(width) for y in range(width)}

    def join(cell: Cell, way: str) -> None:
        ways[cell].add(way)
        ways[after(cell, way)].add(BACK[way])

    path, seen = [(0, 0)], {(0, 0)}
    while path:
        onward = [
            way
            for way in STEPS
            if after(path[-1], way) in ways and after(path[-1], way) not in seen
        ]
        if not onward:
            path.pop()
            continue
        way = rng.choice(onward)
        join(path[-1], way)
        path.append(after(path[-1], way))
        seen.add(path[-1])
    walls = [
        (c, way)
        for c in sorted(ways)
        for way in "ES"
        if way not in ways[c] and after(c, way) in ways
    ]
    for cell, way in rng.sample(walls, int(loops * len(walls))):
        join(cell, way)
    return ways


def _cells(task: Labyrinth, messages: Sequence[Message]) -> list[Cell]:
    """Return the cells of a conversation so far."""
    cells = [task.start]
    for message in messages:
        if message.role == "assistant":
            move = move_of(message.content)
            cells.append(
                after(cells[-1], move) if move and move in task.ways(cells[-1]) else cells[-1]
            )
    return cells


def _walked(task: Labyrinth, messages: Sequence[Message]) -> tuple[Cell, str]:
    """Return the cell at the end of a conversation, and the last move that was one; empty where
    there was none.
    """
    cells = _cells(task, messages)
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(cells) if a != b]
    return cells[-1], next((way for way, step in STEPS.items() if steps and step == steps[-1]), "")


def _best(task: Labyrinth, cell: Cell) -> str:
    distances = task.distances()
    return min(task.ways(cell), key=lambda way: distances[after(cell, way)])


def _worst(task: Labyrinth, cell: Cell) -> str:
    distances = task.distances()
    return max(task.ways(cell), key=lambda way: distances[after(cell, way)])
