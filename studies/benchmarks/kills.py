"""Runs whose processes are killed at random moments: what is lost, and how long it takes to go on.

Each run has the learner `fsdp` with two ranks, a pool of three replicas that are servers without a
model, two episode processes, each with a sandbox, and a checkpoint after each step. One process
after the other is killed by SIGKILL:

    rank      a rank of the learner
    engine    a server of the pool, each third time while it takes weights
    worker    an episode process
    sandbox   what runs a program: the box, or the launcher of all boxes of an episode process
    driver    the process of the run, which `quintain train --resume` continues
    actor     with `--cluster ray`, an actor of Ray that has one of these but sandbox and driver

Each third kill falls into a part of the step that was chosen before (weights on their way, a save,
an update), the others anywhere, and some while the run is still coming back from the one before.
Each run is checked: every task that was drawn is trained once, no token is of other weights than
its version says, no failure has a score, and a driver that is killed costs at most one step that
had ended. In the synchronous schedule, weights, moments, metrics and rollouts are those of a run
without a kill, bit for bit.

    python -m studies.benchmarks.kills --kills 20 --seed 1
    python -m studies.benchmarks.kills --kills 1000 --seed 1       # goes on where it was stopped
    python -m studies.benchmarks.kills --cluster ray --kills 100

Journals and folders are below `--folder`; a run that went wrong is kept there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from .common import FOLDER, ROOT, arguments, table, write
from .kill_parts import STATE, Placed, Pool, Replica, expected_reward, logp_of, read_state
from .kill_targets import command_of, cpu_of, descendants, has_ended, placed, targets

KINDS = {"rank": 26, "engine": 26, "worker": 22, "sandbox": 22, "driver": 4}
"""How often each is killed, of 100."""
WITH_RAY = {"rank": 35, "actor": 25, "engine": 10, "worker": 10, "sandbox": 10, "driver": 10}
MOMENTS = {
    "rank": ("update", "checkpoint"),
    "actor": ("update", "checkpoint"),
    "engine": ("transfer",),
    "worker": ("rollouts", "transfer", "checkpoint"),
    "sandbox": ("rollouts",),
    "driver": ("transfer", "checkpoint", "update", "rollouts"),
}
"""Parts of a step that are waited for."""
VARIANTS = {
    "sync, whole": {"schedule": "sync", "checkpoint": "whole", "staleness": 0},
    "sync, sharded": {"schedule": "sync", "checkpoint": "sharded", "staleness": 0},
    "areal, sharded": {"schedule": "areal", "checkpoint": "sharded", "staleness": 4},
}
STEPS = 60
GOES_ON = 600.0
"""Seconds after which a run that does not go on is given up: on a busy machine a start takes long."""
STAYS = 120.0
"""Seconds in which all that a killed run has started ends: a process that imports looks afterwards."""
AIM = 30.0


@dataclass(kw_only=True)
class Kill:
    """A process that was killed.

    Attributes:
        moment: the part of the step that ran; ``start`` before the first one of its process.
        seconds: until a step ended that ended after it, or the run.
        repeated: steps that had ended and were done again.
        cpu: seconds of processor time of the next driver and what it started, until it went on.
        load: of the machine when the run went on.
    """

    kind: str
    moment: str
    steps: int
    at: float
    seconds: float = 0.0
    repeated: int = 0
    cpu: float = 0.0
    load: float = 0.0


@dataclass(kw_only=True)
class Outcome:
    """A run that has ended, or was given up, with what is wrong with it."""

    name: str
    variant: str
    cluster: str
    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)


def recipe(variant: Mapping[str, Any], steps: int, cluster: str) -> dict[str, Any]:
    """The recipe of a run, as tables."""
    kind = Placed if cluster == "ray" else Replica
    engine = f"{kind.__module__}:{kind.__qualname__}"
    ranks: dict[str, Any] = {"ranks": 2, "restarts": 100, "copy_every": 1}
    ranks["checkpoint"] = variant["checkpoint"]
    told: dict[str, Any] = {
        # the log-probs are made up
        "run": {"steps": steps, "max_sample_mismatch": 20.0},
        "model": {"name": "model", "device": "cpu"},
        "environments": [{"use": f"{Replica.__module__}:Asks"}],
        "services": {"sandbox": {"use": "bubblewrap", "args": {"slots": 2, "enforce": []}}},
        "algorithm": {"use": "dr_grpo", "args": {"plan": {}}},
        "schedule": {"use": variant["schedule"]},
        "workers": {"episodes": 2},
        "engine": {
            "use": f"{Pool.__module__}:{Pool.__qualname__}",
            "args": {"engine": engine, "count": 3, "restarts": 10_000, "backoff": 0.0},
        },
        "sampling": {"max_tokens": 8},
        # a failure is tried again as often as somebody may kill what plays it
        "batch": {"prompts": 3, "group_size": 2, "retries": 20},
        "learner": {"use": "fsdp", "lr": 3e-3, "args": ranks},
        "evaluation": {"every": 0, "test": {"tasks": 0}},
        "checkpoint": {"every": 1, "keep": 2},
    }
    if cluster == "ray":
        told["cluster"] = {"use": "ray"}
        told["workers"]["args"] = {"start_seconds": 300.0}
    return told


# ---------------------------------------------------------------- a run
class Life:
    """A run, through all of its processes.

    Args:
        variant: the folder with the recipe and the model.

    Attributes:
        folder: of this run alone, by which its processes are known.
    """

    def __init__(self, variant: Path, name: str) -> None:
        self.folder, self.name = variant / name, name
        shutil.rmtree(self.folder, ignore_errors=True)  # of a series that was stopped
        self.folder.mkdir()
        for file in ("model", "recipe.toml"):
            (self.folder / file).symlink_to(variant / file)
        self.place = self.folder / "runs" / name
        self.kills: list[Kill] = []
        self.faults: list[str] = []
        self._state_path = self.folder / f"{name}.state"
        self._messages = self.folder / f"{name}.txt"
        self._waiting: list[Kill] = []
        self._before = 0  # steps that earlier processes have ended
        self.start()

    def start(self) -> None:
        """Start it, or continue it."""
        self._state_path.unlink(missing_ok=True)
        words = ["--resume", f"runs/{self.name}"]
        if not self.place.exists():
            words = ["recipe.toml", "--name", self.name]
        with self._messages.open("ab") as messages:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quintain", "train", *words, "-q"],
                cwd=self.folder,
                stdout=messages,
                stderr=messages,
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "QUINTAIN_PLUGINS": "",
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                    STATE: str(self._state_path),
                    "OMP_NUM_THREADS": "1",
                },
            )

    @property
    def state(self) -> dict[str, Any]:
        """What the present process says; empty before it says anything."""
        state = read_state(self._state_path)
        return state if state.get("pid") == self._process.pid else {}

    @property
    def steps(self) -> int:
        """Steps that its processes have ended."""
        return self._before + int(self.state.get("steps", 0))

    def look(self) -> bool:
        """Take note of what has come of the kills; return whether it runs."""
        runs = self._process.poll() is None
        now, steps = time.monotonic(), self.steps
        for kill in [*self._waiting]:
            if steps > kill.steps or not runs:
                kill.seconds, kill.load = now - kill.at, os.getloadavg()[0]
                kill.cpu = cpu_of(self._process.pid) if kill.kind == "driver" else 0.0
                self._waiting.remove(kill)
            elif now - kill.at > GOES_ON:
                self.faults.append(f"it does not go on {GOES_ON:.0f} s after {asdict(kill)}")
                self._process.kill()
                self._process.wait()
                return False
        return runs

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait for *until*, at most *seconds* or to the end of the run; return whether it runs."""
        deadline = time.monotonic() + seconds
        while (runs := self.look()) and not until() and time.monotonic() < deadline:
            time.sleep(0.004)
        return runs

    def kill_once(self, draw: random.Random, kinds: Mapping[str, int]) -> None:
        """Kill one process, of *kinds* by their weights, at a moment that *draw* decides."""
        kind = draw.choices([*kinds], [*kinds.values()])[0]
        if draw.random() > 0.15 and not self.wait(lambda: not self._waiting, GOES_ON):
            return
        wanted = self.steps + draw.choice([0, 0, 1])
        if not self.wait(lambda: self.steps >= wanted, 60):
            return
        if draw.random() < 1 / 3:
            moment = draw.choice(MOMENTS[kind])
            if not self.wait(lambda: moment in self.state.get("spans", ()), 10):
                return
            pause = draw.choice([0.0, 0.0, 0.02]) * draw.random()
        else:
            pause = draw.choice([0.05, 0.3, 1.0]) * draw.random()
        if pause and not self.wait(lambda: False, pause):
            return
        if kind == "driver":
            self._kill_driver()
            return
        taking = self.state.get("transfers", []) if kind == "engine" else []
        if pids := taking or targets(kind, self._process.pid, self.folder):
            self._note(kind)
            with suppress(ProcessLookupError):
                os.kill(draw.choice(pids), signal.SIGKILL)

    def _note(self, kind: str) -> Kill:
        spans = self.state.get("spans")
        moment = "start" if spans is None else (spans[-1] if spans else "between")
        kill = Kill(kind=kind, moment=moment, steps=self.steps, at=time.monotonic())
        self.kills.append(kill)
        self._waiting.append(kill)
        return kill

    def _kill_driver(self) -> None:
        own = descendants(self._process.pid)
        started = {*own, *(p for one in placed(self.folder) for p in (one, *descendants(one)))}
        kill = self._note("driver")
        self._process.kill()
        self._process.wait()
        self._before = self.steps
        kill.steps = self._before
        for other in self._waiting:  # which a step of the next process ends, too
            other.steps = min(other.steps, self._before)
        kill.repeated = max(0, self._recorded() - self._saved())
        deadline = time.monotonic() + STAYS
        while (left := [p for p in started if not has_ended(p)]) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left:
            lines = [command_of(pid).replace(b"\0", b" ")[:200] for pid in left]
            self.faults.append(f"{len(left)} processes stay after the driver: {lines}")
        self.start()

    def _recorded(self) -> int:
        """The last step with metrics."""
        with suppress(FileNotFoundError):
            return (self.place / "metrics.jsonl").read_text().count("\n") - 1
        return 0

    def _saved(self) -> int:
        """The last step that a resume continues from."""
        saved = (self.place / "checkpoints").glob("step-*")
        steps = [int(path.name[5:]) for path in saved if path.name[5:].isdecimal()]
        return max(steps, default=0)

    def finish(self) -> int:
        """Wait for its end; return its exit status."""
        while self.look():
            time.sleep(0.01)
        return self._process.returncode

    @property
    def messages(self) -> str:
        return self._messages.read_text(errors="replace")


