"""The checks of `quintain check`: those of the suites, run one by one, and some of their own."""

from __future__ import annotations

import json
import math
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from quintain import Environment, Group, Message, Reward, Rollout, Task
from quintain.errors import PluginError, QuintainError, UsageError
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.registry import Component, check_class, check_parameters, current, signature_of
from quintain.run import Hooks
from quintain.services import BY_OPTION, Choice, started_services
from quintain.testing import rollout
from quintain.tracebacks import defined_at
from quintain.types import reaches

from .constant_replies import constant_replies, repeated_shaping
from .controls import ControlEngine
from .demonstration_checks import demonstrations
from .descriptions import stale_description
from .elsewhere import SECONDS, written_elsewhere
from .episodes import rescore
from .guard import Stuck
from .oddities import oddities
from .options import services_of
from .order_check import outcomes, outcomes_elsewhere
from .scripted import ScriptedEngine
from .stalling import stalling
from .suites import EnvironmentSuite, RewardSuite

Status = Literal["ok", "failed", "warning", "skipped"]
QUESTION = Task(prompt="What is 6 times 7?", answer="42")
REPLIES = (
    "42",
    "41",
    "It is \\boxed{42}.",
    "<answer>42</answer>",
    "",
    " \n",
    "nan",
    "9" * 400,
    "\\boxed{\\frac{1}{0}}",
    "word " * 500,
)
"""Replies to `QUESTION` that a reward has to score, whatever it thinks of them."""
COLLECTED = 50
"""Answers of other tasks that a probe lists."""
TASKS_TITLE = "every split has tasks"
"""Title of the check that finds the tasks of an environment; the others need them."""
LONGEST_PROMPT = 1_000_000
"""Characters of a prompt, of which checks take minutes and which no model reads."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check; *message* says what is wrong and what to do."""

    name: str
    status: Status = "ok"
    message: str = ""
    seconds: float = 0.0


def run_check(name: str, call: Callable[[], str | None]) -> Check:
    """Return the result of *call*, which raises if the check fails, and may return a warning."""
    began = time.perf_counter()
    status: Status = "ok"
    try:
        message = call() or ""
        status = "warning" if message else "ok"
    except pytest.skip.Exception as e:
        status, message = "skipped", str(e)
    except Stuck as e:
        e.row = name
        raise
    except AssertionError as e:
        status, message = "failed", str(e) or f"the check {name!r} does not hold"
    except QuintainError as e:
        status, message = "failed", str(e)
    except Exception as e:  # noqa: BLE001 - an author's code may raise anything
        status, message = "failed", described(e)
    return Check(
        name=name, status=status, message=message, seconds=round(time.perf_counter() - began, 3)
    )


