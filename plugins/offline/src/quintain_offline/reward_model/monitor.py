"""The monitor of over-optimisation: proxy against gold reward on held-out rollouts (Gao et al.
2022, 2210.10760).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self

from quintain import Environment, Reward, Rollout, Service, Task, need
from quintain.errors import EpisodeError, UsageError
from quintain.evaluation import rank_correlation
from quintain.interfaces import (
    CheckpointSaved,
    EvaluationEnd,
    Event,
    RunEnd,
    RunStart,
    StepEnd,
    StepMeasured,
)
from quintain.recipe import EnvironmentSpec, EnvironmentTable, Recipe, opened_environments
from quintain.store import write_atomically

FILE = "overoptimisation"
AnyRollout = Rollout[Any, Any]
Row = dict[str, Any]


class GoldOnly(Environment[Task, None]):
    """Holds the gold reward for the parser of reward expressions; it has no tasks."""

    def tasks(self, split: str) -> Iterator[Task]:
        yield from ()


class OverOptimisation(Service):
    """Scores held-out rollouts by a gold reward, too, and compares it with the proxy that trains
    the policy.

    The rollouts are those of the run's own evaluations that the reward `learned_reward` scores,
    before training and every ``evaluation.every`` steps: nothing is sampled besides. Each
    evaluation is a row of ``overoptimisation.jsonl`` in the run folder: step, mean proxy and mean
    gold reward, and with *kl* the divergence from the policy at the start. A finished run also has
    ``overoptimisation.png``, if quintain-view is installed. The alert ``overoptimisation`` is
    active while, on the same tasks, the proxy is significantly higher and the gold reward
    significantly lower than in the evaluation with the highest gold reward. Rows are part of every
    checkpoint.

    Args:
        gold: expression of the gold reward, such as ``right_number``; it scores each rollout alone.
        services: table of the services that the gold reward needs, as in a recipe: ``{judge = {use
            = "judge"}}``.
        kl: also compute KL(policy || policy at the start), the sum over the sampled tokens of a
            reply, from whole next-token distributions, in nats. Keeps a copy of the first weights,
            which every checkpoint holds.
        significance: standard errors of the paired difference from which on it counts.
    """

    running: ClassVar[set[int]] = set()
    """Numbers of the monitors that run in this process, which the names of their files have."""

    def __init__(
        self,
        *,
        gold: str,
        services: Mapping[str, Any] | None = None,
        kl: bool = False,
        significance: float = 2.0,
        learner: Any = need("learner"),
    ) -> None:
        """Read the expression.

        Raises:
            UsageError: *gold* is no reward expression, or *significance* is below 0.
        """
        if significance < 0:
            raise UsageError(
                f"overoptimisation: significance is {significance}; expected at least 0"
            )
        table = EnvironmentTable(use=f"{__name__}:GoldOnly", reward=gold)
        self._spec = EnvironmentSpec.of(table)
        tables = {"environments": [{"use": table.use}], "services": dict(services or {})}
        self._choices = Recipe.of(tables).services
        self.gold, self.kl, self.significance = gold, kl, significance
        self._learner = learner
        self._services: Mapping[str, Any] = {}
        self._seen: list[tuple[AnyRollout, float | None, float | None]] = []
        self._stack = AsyncExitStack()
        self._initial: Any = None
        self._split = "dev"
        self._folder: Path | None = None
        self.number = 0
        self.rows: list[Row] = []
        self.failed = 0
        """Rollouts that the gold reward has failed to score."""

    async def __aenter__(self) -> Self:
        """Start the services of the gold reward.

        Raises:
            RecipeError: it needs a service that *services* does not name.
            UsageError: *kl* without a learner whose module can be copied.
        """
        fix = 'add it to the settings of overoptimisation: services = {{{slot} = {{use = "..."}}}}'
        opened = opened_environments([self._spec], self._choices, fix=fix)
        _, self._services = await self._stack.enter_async_context(opened)
        if self.kl and self._learner is not None:
            module = getattr(self._learner, "module", None)
            if module is None:
                raise UsageError(
                    "overoptimisation: kl = true needs a learner with a module; leave kl out"
                )
            if not hasattr(module, "disable_adapter"):
                self._initial = copy.deepcopy(module).requires_grad_(False).eval()
        self.number = next(number for number in count() if number not in self.running)
        self.running.add(self.number)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.running.discard(self.number)
        await self._stack.aclose()

    async def observe(
        self, rollouts: Sequence[AnyRollout], proxies: Sequence[float | None]
    ) -> None:
        """Take held-out *rollouts* with their proxy scores (``None``: failed), and score them by
        the gold reward.
        """
        assert isinstance(self._spec.reward, Reward)
        for rollout, proxy in zip(rollouts, proxies, strict=True):
            gold = None
            if proxy is not None:
                try:
                    bare = rollout.replace(outcome=None, shaping=None)
                    gold = (await self._spec.reward.ascore(bare, **self._services)).total
                except EpisodeError:  # counted in the row; the rollout counts for neither mean
                    self.failed += 1
            self._seen.append((rollout, proxy, gold))

    # ---------------------------------------------------------------- hooks of a run
    def quintain_on_run_start(self, event: RunStart) -> None:
        """Drop the rows of steps that a resume repeats."""
        self._folder = Path(event.folder)
        self.begin(event.step, split=event.recipe.get("evaluation", {}).get("split", "dev"))
        self.write(self._folder, self.number)
        self._tell_gold(event)

    def quintain_on_evaluation_end(self, event: EvaluationEnd) -> None:
        """Turn the rollouts of the evaluation into a row; leave out those of the other way of
        decoding.
        """
        if event.other_decoding:
            self.forget()
        elif self.close(event.step, event.split, event.environment) and self._folder:
            self.write(self._folder, self.number)
        self._tell_gold(event)

    def quintain_on_step_measured(self, event: StepMeasured) -> None:
        """Raise the alert while the proxy is above and the gold reward below where gold was
        highest.
        """
        if message := self.alert():
            event.alerts["overoptimisation"] = message
        self._tell_gold(event)

    def quintain_on_step_end(self, event: StepEnd) -> None:
        """Tell the services of the gold reward."""
        self._tell_gold(event)

    def quintain_on_checkpoint_saved(self, event: CheckpointSaved) -> None:
        """Tell the services of the gold reward."""
        self._tell_gold(event)

    def quintain_on_run_end(self, event: RunEnd) -> None:
        """Draw the curve of a run that has finished."""
        if event.status == "finished":
            self.draw(Path(event.folder), self.number)
        self._tell_gold(event)

    def _tell_gold(self, event: Event) -> None:
        """Call the hook of the gold reward's services, such as its judge. The run knows only its
        own services.
        """
        for service in self._services.values():
            if (hook := getattr(service, event.hook, None)) is not None:
                hook(event)

    # ---------------------------------------------------------------- rows
    def begin(self, step: int, *, split: str) -> None:
        """Forget rows after *step*, which a resume repeats; *split* is that of the regular
        evaluations.
        """
        self.rows = [row for row in self.rows if row["step"] <= step]
        self._seen, self._split = [], split

    def forget(self) -> None:
        """Drop the rollouts observed since the last row."""
        self._seen = []

    def close(self, step: int, split: str, environment: str) -> bool:
        """Make a row of the rollouts observed since the last one; false if there are none."""
        seen, self._seen = self._seen, []
        scored = [(r, p, g) for r, p, g in seen if p is not None and g is not None]
        if not scored:
            return False
        by_task: dict[str, list[tuple[float, float]]] = {}
        for rollout, proxy, gold in scored:
            by_task.setdefault(rollout.task.id, []).append((proxy, gold))
        tasks = {
            task: [_mean([s[i] for s in scores]) for i in (0, 1)]
            for task, scores in by_task.items()
        }
        proxies, golds = ([means[i] for means in tasks.values()] for i in (0, 1))
        row: Row = {
            "step": step,
            "split": split,
            "environment": environment,
            "proxy": _mean(proxies),
            "proxy_error": _error(proxies),
            "gold": _mean(golds),
            "gold_error": _error(golds),
            "rank_correlation": rank_correlation(
                [p for _, p, _ in scored], [g for _, _, g in scored]
            ),
            "rollouts": len(scored),
            "failed": len(seen) - len(scored),
        }
        if self.kl and self._learner is not None:
            row["kl"] = _mean([self._divergence(rollout) for rollout, _, _ in scored])
        self.rows = [
            r
            for r in self.rows
            if (r["step"], r["split"], r["environment"]) != (step, split, environment)
        ]
        self.rows.append(row | {"tasks": tasks})
        return True

    def alert(self) -> str:
        """Return the message while the last evaluation shows over-optimisation; empty otherwise."""
        for environment in {row["environment"] for row in self.rows}:
            rows = [
                r
                for r in self.rows
                if r["split"] == self._split and r["environment"] == environment
            ]
            if len(rows) < 2:
                continue
            best, now = max(rows, key=lambda row: row["gold"]), rows[-1]
            shared = sorted(best["tasks"].keys() & now["tasks"].keys())
            changes = [[now["tasks"][t][i] - best["tasks"][t][i] for t in shared] for i in (0, 1)]
            (proxy, proxy_error), (gold, gold_error) = ((_mean(c), _error(c)) for c in changes)
            rises = proxy > self.significance * proxy_error
            falls = -gold > self.significance * gold_error
            if now["step"] > best["step"] and gold < 0 < proxy and rises and falls:
                return (
                    f"overoptimisation: since step {best['step']} the proxy of {environment} rose "
                    f"by {proxy:.3g}, the gold reward fell by {-gold:.3g} on {len(shared)} "
                    "held-out tasks. Stop at that step, or use an ensemble with a penalty, a KL "
                    "term or more preference pairs"
                )
        return ""

    def _divergence(self, rollout: AnyRollout) -> float:
        """Return KL(policy || policy at the start) along the sampled tokens of the policy's own
        player, in nats.
        """
        import torch

        transcript = rollout.transcripts.get("")
        total = 0.0
        for sequence in transcript.sequences() if transcript else ():
            ids = torch.tensor([sequence.ids], device=self._learner.module.device)
            places = [position - 1 for position, trained in enumerate(sequence.mask) if trained]
            with torch.no_grad():
                now = self._learner.module(input_ids=ids).logits[0][places].double().log_softmax(-1)
                if self._initial is None:
                    with self._learner.module.disable_adapter():
                        then = (
                            self._learner.module(input_ids=ids)
                            .logits[0][places]
                            .double()
                            .log_softmax(-1)
                        )
                else:
                    then = self._initial(input_ids=ids).logits[0][places].double().log_softmax(-1)
            total += float((now.exp() * (now - then)).sum())
        return total

    # ---------------------------------------------------------------- files and checkpoints
    def write(self, folder: Path, number: int = 0) -> None:
        """Write the rows to ``overoptimisation.jsonl``; a second monitor has a file with its
        number.
        """
        rows = [
            {name: value for name, value in row.items() if name != "tasks"} for row in self.rows
        ]
        text = "".join(json.dumps(row | {"gold_reward": self.gold}) + "\n" for row in rows)
        write_atomically(_file(folder, number, "jsonl"), text.encode())

    def draw(self, folder: Path, number: int = 0) -> Path | None:
        """Draw the curve, where quintain-view is installed and there are two rows."""
        rows = [row for row in self.rows if row["split"] == self._split]
        if find_spec("quintain_view.viewer") is None or len(rows) < 2:
            return None
        path = _file(folder, number, "png")
        write_atomically(path, picture(rows, self.gold))
        return path

    def state(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {"rows": [dict(row) for row in self.rows], "failed": self.failed}
        if self._initial is not None:
            state["initial"] = dict(self._initial.state_dict())
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rows, self.failed = [dict(row) for row in state["rows"]], state["failed"]
        if self._initial is not None and "initial" in state:
            self._initial.load_state_dict(state["initial"])


def picture(rows: Sequence[Mapping[str, Any]], gold: str) -> bytes:
    """Draw proxy and gold reward over the steps, and against the root of the KL divergence if it
    was computed; return the PNG.
    """
    viewer: Any = import_module("quintain_view.viewer")  # the extra `plot` brings it
    colours, shade_between = viewer.COLOURS, viewer.shade_between
    axes = [("step", "step", [row["step"] for row in rows])]
    if all("kl" in row for row in rows):
        roots = [math.sqrt(max(row["kl"], 0.0)) for row in rows]
        axes.append(("KL", "square root of KL(policy || start), nats", roots))

    def paint(figure: Any) -> None:
        panels = figure.subplots(1, len(axes), squeeze=False)[0]
        for panel, (title, label, x) in zip(panels, axes, strict=True):
            right = panel.twinx()
            for side, key, colour, name in (
                (panel, "proxy", colours[0], "proxy"),
                (right, "gold", colours[1], f"gold: {gold}"),
            ):
                values = [row[key] for row in rows]
                errors = [2 * row[f"{key}_error"] for row in rows]
                low, high = (
                    [v + s * e for v, e in zip(values, errors, strict=True)] for s in (-1, 1)
                )
                shade_between(side, x, low, high, colour)
                side.plot(x, values, "o-", color=colour, ms=3, lw=1.8, label=name)
                side.set_ylabel(name, color=colour)
            right.grid(False)
            panel.set_title(f"held-out rewards by {title}")
            panel.set_xlabel(label)

    png: bytes = viewer.render_png(paint, size=(5.2 * len(axes), 3.8))
    return png


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    if len(values) < 2:
        return math.inf
    mean = _mean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def _file(folder: Path, number: int, ending: str) -> Path:
    return folder / f"{FILE}{f'-{number + 1}' if number else ''}.{ending}"