# ---------------------------------------------------------------- what a run has to be
def outcome_of(folder: Path, name: str, steps: int) -> dict[str, Any]:
    """What a synchronous run leaves: weights and moments, metrics, rollouts, without times and
    counts of attempts.
    """
    import torch
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    from quintain.interfaces.learner import PARTS

    run = folder / "runs" / name
    last = run / f"checkpoints/step-{steps:06d}"
    weights: dict[str, Any] = {}
    for file in sorted((last / "model").glob("*.safetensors")):
        weights |= load_file(file)
    state = torch.load(last / "learner.pt", weights_only=False)["learner"]["optimizer"]
    if (last / PARTS).exists():
        dcp_to_torch_save(last / PARTS, folder / f"{name}.pt")
        state |= torch.load(folder / f"{name}.pt", weights_only=False)
        (folder / f"{name}.pt").unlink()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [
        {key: value for key, value in record.items() if not _of_time(key)} for record in records
    ]
    rows = rows_of(run, steps)
    return {"weights": weights, "optimizer": state, "metrics": metrics, "rows": rows}


def _of_time(key: str) -> bool:
    return "second" in key or key in ("idle", "retried", "failed")


def rows_of(run: Path, steps: int) -> list[dict[str, Any]]:
    """The rollouts of a run, in the order of steps, groups and samples."""
    from quintain.store.run_folder import RunFolder

    folder = RunFolder(run, lock=False)
    rows = [row for step in range(1, steps + 1) for row in folder.read_rollouts(step)]
    return sorted(rows, key=lambda row: (row["step"], row["group"], row["sample"]))