def described(error: Exception) -> str:
    """Return type and message of *error*, and file and line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


def check_manifest(component: Component) -> list[Check]:
    """Return whether the distribution of *component* has a manifest that lists it, and what that
    says is not stale.
    """

    def manifest() -> str:
        if component.origin == "local":
            pytest.skip(
                "a file or module has no manifest; `quintain new` writes a distribution with one"
            )
        registry, package = current(), component.module.partition(".")[0]
        if registry.manifest(component) is None:
            raise PluginError(
                f"{component.distribution} has no quintain.toml beside {package}/__init__.py; add "
                f"one"
            )
        registry.resolve(component)
        others = [c.distribution for c in registry.matching(component.name, component.kind)]
        others = [name for name in others if name != component.distribution]
        return (
            f"{', '.join(others)} has the same name; users must write {component.id!r}"
            if others
            else ""
        )

    row = run_check("manifest", manifest)
    if row.status in ("failed", "skipped"):
        return [row]
    return [row, run_check("description", lambda: stale_description(component))]


def check_environment(
    component: Component,
    args: Mapping[str, Any],
    services: Mapping[str, Choice],
    *,
    tasks: int,
    episodes: int,
) -> Iterator[Check]:
    """Yield the checks of an environment."""
    loaded = current().resolve(component)

    def its_class() -> str:
        if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
            raise PluginError(f"it is {loaded!r:.80}; expected a subclass of quintain.Environment")
        check_class(loaded)
        return "\n".join(oddities(loaded))

    first = run_check("class", its_class)
    yield first
    if first.status == "failed":
        return
    spec = spec_of(component)

    class EnvironmentChecks(EnvironmentSuite):
        environment, sample = loaded, tasks

        def test_tasks_are_the_same_in_another_process(self) -> None:
            """Compare the tasks with those of an environment made by name, not pickled as in the
            suite: an interpreter cannot import a class from a file.
            """
            if spec.own_slots:
                super().test_tasks_are_the_same_in_another_process()
                return
            elsewhere = tasks_elsewhere(spec.table.use if spec.table else "", args, tasks)
            for split in self.splits:
                same = [task.id for task in self.tasks(split)] == elsewhere[split]
                assert same, (
                    f"{split!r} has other tasks in another process: a set's order, or hash() of "
                    f"text?"
                )

        @classmethod
        def opened_services(cls) -> AbstractAsyncContextManager[Mapping[str, Any]]:
            return opened_for_environment(loaded, spec, services)

    def repeats(suite: EnvironmentSuite) -> None:
        rewards_repeat(suite)
        if not spec.slots:
            order_matters_not(suite, spec.table.use if spec.table else "", args)

    EnvironmentChecks.args, EnvironmentChecks.episodes = args, episodes
    extra_checks: list[tuple[str, Callable[[Any], str | None]]] = [
        ("demonstrations score full reward", demonstrations),
        ("each turn follows a message", first_messages),
        ("the reward repeats", repeats),
        ("replies that may exploit the reward", probes),
        ("what a constant reply earns", constant_replies),
        ("a policy that stalls is scored", stalling),
    ]
    if loaded.shaping is not None:
        extra_checks.append(("the shaping adds to the outcome", repeated_shaping))
    for row in suite_checks(EnvironmentChecks, extra_checks):
        target = loaded.tasks if re.search("task|split", row.name) else loaded
        if named := re.match(r"control '(\w+)'", row.message):
            target = getattr(loaded, named[1])
            if target is getattr(Environment, named[1], None):  # the score is the author's
                target = getattr(loaded.reward, "function", loaded)
        located = row.status != "failed" or re.search(
            r", line \d|:\d+[:,] |^the same as", row.message
        )
        yield (
            row
            if located
            else replace(row, message=f"{row.message} ({loaded.__name__}: {defined_at(target)})")
        )


def spec_of(component: Component) -> EnvironmentSpec:
    """Return the spec of the environment *component* without arguments."""
    use = component.name if ":" in component.name else component.id
    return EnvironmentSpec.of(EnvironmentTable(use=use))


def opened_for_environment(
    loaded: type[Environment[Any, Any]], spec: EnvironmentSpec, services: Mapping[str, Choice]
) -> AbstractAsyncContextManager[Mapping[str, Any]]:
    """Start the services that an environment and its reward need, with workers if installed."""
    slots = {need.slot for need in signature_of(loaded).needs} | spec.slots
    if current().matching("workers", "service"):
        services = {**services_of(["workers=workers"], []), **services}
    return opened_for_check(services, slots)


def rewards_repeat(suite: EnvironmentSuite) -> None:
    """Score a rollout three times, which shows a reward with a state or random numbers."""
    scored = suite.build().reward
    if scored.needs or scored.group:
        pytest.skip("it needs services, or a group")
    played = [r for r in suite.play(ControlEngine(suite.build(), "oracle")) if has_result(r)][:1]
    if not played:
        pytest.skip("no episode ends with a result")
    scores = [suite.run(scored.ascore(played[0])).total for _ in range(3)]
    if len(set(scores)) > 1:
        gave = ", ".join(f"{score:g}" for score in scores)
        raise AssertionError(
            f"reward {scored.name!r} ({defined_at(getattr(scored, 'function', None))}) gave {gave} "
            "for the same rollout; let it depend on the rollout alone: no `global`, no list of "
            "the module, no random numbers"
        )


def order_matters_not(suite: EnvironmentSuite, use: str, args: Mapping[str, Any]) -> None:
    """Score the same replies here, after all that was scored before, and backwards in another
    process, which shows a state that only grows.
    """
    environment = suite.build()
    here = suite.run(outcomes(environment, suite.started))
    elsewhere = outcomes_elsewhere(use, args)
    different = [
        (reply, score, elsewhere.get(reply))
        for reply, score in here.items()
        if score != elsewhere.get(reply)
    ]
    if different:
        reply, score, other = different[0]
        scored = environment.reward
        place = defined_at(getattr(scored, "function", scored))
        scores = [f"{value:g}" if value is not None else "none" for value in (score, other)]
        raise AssertionError(
            f"reward {scored.name!r} ({place}) depends on what it scored before: {reply} scored "
            f"{scores[0]} after other replies and {scores[1]} in a new process, in another order "
            f"({len(different)} of {len(here)} replies differ); let it depend on the rollout "
            "alone: no `global`, no list or set of the module that scores add to"
        )


ELSEWHERE = """
import json, sys
from itertools import islice
from pathlib import Path
from quintain.recipe import EnvironmentTable, EnvironmentSpec
use, args, count, out = sys.argv[1:]
environment = EnvironmentSpec.of(EnvironmentTable(use=use, args=json.loads(args))).make({})
ids = {split: [task.id for task in islice(environment.tasks(split), int(count))] for split in ("train", "dev", "test")}
Path(out).write_text(json.dumps(ids), encoding="utf-8")
"""
"""Writes the ids of the first tasks of each split; standard output may be the author's."""


