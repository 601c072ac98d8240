"""A maze from above: the picture comes with the task, and each reply is a move."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from PIL import Image, ImageDraw

from quintain import Agent, Limits, Message, Rollout, Task, control, reward
from quintain.errors import UsageError

from .seen import COLOURS, DrawnEnvironment, TaskMaker, empty

STEPS = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}
"""Change of column and row; row 0 is at the top."""
BACK = {"N": "S", "E": "W", "S": "N", "W": "E"}
MOVE = re.compile(r"\b[NESW]\b")
Cell = tuple[int, int]
"""Column and row."""


@dataclass(frozen=True, kw_only=True)
class MapTask(Task):
    """A maze.

    Attributes:
        width: cells in a row, and rows.
        ways: the open directions of each cell, row by row.
        start, goal: cells.
        moves: that the episode allows.
    """

    width: int
    ways: tuple[str, ...]
    start: Cell
    goal: Cell
    moves: int

    def open(self, cell: Cell) -> str:
        """Return the open directions of *cell*."""
        return self.ways[cell[1] * self.width + cell[0]]

    def after(self, cell: Cell, move: str) -> Cell:
        """Return the cell after *move*, N, E, S or W, or an empty one; a wall stops it."""
        return _next(cell, move) if move and move in self.open(cell) else cell

    def distances(self) -> dict[Cell, int]:
        """Return the least number of moves from each cell to the goal."""
        distances, frontier = {self.goal: 0}, [self.goal]
        for cell in frontier:
            for way in self.open(cell):
                if (other := _next(cell, way)) not in distances:
                    distances[other] = distances[cell] + 1
                    frontier.append(other)
        return distances


@dataclass(frozen=True, kw_only=True)
class Walked:
    """The cells of an episode, the start first; a move into a wall repeats the cell."""

    cells: tuple[Cell, ...]


@reward(range=(0, 1))
def goal_reached(rollout: Rollout[MapTask, Walked]) -> float:
    """Return 1 where the last cell is the goal, else 0."""
    return float(rollout.result.cells[-1] == rollout.task.goal)


class PictureMaze(DrawnEnvironment[MapTask, Walked]):
    """Walk from the blue circle to the red square of a maze that is seen from above.

    The picture is in the task. After a move the policy reads "moved", or "wall", and not where it
    is. A move is the last letter N, E, S or W of a reply that stands alone.

    Attributes:
        width: cells in a row, 2 to 8; the goal is at least so many moves away.
        spare: moves beyond the length of the shortest way.
    """

    reward = goal_reached
    limits = Limits(turns=100)

    colours: tuple[str, ...] = ("blue", "red")
    width: int = 4
    spare: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.width <= 8 or not 0 <= self.spare <= 20:
            raise UsageError(
                f"width is {self.width} and spare {self.spare}; expected 2 to 8, and 0 to 20"
            )
        if self.size < 8 * self.width:
            raise UsageError(f"size is {self.size}; expected {8 * self.width} pixels or more")
        if len(self.colours) != 2:
            raise UsageError(
                f"colours is {list(self.colours)}; expected that of the start and that of the goal"
            )

    def made(self, random: Random) -> tuple[Image.Image, str, TaskMaker[MapTask]]:
        while True:
            ways = _carved(random, self.width)
            start = random.randrange(self.width), random.randrange(self.width)
            maze = MapTask(prompt="", width=self.width, ways=ways, start=start, goal=start, moves=0)
            distances = maze.distances()
            far = [cell for cell in sorted(distances) if distances[cell] >= self.width]
            if far:
                break
        goal = random.choice(far)
        moves = distances[goal] + self.spare
        make = partial(
            MapTask,
            width=self.width,
            ways=ways,
            start=start,
            goal=goal,
            moves=moves,
            level=float(distances[goal]),
        )
        question = (
            f"Walk from the {self.colours[0]} circle to the {self.colours[1]} square in {moves} "
            "moves. Say N, E, S or W."
        )
        return self._drawn(maze, start, goal), question, make

    def _drawn(self, maze: MapTask, start: Cell, goal: Cell) -> Image.Image:
        image = empty(self.size)
        pencil = ImageDraw.Draw(image)
        edges = [round(place * (self.size - 1) / self.width) for place in range(self.width + 1)]
        thick = max(1, self.size // 32)
        for row in range(self.width):
            for column in range(self.width):
                left, top = edges[column], edges[row]
                right, bottom = edges[column + 1], edges[row + 1]
                closed = set(STEPS) - set(maze.open((column, row)))
                for way, line in {
                    "N": (left, top, right, top),
                    "S": (left, bottom, right, bottom),
                    "W": (left, top, left, bottom),
                    "E": (right, top, right, bottom),
                }.items():
                    if way in closed:
                        pencil.line(line, fill="black", width=thick)
        for cell, colour, shape in (
            (start, self.colours[0], pencil.ellipse),
            (goal, self.colours[1], pencil.rectangle),
        ):
            room = self.size / self.width / 4
            box = (
                edges[cell[0]] + room,
                edges[cell[1]] + room,
                edges[cell[0] + 1] - room,
                edges[cell[1] + 1] - room,
            )
            shape(box, fill=COLOURS[colour])
        return image

    async def rollout(self, task: MapTask, agent: Agent) -> Walked:
        agent.user(task.prompt)
        cells = [task.start]
        async for turn in agent.turns():
            move = move_of(turn.reply)
            cells.append(task.after(cells[-1], move))
            if cells[-1] == task.goal or len(cells) > task.moves:
                break
            moved = cells[-1] != cells[-2]
            agent.user("moved" if moved else "wall" if move else "Say N, E, S or W.")
        return Walked(cells=tuple(cells))

    @control(scores="max")
    def oracle(self, task: MapTask, messages: Sequence[Message]) -> str:
        """Take a shortest way."""
        cell, distances = _here(task, messages), task.distances()
        return min(task.open(cell), key=lambda way: distances[_next(cell, way)])

    @control()
    def demonstrator(self, task: MapTask, messages: Sequence[Message]) -> str:
        """Take a shortest way."""
        return self.oracle(task, messages)

    @control()
    def blind_guess(self, task: MapTask, messages: Sequence[Message]) -> str:
        """Walk without the picture: any way but one that was a wall here, or leads back."""
        random = Random(f"{task.id}/{len(messages)}")
        said = [move_of(m.content) for m in messages if m.role == "assistant"]
        heard = [m.content for m in messages if m.role == "user"][1:]
        closed = set()
        for move, answer in zip(reversed(said), reversed(heard), strict=False):
            if answer == "moved":
                closed.add(BACK[move])
                break
            closed.add(move)
        return random.choice([way for way in STEPS if way not in closed] or [*STEPS])

    @control(scores="min")
    def every_way(self, task: MapTask, messages: Sequence[Message]) -> str:
        """Give all directions in one reply, one that leads nowhere last."""
        cell = _here(task, messages)
        closed = [way for way in STEPS if way not in task.open(cell)]
        distances = task.distances()
        away = max(task.open(cell), key=lambda way: distances[_next(cell, way)])
        return " ".join([*STEPS, *(closed or [away])])


def move_of(reply: str) -> str:
    """Return the last letter N, E, S or W of *reply* that stands alone; empty where there is none.

    >>> move_of("N, then E"), move_of("NE")
    ('E', '')
    """
    moves: list[str] = MOVE.findall(reply)
    return moves[-1] if moves else ""


def _next(cell: Cell, way: str) -> Cell:
    x, y = STEPS[way]
    return cell[0] + x, cell[1] + y


def _here(task: MapTask, messages: Sequence[Message]) -> Cell:
    """Return the cell at the end of a conversation."""
    cell = task.start
    for message in messages:
        if message.role == "assistant":
            cell = task.after(cell, move_of(message.content))
    return cell


def _carved(random: Random, width: int) -> tuple[str, ...]:
    """Return the open directions of each cell: a random tree that joins all cells."""
    ways: Mapping[Cell, set[str]] = {(x, y): set() for y in range(width) for x in range(width)}
    path = [(random.randrange(width), random.randrange(width))]
    seen = {path[0]}
    while path:
        onward = [
            way
            for way in STEPS
            if _next(path[-1], way) in ways and _next(path[-1], way) not in seen
        ]
        if not onward:
            path.pop()
            continue
        way = random.choice(onward)
        ways[path[-1]].add(way)
        path.append(_next(path[-1], way))
        ways[path[-1]].add(BACK[way])
        seen.add(path[-1])
    return tuple("".join(way for way in STEPS if way in ways[cell]) for cell in ways)
