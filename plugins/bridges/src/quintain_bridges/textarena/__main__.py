"""Plays the games: ``python -m quintain_bridges.textarena OUT.json [GAME ...]``.

Without names it plays one game of each kind. Games that OUT has already are left out. Each is
played by moves that it shows, five times the same game, and by a player that says nothing.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from quintain import Rollout
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ControlEngine

from .environment import TextArena
from .moves import RandomMoves
from .table import listed

GAMES, RUNS = 4, 5
SECONDS = 60
"""Longest time for all that is played of a game."""


def played(environment: TextArena, policy: str, runs: int) -> list[Rollout[Any, Any]]:
    """Return games of `dev`, each played *runs* times at once by the control *policy*."""
    requests = [
        RolloutRequest(environment=environment, task=task, group_size=1, index=index)
        for index, task in enumerate(environment.tasks("dev"))
        for _ in range(runs)
    ]
    context = RolloutContext(engine=ControlEngine(environment, policy), retries=0)
    groups = asyncio.run(run_groups(requests, context))
    return [rollout for group in groups for rollout in group.rollouts]


def row_of(game: str) -> dict[str, Any]:
    """Return what playing *game* showed: ``error`` where it cannot be played here."""
    environment = TextArena(games=game, size=GAMES, random_moves=RandomMoves())
    try:
        moves, silent = played(environment, "any_move", RUNS), played(environment, "nop", 1)
    except UsageError as e:
        return {"error": str(e)[:200]}
    if broken := [r for r in (*moves, *silent) if r.outcome is None or r.termination.ours]:
        return {"error": broken[0].termination.reason[:200]}
    texts = [[m.content for m in rollout.messages] for rollout in moves]
    repeated = [len({str(t) for t in texts[i : i + RUNS]}) == 1 for i in range(0, len(texts), RUNS)]
    totals = [rollout.outcome.total for rollout in moves if rollout.outcome]
    return {
        "players": moves[0].task.players,
        "any_move": round(fmean(totals), 2),
        "wins": round(fmean(total >= 1 for total in totals), 2),
        "nop": round(fmean(r.outcome.total for r in silent if r.outcome), 2),
        "unfinished": round(fmean(r.termination.early for r in moves), 2),
        "repeats": all(repeated),
    }


def main(out: Path, games: Sequence[str]) -> None:
    """Add a row for each of *games* to the file *out*."""
    rows = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    signal.signal(signal.SIGALRM, _too_long)
    for game in games:
        if game not in rows:
            signal.setitimer(signal.ITIMER_REAL, SECONDS, 1)  # again: each game may hang
            rows[game] = row_of(game)
            signal.setitimer(signal.ITIMER_REAL, 0)
            out.write_text(json.dumps(dict(sorted(rows.items())), indent=1), encoding="utf-8")
            print(f"{game:32} {rows[game]}", flush=True)


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"no end within {SECONDS} s")


if __name__ == "__main__":
    first = {game.kind: game.id for game in reversed(list(listed().values()))}
    main(Path(sys.argv[1]), sys.argv[2:] or sorted(first.values()))