def tasks_elsewhere(use: str, args: Mapping[str, Any], count: int) -> dict[str, list[str]]:
    """Return the ids of the first *count* tasks of each split in another interpreter, where
    ``hash()`` of text differs.

    Raises:
        PluginError: it cannot load the environment.
    """
    ids: dict[str, list[str]] = written_elsewhere(
        ELSEWHERE,
        [use, json.dumps(dict(args), default=str), str(count)],
        hash_seed="random",
        late=f"its tasks are not there within {SECONDS} s in another process",
        failed="another process cannot load the environment",
    )
    return ids


def check_reward(
    component: Component,
    args: Mapping[str, Any],
    services: Mapping[str, Choice],
    *,
    environment: str | None,
    episodes: int,
    stateful: bool,
) -> Iterator[Check]:
    """Yield the checks of a reward, on rollouts of *environment* or on replies to `QUESTION`."""
    loaded = current().resolve(component)
    if args and not callable(loaded):
        raise PluginError(f"{component} is a combination of rewards and takes no --arg")
    scored: Reward = loaded(**args) if args else loaded
    spec = EnvironmentSpec.of(EnvironmentTable(use=environment)) if environment else None

    class RewardChecks(RewardSuite):
        reward = scored
        repeatable = not stateful
        played: ClassVar[list[Rollout[Any, Any]]] = []
        without_result: ClassVar[list[Rollout[Any, Any]]] = []

        @classmethod
        def opened_services(cls) -> AbstractAsyncContextManager[Mapping[str, Any]]:
            slots = {*scored.needs, *(spec.slots if spec else ())}
            return opened_for_check(services, slots)

        @classmethod
        def setup_class(cls) -> None:
            super().setup_class()
            cls.played = [rollout(QUESTION, text) for text in REPLIES]
            if spec:
                made = spec.make(cls.started)
                played = cls.run(rollouts_of(made, spec.component, cls.started, episodes))
                cls.played = [r for r in played if has_result(r)]
                cls.without_result = [r for r in played if not has_result(r)]

        def cases(self) -> list[Rollout[Any, Any]]:
            return self.played

        def test_scores_repeat(self) -> None:
            try:
                super().test_scores_repeat()
            except AssertionError as e:
                first_line = str(e).partition("\n")[0]
                raise AssertionError(f"{first_line} (`quintain check --stateful`)") from e

    def parameters() -> None:
        check_parameters(scored)

    first = run_check("parameters", parameters)
    yield first
    if first.status == "failed":
        return

    def with_result(suite: Any) -> str:
        if not suite.without_result:
            return ""
        first = suite.without_result[0]
        count, total = len(suite.without_result), len(suite.played) + len(suite.without_result)
        message = (
            f"{count} of {total} episodes of {environment} have no result and are not scored; task "
            f"{first.task.id} ended with {first.termination.kind}: {first.termination.reason}"
        )
        if not suite.played:
            raise AssertionError(message)
        return message

    def all_scored(suite: Any) -> None:
        for played in suite.played:
            try:
                suite.scores([played])
            except QuintainError as e:
                fix = (
                    ""
                    if spec
                    else (
                        "; for a reward that reads a result or a task of its own give --env "
                        "ENVIRONMENT"
                    )
                )
                raise AssertionError(f"the reply {played.reply!r:.80} breaks it: {e}{fix}") from e

    extra_checks: list[tuple[str, Callable[[Any], str | None]]] = [
        ("episodes end with a result", with_result),
        ("scores every rollout", all_scored),
    ]
    if scored.group:
        extra_checks.append(("scores each rollout of a group", groups_scored))
    yield from suite_checks(RewardChecks, extra_checks, only=("repeat", "range"), extra_first=True)