KEPT = ("step", "group", "sample", "seed", "task_id", "messages", "reply", "outcome", "advantages")
KEPT += ("termination", "token_ids", "token_logps", "token_versions", "token_sources")


def check_rows(rows: Sequence[Mapping[str, Any]], contents: Mapping[int, str]) -> Counter[str]:
    """Count what is wrong with rollouts: tokens of other weights than their version says, and
    scores of what did not come to its end.
    """
    wrong: Counter[str] = Counter()
    for row in rows:
        for logp, version in zip(row["token_logps"], row["token_versions"], strict=True):
            if version >= 0 and abs(logp - logp_of(contents[version])) > 1e-6:
                wrong["tokens of other weights than their version says"] += 1
        result = json.loads(row["rollout"])["result"]
        if row["termination"] not in ("completed", "truncated") or result is None:
            wrong[f"rollouts that ended as {row['termination']}"] += 1
        elif abs(row["outcome"] - expected_reward(result[:-1])) > 1e-9:
            wrong["failures that were scored"] += 1
    return wrong


def contents_of(folder: Path, name: str) -> dict[int, str]:
    """The weights that were published, by version."""
    lines = (folder / f"{name}.contents").read_text().splitlines()
    return {0: "nothing"} | dict(map(json.loads, lines))


def check(life: Life, variant: str, steps: int, expected: Mapping[str, Any] | None) -> Outcome:
    """Compare a run that has ended with *expected*, and with its own history."""
    from tests.integration.kills import check_history

    faults = [*life.faults]
    counted: dict[str, int] = {}
    status = life.finish()
    if status:
        tail = life.messages[-1500:]
        faults.append(f"exit status {status}: {tail}")
    else:
        try:
            counted = check_history(life.place, int(VARIANTS[variant]["staleness"]))
        except (AssertionError, KeyError, OSError) as error:
            faults.append(f"history: {error!r}"[:1500])
        wrong = check_rows(rows_of(life.place, steps), contents_of(life.folder, life.name))
        faults += [f"{count} {what}" for what, count in wrong.items()]
        if abandoned := counted.get("abandoned"):
            faults.append(f"{abandoned} groups abandoned")
        if expected is not None:
            faults += differences(expected, outcome_of(life.folder, life.name, steps))
    for kill in life.kills:
        if kill.repeated > 1:
            faults.append(f"{kill.repeated} steps lost: {asdict(kill)}")
    return Outcome(
        name=life.name, variant=variant, cluster="", kills=life.kills, faults=faults,
        counted=counted,
    )  # fmt: skip


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What differs between two synchronous runs."""
    import torch

    texts = []
    for part in ("weights", "optimizer"):
        try:
            torch.testing.assert_close(found[part], expected[part], rtol=0, atol=0)
        except AssertionError as error:
            texts.append(f"{part}: {str(error)[:300]}")
    for one, other in zip(expected["metrics"], found["metrics"], strict=False):
        unlike = {k for k in {*one, *other} if repr(one.get(k)) != repr(other.get(k))}
        if unlike:
            texts.append(f"metrics of step {one['step']}: {sorted(unlike)}")
            break
    pairs = zip(expected["rows"], found["rows"], strict=False)
    unlike_rows = [a for a, b in pairs if any(repr(a[k]) != repr(b[k]) for k in KEPT)]
    if unlike_rows:
        texts.append(f"{len(unlike_rows)} rollouts, the first of step {unlike_rows[0]['step']}")
    return texts + [
        f"{len(found[part])} {part}, expected {len(expected[part])}"
        for part in ("metrics", "rows")
        if len(expected[part]) != len(found[part])
    ]


# ---------------------------------------------------------------- the command
@contextmanager
def local_ray(runs: int) -> Iterator[None]:
    """A Ray of two raylets on this machine, each with room for half of what *runs* start."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    # the time of other programs comes not before that of ranks, as Ray has it by default
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **node})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=4 * runs, **node)  # two ranks, three servers, two workers
        os.environ["RAY_ADDRESS"] = cluster.address
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def survive(folder: Path, name: str, seed: str, most: int, kinds: Mapping[str, int]) -> Life:
    """A run to whose processes at most *most* kills happen, none with 0."""
    life = Life(folder, name)
    draw = random.Random(seed)
    while len(life.kills) < most and life.look():
        life.kill_once(draw, kinds)
    life.finish()
    return life


