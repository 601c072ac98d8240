"""Whether a reward depends on what was scored before: the same replies, here and backwards in
another process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from quintain import Environment, Sampling, Task
from quintain.interfaces import yielded
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups

from .elsewhere import SECONDS, written_elsewhere
from .scripted import ScriptedEngine

MOST_TASKS = 8
OTHER_REPLIES = ("", "0", "a reply that answers nothing")
"""What is said to each task beside its answer."""
ELSEWHERE = "import sys\nfrom quintain_authoring.order_check import write\nwrite(*sys.argv[1:])"


async def outcomes(
    environment: Environment[Any, Any], services: Mapping[str, Any], *, backwards: bool = False
) -> dict[str, float | None]:
    """Return the outcome of several replies to the first tasks of ``train``, scored one after the
    other; ``None`` where an episode failed.

    Args:
        backwards: the last one first, which changes nothing but the order.
    """
    tasks: Sequence[Task] = list(islice(yielded(environment, "tasks", "train"), MOST_TASKS))
    scored_replies = [
        (index, task, reply)
        for index, task in enumerate(tasks)
        for reply in dict.fromkeys((*OTHER_REPLIES, str(task.answer)))
    ]
    found: dict[str, float | None] = {}
    for index, task, reply in reversed(scored_replies) if backwards else scored_replies:
        context = RolloutContext(
            engine=ScriptedEngine(replies=reply),
            sampling=Sampling(max_tokens=4096),
            services=services,
            concurrency=1,
            retries=0,
        )
        request = RolloutRequest(environment=environment, task=task, group_size=1, index=index)
        (group,) = await run_groups([request], context)
        (rollout,) = group.rollouts
        found[f"the reply {reply!r:.80} to {task.prompt!r:.80}"] = (
            rollout.outcome.total if rollout.outcome else None
        )
    return found


def write(use: str, args: str, file: str) -> None:
    """Write the `outcomes` of an environment, backwards, as JSON to *file*; standard output may be
    the author's.
    """
    spec = EnvironmentSpec.of(EnvironmentTable(use=use, args=json.loads(args)))
    found = asyncio.run(outcomes(spec.make({}), {}, backwards=True))
    Path(file).write_text(json.dumps(found), encoding="utf-8")


def outcomes_elsewhere(use: str, args: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the `outcomes` of an environment, backwards, in another process.

    Raises:
        PluginError: it cannot load the environment, or takes too long.
    """
    found: dict[str, float | None] = written_elsewhere(
        ELSEWHERE,
        [use, json.dumps(dict(args), default=str)],
        hash_seed="0",
        late=f"another process has not scored {MOST_TASKS} tasks within {SECONDS} s",
        failed="another process cannot score its replies",
    )
    return found