def groups_scored(suite: Any) -> None:
    """Score the rollouts of each task together, as a group reward gets them."""

    class Judged(Environment[Any, Any]):
        reward = suite.reward

    groups: dict[str, list[Rollout[Any, Any]]] = {}
    for played in suite.played:
        groups.setdefault(played.task.id, []).append(played)
    for rollouts in groups.values():
        group = Group(task=rollouts[0].task, rollouts=tuple(rollouts))
        for scored in suite.run(rescore(Judged(), group, suite.started)).rollouts:
            failure = f"a group of {len(rollouts)} rollouts breaks it: {scored.termination.reason}"
            assert scored.outcome is not None, failure


def check_algorithm(component: Component) -> list[Check]:
    """Return the checks of an algorithm: it loads, has a summary, and its objective is finite."""
    loaded = current().resolve(component)

    def record() -> str:
        signature_of(loaded)
        return "" if loaded.summary else "it has no summary, which `quintain info` shows"

    def objective() -> None:
        import torch

        from quintain.learning import LossInputs

        torch.manual_seed(0)
        old = -torch.rand(8, dtype=torch.float64) - 0.1
        logp = (old + 0.3 * torch.randn(8, dtype=torch.float64)).requires_grad_()
        advantage = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
        sample = torch.arange(8) // 2
        inputs = LossInputs(
            logp=logp,
            mu_logp=old,
            prox_logp=old,
            advantage=advantage,
            entropy=-old,
            sample=sample,
            group=sample // 2,
        )
        try:
            terms = loaded.objective(inputs)
        except (QuintainError, AttributeError, TypeError, AssertionError) as e:
            pytest.skip(f"its objective needs more than log-probs and advantages ({described(e)})")
        terms = terms[0] if isinstance(terms, tuple) else terms
        assert terms.dim(), (
            "the objective returns one number; expected the loss of each term, not reduced"
        )
        assert terms.requires_grad, (
            "the objective does not depend on t.logp, so that it has no gradient"
        )
        (gradient,) = torch.autograd.grad(terms.sum(), logp)
        assert bool(torch.isfinite(terms).all()), (
            "the objective is not finite for log-ratios of about 0.3"
        )
        assert bool(torch.isfinite(gradient).all()), "the gradient of the objective is not finite"
        assert bool(gradient.abs().sum() > 0), "the gradient of the objective is 0 for every token"

    return [
        run_check("record", record),
        run_check("advantages are finite, one per sample", lambda: advantages(loaded)),
        run_check("objective is finite and has a gradient", objective),
    ]