def prepared(place: Path, variant: str, cluster: str, steps: int) -> Path:
    """A folder with the model and the recipe of a variant."""
    import transformers
    from tests.core.models.tiny import save_tiny

    from quintain.recipe.tables import Recipe

    folder = place / variant.replace(", ", "-")
    if not (folder / "recipe.toml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        transformers.utils.logging.disable_progress_bar()
        save_tiny(folder / "model", context=256)
        text = Recipe.of(recipe(VARIANTS[variant], steps, cluster)).to_toml()
        (folder / "recipe.toml").write_text(text)
    return folder.resolve()


def undisturbed(folder: Path, variant: str, steps: int) -> dict[str, Any] | None:
    """What a run without a kill leaves; ``None`` where that depends on time."""
    if VARIANTS[variant]["staleness"]:
        return None
    if not (folder / "whole/runs/whole/summary.json").exists():
        life = survive(folder, "whole", "", 0, {})
        faults = check(life, variant, steps, None).faults
        if faults:
            raise SystemExit(f"the run without a kill: {faults}")
    return outcome_of(folder / "whole", "whole", steps)


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Print what came out, and return it."""
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    moments = sorted({kill.moment for kill in kills})
    rows, figures = [], {}
    for kind in [*KINDS, "actor"]:
        of_kind = [kill for kill in kills if kill.kind == kind]
        if not of_kind:
            continue
        seconds = sorted(kill.seconds for kill in of_kind)
        found = Counter(kill.moment for kill in of_kind)
        figures[kind] = {
            "kills": len(of_kind),
            "moments": dict(sorted(found.items())),
            "median_seconds": statistics.median(seconds),
            "most_seconds": seconds[-1],
            "over_aim": sum(s > AIM for s in seconds),
            "median_load": statistics.median(kill.load for kill in of_kind),
            "median_cpu_seconds": statistics.median(kill.cpu for kill in of_kind),
            "repeated_steps": sum(kill.repeated for kill in of_kind),
            "most_repeated": max(kill.repeated for kill in of_kind),
        }
        cells = [str(found.get(moment, "")) for moment in moments]
        cells += [f"{statistics.median(seconds):.1f}", f"{seconds[-1]:.1f}"]
        rows.append([kind, str(len(of_kind)), *cells, str(figures[kind]["most_repeated"])])
    head = ["killed", "kills", *moments, "seconds, median", "most", "steps repeated, most"]
    print(table(head, rows))
    wrong = [outcome for outcome in outcomes if outcome.faults]
    counted: Counter[str] = Counter()
    for outcome in outcomes:
        counted.update(outcome.counted)
    print(
        f"{len(kills)} kills in {len(outcomes)} runs of {counted['steps']} steps and "
        f"{counted['drawn']} tasks; {len(wrong)} runs are not as they have to be",
        flush=True,
    )
    for outcome in wrong:
        print(f"{outcome.variant} {outcome.name}: {outcome.faults}")
    return {
        "kills": len(kills),
        "runs": len(outcomes),
        "of_variant": dict(Counter(outcome.variant for outcome in outcomes)),
        "steps": counted["steps"],
        "tasks": counted["drawn"],
        "of_kind": figures,
        "wrong_runs": [asdict(o) | {"kills": len(o.kills)} for o in wrong],
    }


class Series:
    """Runs in a folder, and the journal of those that have ended.

    Attributes:
        outcomes: of all that have ended, also before.
    """

    def __init__(
        self, place: Path, variants: Sequence[str], kinds: Mapping[str, int], cluster: str,
        seed: int, steps: int,
    ) -> None:  # fmt: skip
        self._kinds, self._cluster, self._seed, self._steps = kinds, cluster, seed, steps
        self._journal = place / "journal.jsonl"
        self.outcomes: list[Outcome] = []
        lines = self._journal.read_text().splitlines() if self._journal.exists() else ()
        for content in map(json.loads, lines):
            content["kills"] = [Kill(**kill) for kill in content["kills"]]
            self.outcomes.append(Outcome(**content))
        ended = {outcome.name for outcome in self.outcomes}
        self._numbers = (n for n in count() if f"killed-{n}" not in ended)
        self._lock, self._running = Lock(), 0
        self._variants = [(v, prepared(place, v, cluster, steps)) for v in variants]
        self._expected = {v: undisturbed(folder, v, steps) for v, folder in self._variants}

    def work(self, wanted: int, of_a_run: int) -> None:
        """Do runs of *of_a_run* kills until there are as many kills as *wanted*."""
        while True:
            with self._lock:
                made = sum(len(outcome.kills) for outcome in self.outcomes) + self._running
                most = min(of_a_run, wanted - made)
                if most <= 0:
                    return
                self._running += most
                number = next(self._numbers)
            outcome = self._one(number, most)
            with self._lock:
                self._running -= most
                self.outcomes.append(outcome)
                with self._journal.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
                said = f"{len(outcome.kills)} kills, {outcome.faults or 'as it has to be'}"
                print(f"{outcome.variant} {outcome.name}: {said}", flush=True)

    def _one(self, number: int, most: int) -> Outcome:
        variant, folder = self._variants[number % len(self._variants)]
        name = f"killed-{number}"
        life = survive(folder, name, f"{self._seed} {name}", most, self._kinds)
        outcome = check(life, variant, self._steps, self._expected[variant])
        outcome.cluster = self._cluster
        if not outcome.faults:
            shutil.rmtree(folder / name)
        return outcome


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a run (default: %(default)s)")
    parser.add_argument("--of-a-run", type=int, default=50, help="kills of a run at most")
    parser.add_argument("--at-once", type=int, default=1, help="runs (default: %(default)s)")
    parser.add_argument("--cluster", choices=("process", "ray"), default="process")
    parser.add_argument("--kinds", help="of processes, with commas (default: all)")
    parser.add_argument("--variants", help="numbers of schedules, with commas (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER / ".cache" / "kills")
    args = parser.parse_args()
    steps, wanted = (12, 8) if args.quick else (args.steps, args.kills)
    every = WITH_RAY if args.cluster == "ray" else KINDS
    kinds = {kind: every[kind] for kind in (args.kinds.split(",") if args.kinds else every)}
    numbers = map(int, args.variants.split(",")) if args.variants else range(len(VARIANTS))
    variants = [[*VARIANTS][number] for number in numbers]
    place = args.folder / f"{args.cluster}-{args.seed}-{steps}"
    place.mkdir(parents=True, exist_ok=True)
    with local_ray(args.at_once) if args.cluster == "ray" else nullcontext():
        series = Series(place, variants, kinds, args.cluster, args.seed, steps)
        with ThreadPoolExecutor(args.at_once) as threads:
            for ended in [
                threads.submit(series.work, wanted, args.of_a_run) for _ in range(args.at_once)
            ]:
                ended.result()
    figures = report(series.outcomes)
    about = {"cluster": args.cluster, "seed": args.seed, "steps": steps, "kinds": dict(kinds)}
    name = "kills" if args.cluster == "process" else f"kills-{args.cluster}"
    write(name, figures, quick=args.quick, about=about)
    return bool(figures["wrong_runs"])


if __name__ == "__main__":
    sys.exit(main())