def advantages(algorithm: Any) -> None:
    """Compute the advantages of two groups of samples without tokens."""
    from quintain.learning import Batch, Sample, Step

    piece = algorithm.advantage
    if piece.needs:
        pytest.skip(f"its advantage needs {', '.join(piece.needs)}")
    samples = tuple(
        Sample(sequences=(), outcome=r, group=i // 4)
        for i, r in enumerate((0.0, 1.0, 0.0, 0.5) * 2)
    )
    step = Step(batch=Batch(samples=samples), rewards=tuple(s.total for s in samples))
    try:
        values = piece(step, state=None)[0] if piece.stateful else piece(step)
    except UsageError:
        raise
    except Exception as e:  # noqa: BLE001 - one that reads tokens may raise anything here
        pytest.skip(f"its advantage needs more than rewards ({described(e)})")
    values = values[0] if isinstance(values, tuple) else values
    if not hasattr(values, "dim"):  # a tensor is of tokens
        assert len(values) == len(samples), (
            f"{piece!r} gave {len(values)} values for {len(samples)} samples"
        )
        assert all(map(math.isfinite, values)), (
            f"{piece!r} gave {values!r}; expected finite numbers"
        )


def check_hooks(component: Component) -> list[Check]:
    """Return the check of hooks: names and parameters of its functions."""

    def signatures() -> None:
        Hooks(strict=True).add(current().resolve(component), component.id)

    return [run_check("names and parameters of the functions", signatures)]


def opened_for_check(
    services: Mapping[str, Choice], slots: set[str]
) -> AbstractAsyncContextManager[Mapping[str, Any]]:
    """Start the services of *slots*; errors name the option that chooses one."""
    return started_services(services, slots, {"policy": None, "learner": None}, fix=BY_OPTION)


def suite_checks(
    kind: Any,
    extra_checks: Sequence[tuple[str, Callable[[Any], str | None]]],
    only: Sequence[str] = (),
    extra_first: bool = False,
) -> Iterator[Check]:
    """Yield the result of each test of a suite, in the order of their definition, and of each of
    *extra_checks*. Where the services do not start, yield that alone.

    Args:
        kind: the class of the suite.
        extra_checks: titles, and functions that take the suite.
        only: run the tests whose names have one of these words; empty runs all.
        extra_first: run *extra_checks* before the tests, and not after them.
    """
    start = run_check("services", kind.setup_class)
    if start.status == "failed":
        with suppress(Exception):
            kind.teardown_class()
        yield start
        return
    suite = kind()
    tests = [(title_of(name, suite), getattr(suite, name)) for name in names_of_tests(kind, only)]
    extra = [(title, partial(check, suite)) for title, check in extra_checks]
    first_check: dict[str, str] = {}  # faults, with the check that had them first
    try:
        for title, call in [*extra, *tests] if extra_first else [*tests, *extra]:
            row = run_check(title, call)
            yield told_once(row, first_check)
            if title == TASKS_TITLE:
                # All that follows plays tasks: without any it would fail for this one reason, and
                # with endless prompts it would take minutes.
                stop = list(checks_of_tasks(suite, row))
                yield from stop
                if stop:
                    return
    finally:
        kind.teardown_class()


def names_of_tests(kind: Any, only: Sequence[str]) -> list[str]:
    """Return the names of the tests of the suite *kind*, those of its base classes first, without
    repetition; those that have a word of *only*, where that has any.
    """
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        for name in vars(base):
            if name.startswith("test_"):
                names[name] = None
    return [name for name in names if not only or any(word in name for word in only)]


def told_once(row: Check, first_check: dict[str, str]) -> Check:
    """Return *row*; where an earlier check failed by the same fault, it says no more than which.
    *first_check* has the check of each fault so far, and gets those of *row*.
    """
    if row.status != "failed":
        return row
    known = [check for fault, check in first_check.items() if fault in row.message]
    for fault in faults_in(row.message):
        first_check.setdefault(fault, row.name)
    return replace(row, message=f"the same as in {known[0]!r}") if known else row


def checks_of_tasks(suite: Any, row: Check) -> Iterator[Check]:
    """Yield why no other check of *suite* can run, after *row* has looked for tasks; nothing where
    they can.
    """
    needed = ""
    if row.status == "ok":
        long = too_long(suite)
        if long:
            yield Check(name="prompts are short enough to check", status="failed", message=long)
            needed = "shorter prompts"
    elif row.status == "failed" and not playable(suite):
        needed = "tasks"
    if needed:
        yield Check(name="all other checks", status="skipped", message=f"they need {needed}")


def faults_in(message: str) -> set[str]:
    """Return the texts by which the fault of *message* is found in other messages: itself, the
    reason for which an episode ended, and the error with its place.
    """
    reason = re.search(
        r"(?:broke it:|ended with|ends with) \w+: (.+?)(?:; a failure of ours|$)",
        message,
        re.DOTALL,
    )
    error = re.search(r"\b\w+(?:Error|Exception): [^()]{3,}(?= \()", message)
    return {message, *([reason[1]] if reason else []), *([error[0]] if error else [])}


def too_long(suite: EnvironmentSuite) -> str:
    """Return what is wrong with the first tasks if their prompts are longer than any model reads;
    empty if nothing is.
    """
    for split in suite.splits:
        with suppress(QuintainError):  # the check before says so
            length = sum(len(str(task.prompt)) for task in suite.tasks(split, 1))
            if length > LONGEST_PROMPT:
                place = defined_at(type(suite.build()).tasks)
                return (
                    f"a prompt of {split!r} has {length:,} characters ({place}); expected at most "
                    f"{LONGEST_PROMPT:,}"
                )
    return ""


def playable(suite: EnvironmentSuite) -> bool:
    """Return whether the split that is played has tasks."""
    with suppress(Exception):
        return isinstance(next(iter(suite.tasks(suite.splits[0], 1))), Task)
    return False


def title_of(test: str, suite: Any) -> str:
    """Return the name of a test as a row shows it."""
    title = test.removeprefix("test_").replace("_", " ")
    return f"{2 * suite.episodes} {title}" if title.startswith("concurrent episodes") else title


async def rollouts_of(
    environment: Environment[Any, Any], component: Any, services: Mapping[str, Any], count: int
) -> list[Rollout[Any, Any]]:
    """Play rollouts of each control on the first *count* tasks."""
    from quintain.rollouts import RolloutContext, RolloutRequest, run_groups

    tasks = list(islice(environment.tasks("train"), count))
    played: list[Rollout[Any, Any]] = []
    for name in component.controls():
        context = RolloutContext(
            engine=ControlEngine(environment, name), services=services, retries=0
        )
        requests = [
            RolloutRequest(environment=environment, task=t, group_size=1, index=i)
            for i, t in enumerate(tasks)
        ]
        played += [
            r
            for group in await run_groups(requests, context)
            for r in group.rollouts
            if r.turns or not has_result(r)  # an error takes the turns along
        ]
    return played


def has_result(played: Rollout[Any, Any]) -> bool:
    """Return whether the environment returned a result, which is what a reward scores. An episode
    that a limit, a fault or an error ended has none.
    """
    ended = played.termination
    return not ended.early and (not ended.ours or ended.kind == "reward_error")


def first_messages(suite: EnvironmentSuite) -> None:
    """Refuse a turn of a player that has no message yet, which a chat template cannot render, or
    only empty ones.
    """
    contexts: list[Sequence[Message]] = []

    def kept(messages: Sequence[Message], rng: Any) -> str:
        contexts.append(messages)
        return ""

    suite.play(ScriptedEngine(replies=kept))
    if not all(contexts):
        raise AssertionError(
            "a turn begins without a message; call agent.user(task.prompt) before it"
        )
    if any(all(not m.content.strip() for m in messages) for messages in contexts):
        raise AssertionError("a turn begins with empty messages alone; give each task a prompt")
    if not contexts:
        raise AssertionError(
            "no episode takes a turn; `await agent.turn()` or `await agent.run(...)` in `rollout`"
        )


def probes(suite: EnvironmentSuite) -> str:
    """Return which replies without work are right, and on how many tasks; empty if none is."""
    answers = [str(t.answer) for t in suite.tasks(suite.splits[0], COLLECTED)]

    def echo(messages: Sequence[Message], rng: Any) -> str:
        return next(m.content for m in reversed(messages) if m.role != "assistant")

    replies: dict[str, Any] = {
        "the last message again": echo,
        "all answers in a line": " ".join(answers),
        "all answers, one a line": "\n".join(answers),
        "all answers in boxes": " ".join(f"\\boxed{{{a}}}" for a in answers),
        "the numbers 0 to 200": " ".join(map(str, range(201))),
    }
    right: dict[str, int] = {}
    for name, reply in replies.items():
        played = suite.play(ScriptedEngine(replies=reply), concurrency=suite.episodes)
        for r in played:
            assert r.outcome is not None, (
                f"the reply {name!r} broke it: {r.termination.kind}: {r.termination.reason}"
            )
        right[name] = sum(reaches(r.outcome.of_player("")) for r in played if r.outcome)
    lines = [
        f"{name}: right on {n} of {suite.episodes} tasks at most" for name, n in right.items() if n
    ]
    return (
        "\n".join([*lines, 'a policy will find such a reply; make it a control with scores="min"'])
        if lines
        else ""
    )
