"""The judge services: a gate, one or several judge models, votes, swaps and canaries around their
calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Self

from quintain import Engine, InfrastructureError, Judgement, Service, need
from quintain.errors import UsageError
from quintain.interfaces import RunStart, StepEnd, StepMeasured
from quintain.store import current_run

from . import gate, rules
from .answers import extracted, same
from .backends import (
    Backend,
    EndpointTable,
    EngineBackend,
    JudgeModels,
    OpenAIBackend,
    Replayed,
)
from .cache import AnswerCache, Spending, default_path
from .calls import Caller, CallSettings
from .canaries import (
    CANARIES,
    PAIR_CANARIES,
    RUBRIC_CANARIES,
    Canary,
    CanaryReport,
    CanaryWatch,
    PairCanary,
    RubricCanary,
)
from .guard import Guard, GuardSettings
from .prompts import Prompt
from .questions import (
    QuestionSettings,
    checked_templates,
    criterion_prompt,
    pair_prompt,
    ranking_prompt,
    reference_prompt,
)
from .rows import drop_later
from .verdicts import Disagreement, Form, Levels, VerdictSettings, majority

COUNTS = "judge.jsonl"
"""In the folder of a run: what its judges did, a line per step and judge."""
LEDGER = "judge-ledger-{}.json"
"""In the folder of a run: what it has spent on each of its judges."""
MET = 0.5
"""Score from which a criterion of a canary counts as met."""


@dataclass(kw_only=True)
class JudgeService(
    GuardSettings, VerdictSettings, CallSettings, QuestionSettings, JudgeModels, Service
):
    """A judge behind any URL with OpenAI's protocol, a panel of such judges, or, without a URL,
    fixed rules.

    Every verdict is a failure until it is read: no answer, a refusal, text that is not the form
    asked for, a score out of range and a disagreement are retried and then raised as
    `InfrastructureError`, which masks the rollout. The rules decide the criteria of
    `quintain_judge.rules` and no others; they need no network.

    What it asks, whom, how the calls are made, how verdicts are read and what guards the judge are
    the settings of the classes that it is made of.

    Attributes:
        cache: file of the answers; empty is ``$QUINTAIN_CACHE/judge.sqlite``, ``none`` keeps them
            in memory.
        record: append every answer to this file, for tests.
        replay: answer from this file alone, without any judge.
    """

    running: ClassVar[set[int]] = set()
    """Numbers of the judges that run in this process. The number of a judge is in its lines of
    ``judge.jsonl`` and in the name of its ledger.
    """

    cache: str = ""
    record: str = ""
    replay: str = ""

    def __post_init__(self) -> None:
        if self.votes < 1 or self.canary_every < 0 or self.longest < 1:
            raise UsageError(
                f"judge: votes {self.votes}, canary_every {self.canary_every}, longest "
                f"{self.longest}; too low"
            )
        if self.votes > 1 and not self.temperature > 0:
            raise UsageError(
                "judge: votes at temperature 0 are all the same; set temperature, such as 0.7"
            )
        if not self.timeout > 0:
            raise UsageError(f"judge: timeout is {self.timeout}; expected more than 0 seconds")
        if self.panel and self.base_url:
            raise UsageError("judge: give base_url or panel, not both")
        checked_templates(self.templates)
        self.form = self.criterion_form()
        self.step = 0
        self.number = 0
        self._counts_file: Path | None = None
        self.guard = Guard(self)
        self.canaries = CanaryWatch(self)
        self.backends: list[Backend] = self._judges()
        for number, backend in enumerate(self.backends):
            backend.number = number
        self.calls: Caller | None = None

    def _judges(self) -> list[Backend]:
        if self.replay:
            return [Replayed() for _ in range(max(1, len(self.panel)))]
        return self.make_backends()

    def make_backends(self) -> list[Backend]:
        """Return the judge models; none means rules."""
        if self.panel:
            return [OpenAIBackend(table) for table in self.panel]
        if not self.base_url:
            return []
        return [
            OpenAIBackend(
                EndpointTable(**{name: getattr(self, name) for name in EndpointTable.model_fields})
            )
        ]

    def _caller(self) -> Caller:
        settings = CallSettings(**{f.name: getattr(self, f.name) for f in fields(CallSettings)})
        path = (
            None
            if self.cache == "none"
            else Path(self.cache).expanduser()
            if self.cache
            else default_path()
        )
        record, replay = (
            Path(text).expanduser() if text else None for text in (self.record, self.replay)
        )
        cache = AnswerCache(path)
        try:
            return Caller(settings, cache, record=record, replay=replay)
        except BaseException:
            cache.close()
            raise

    @property
    def offline(self) -> bool:
        """Whether fixed rules judge, and no model."""
        return not self.backends

    async def __aenter__(self) -> Self:
        started: list[Backend] = []
        self.number = next(number for number in count() if number not in self.running)
        self.running.add(self.number)
        try:
            self.calls = None if self.offline else self._caller()
            if self.calls is not None and (folder := current_run()) is not None:
                self.calls.keep_ledger(folder / LEDGER.format(self.number))
            for backend in self.backends:
                await backend.start()
                started.append(backend)
        except BaseException:
            self.running.discard(self.number)
            for backend in started:
                await backend.stop()
            if self.calls is not None:
                self.calls.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.running.discard(self.number)
        if self.calls is not None:
            await self.calls.stop()
            self.calls.close()
        for backend in self.backends:
            await backend.stop()

    def state(self) -> Mapping[str, Any]:
        """Return what has been spent, and the verdicts of the first canaries."""
        if self.calls is None:
            return {}
        return {
            **self.calls.state(),
            "canaries": dict(self.canaries.first),
            "canary_step": self.canaries.step,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        if self.calls is not None and state:
            self.calls.resume(state["ledger"], Spending(**state["spent"]))
            first = state.get("canaries", {})
            self.canaries.first = (
                dict(first) if isinstance(first, Mapping) else {"reference": list(first)}
            )

    # ---------------------------------------------------------------- hooks of a run
    def quintain_on_run_start(self, event: RunStart) -> None:
        """Begin at the first step of this process, and drop the lines of steps that it repeats."""
        self._counts_file = Path(event.folder) / COUNTS
        drop_later(self._counts_file, event.step)
        self.step = event.step + 1

    def quintain_on_step_measured(self, event: StepMeasured) -> None:
        """Raise the alerts."""
        if alert := self.canaries.alert:
            event.alerts["judge_canaries"] = f"judge_canaries: {alert}"
        if stopped := self.guard.alert():
            event.alerts["judge_gate"] = f"judge_gate: {stopped}"

    def quintain_on_step_end(self, event: StepEnd) -> None:
        """Write a line with the counts so far, and advance the step."""
        self.step = event.step + 1
        if self._counts_file and (not self.offline or self.guard.counts["gated"]):
            row = {"step": event.step, "judge": self.number, **self.metrics()}
            with self._counts_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    # ---------------------------------------------------------------- what rewards ask for
    def gated(self, reply: str) -> str:
        """Return why *reply* gets the lowest score without a call; empty if it is judged. Rules are
        not talked to.
        """
        return self.guard.stopped(self.step, reply, offline=self.offline)

    def ruled(self, reply: str, criterion: str) -> float:
        """Return 1 or 0: whether *reply* meets *criterion*, by rules. Without content it meets
        nothing that no text meets.

        Raises:
            UsageError: no rule decides the criterion.
        """
        met = rules.decided(criterion, reply)
        return met and float(not (self.guard.empty(reply) and rules.decided(criterion, "")))

    async def grade(self, prompt: Any, reply: str, rubric: str) -> Judgement:
        """Return how well *reply* to *prompt* meets *rubric*, from 0 to 1. Its lines are criteria
        of equal weight.
        """
        criteria = [line.strip(" -*\t") for line in rubric.splitlines() if line.strip(" -*\t")]
        if not criteria:
            raise UsageError("an empty rubric; write what a good reply does")
        stopped = self.gated(reply)
        stopped = stopped and f"not judged: {stopped}"
        if stopped and not self.offline:
            return Judgement(score=0.0, reason=stopped)
        judgements = await asyncio.gather(
            *(self.meets(prompt, reply, criterion) for criterion in criteria)
        )
        reasons = "; ".join(filter(None, [stopped, *(j.reason for j in judgements)]))
        return Judgement(score=fmean(j.score for j in judgements), reason=reasons)

    async def meets(
        self,
        prompt: Any,
        reply: str,
        criterion: str,
        *,
        reference: str = "",
        levels: Sequence[tuple[str, float]] = (),
    ) -> Judgement:
        """Return how well *reply* meets one criterion, from 0 to 1; *reply* has passed the gate.

        Args:
            reference: a good reply, which the judge sees, too.
            levels: descriptions with their scores from 0 to 1, of which the judge chooses one;
                none: it gives a score.
        """
        if self.offline:
            return Judgement(score=self.ruled(reply, criterion))
        form = Levels(tuple((text, score) for text, score in levels)) if levels else self.form
        question = criterion_prompt(
            prompt,
            reply,
            criterion,
            form,
            reference=reference,
            template=self.templates.get("criterion", ""),
        )
        return self.mean(await self._verdicts(question))

    async def matches(self, prompt: Any, reply: str, reference: str) -> Judgement:
        """Return 1 if the final answer of *reply* is right by *reference*, else 0.

        Equal text is right without a call, and what has no final answer is wrong without one. The
        judge sees the final answer only, never the explanation, and is asked twice with the labels
        swapped.
        """
        final = extracted(reply)
        if not final:
            return Judgement(score=0.0, reason="not judged: no final answer")
        if same(final, reference):
            return Judgement(score=1.0, reason="equal to the reference")
        if self.offline:
            return Judgement(score=0.0, reason="not equal to the reference")
        if reason := self.guard.stopped_answer(self.step, final):
            return Judgement(score=0.0, reason=f"not judged: {reason}")
        return Judgement(score=float(await self._match(prompt, final, reference)))

    async def _match(
        self, prompt: Any, answer: str, reference: str, *, fresh: bool = False
    ) -> bool:
        async def right(yes: str, no: str) -> bool:
            template = self.templates.get("reference", "")
            question = reference_prompt(
                prompt, answer, reference, yes=yes, no=no, template=template
            )
            return majority(await self._verdicts(question, fresh=fresh)) == yes

        if not self.swap:
            return await right("A", "B")
        verdict, swapped = await asyncio.gather(right("A", "B"), right("B", "A"))
        if verdict != swapped:
            raise Disagreement("the verdict on the answer changed when the labels were swapped")
        return verdict

    async def prefers(
        self, prompt: Any, first: str, second: str, criteria: Sequence[str], *, fresh: bool = False
    ) -> float:
        """Return 1 if *first* is the better reply by *criteria*, 0 if *second* is, 0.5 for a tie.

        Raises:
            Disagreement: the verdict changes with the order, and `on_disagreement` is ``mask``.
        """
        if (known := self.decided(first, second)) is not None:
            return known
        forward = self.in_order(prompt, first, second, criteria, fresh=fresh)
        if not self.swap or self.offline:
            return await forward
        here, there = await asyncio.gather(
            forward, self.in_order(prompt, second, first, criteria, fresh=fresh)
        )
        if here == 1 - there:
            return here
        if self.on_disagreement == "mask":
            raise Disagreement("the preferred reply changed when the two were swapped")
        return 0.5

    def decided(self, first: str, second: str) -> float | None:
        """Return the value of *first* where no call is needed: a tie of equal replies, or one that
        the gate stops loses.
        """
        if first == second:
            return 0.5
        first_stopped, second_stopped = bool(self.gated(first)), bool(self.gated(second))
        if first_stopped == second_stopped:
            return 0.5 if first_stopped else None
        return 0.0 if first_stopped else 1.0

    async def in_order(
        self, prompt: Any, first: str, second: str, criteria: Sequence[str], *, fresh: bool = False
    ) -> float:
        """Return the value of the first of two replies, asked in this order alone, without the
        gate.
        """
        if self.offline:
            one, two = (sum(rules.decided(c, reply) for c in criteria) for reply in (first, second))
            return 0.5 + 0.5 * ((one > two) - (one < two))
        question = pair_prompt(
            prompt, first, second, criteria, template=self.templates.get("pair", "")
        )
        verdict = majority(await self._verdicts(question, fresh=fresh))
        return {"A": 1.0, "B": 0.0, "tie": 0.5}[verdict]

    async def ranks(
        self, prompt: Any, replies: Sequence[str], criteria: Sequence[str]
    ) -> list[float]:
        """Return a score per reply from 1 (best) to 0 (worst) by *criteria*; one call ranks all, a
        second one swapped.

        Equal replies have equal scores, and those that the gate stops have 0. A judge that cannot
        write a list, such as a policy that is asked by likelihood, compares all pairs instead.
        """
        barred = {reply for reply in replies if self.gated(reply)}
        # an order that says nothing about the replies
        distinct = sorted(set(replies) - barred, key=_digest)
        if len(distinct) < 2:
            return [0.0 if reply in barred else 1.0 for reply in replies]
        if self.offline or any(not b.writes for b in self.backends):
            scores = dict(zip(distinct, await self.wins(prompt, distinct, criteria), strict=True))
        else:
            orders = [distinct, distinct[::-1]] if self.swap else [distinct]
            columns = await asyncio.gather(
                *(self._ranking(prompt, order, criteria) for order in orders)
            )
            scores = {reply: fmean(column[reply] for column in columns) for reply in distinct}
        if barred:  # the worst judged reply is still better than none
            scores = {
                reply: (1 + score * (len(distinct) - 1)) / len(distinct)
                for reply, score in scores.items()
            }
        return [0.0 if reply in barred else scores[reply] for reply in replies]

    async def _ranking(
        self, prompt: Any, replies: Sequence[str], criteria: Sequence[str]
    ) -> dict[str, float]:
        labels = tuple(str(i) for i in range(1, len(replies) + 1))
        question = ranking_prompt(prompt, dict(zip(labels, replies, strict=True)), criteria)
        rankings = [ranking for ranking, _ in await self._verdicts(question)]
        worst = len(labels) - 1
        return {
            reply: fmean(1 - ranking.index(label) / worst for ranking in rankings)
            for label, reply in zip(labels, replies, strict=True)
        }

    async def wins(
        self, prompt: Any, replies: Sequence[str], criteria: Sequence[str]
    ) -> list[float]:
        """Return the share of the other replies that each is better than, a tie as half; 0.5 for a
        single one.
        """
        if len(replies) < 2:
            return [0.5] * len(replies)
        pairs = [(i, j) for i in range(len(replies)) for j in range(i + 1, len(replies))]
        values = await asyncio.gather(
            *(self.prefers(prompt, replies[i], replies[j], criteria) for i, j in pairs)
        )
        won = [0.0] * len(replies)
        for (i, j), value in zip(pairs, values, strict=True):
            won[i] += value
            won[j] += 1 - value
        return [w / (len(replies) - 1) for w in won]

    async def write(self, instruction: str, texts: Sequence[tuple[str, str]], form: Form) -> Any:
        """Return what the first judge writes in *form*, such as criteria for a rubric.

        Raises:
            UsageError: rules judge, which write nothing.
        """
        if self.offline:
            raise UsageError(
                "rules write nothing: name a judge that does ([services.judge] with args.base_url)"
            )
        await self._canaries_if_due()
        question = Prompt(
            instruction=instruction, texts=tuple(texts), form=form, longest=self.longest
        )
        verdict, _ = await self._call(self.backends[0], question)
        return verdict

    # ---------------------------------------------------------------- calls
    async def _call(
        self, backend: Backend, prompt: Prompt, vote: int = 0, *, fresh: bool = False
    ) -> tuple[Any, str]:
        if self.calls is None:
            raise InfrastructureError("the judge is not started: use `async with judge:`")
        return await self.calls.call(backend, prompt, vote, fresh=fresh)

    async def _verdicts(self, prompt: Prompt, *, fresh: bool = False) -> list[tuple[Any, str]]:
        """Return the verdicts and reasons of every judge and vote."""
        if not fresh:
            await self._canaries_if_due()
        prompt = replace(prompt, longest=self.longest)
        calls = [
            self._call(backend, prompt, vote, fresh=fresh)
            for backend in self.backends
            for vote in range(self.votes)
        ]
        return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)

    async def _canaries_if_due(self) -> None:
        if not self.replay:
            await self.canaries.judge_if_due(self.step, self.judge_canaries)

    async def judge_canaries(self) -> CanaryReport:
        """Return the verdicts on the canaries of all kinds, through the gate, asked again."""

        async def matched(c: Canary) -> bool:
            final = extracted(c.answer)
            if (
                same(final, c.reference)
                or not final
                or gate.why_empty(final)
                or gate.injection(final)
            ):
                return same(final, c.reference)
            return await self._match(c.question, final, c.reference, fresh=True)

        async def met(c: RubricCanary) -> bool:
            template = self.templates.get("criterion", "")
            question = criterion_prompt(
                c.prompt, c.reply, c.criterion, self.form, template=template
            )
            return self.mean(await self._verdicts(question, fresh=True)).score >= MET

        async def won(c: PairCanary) -> bool:
            return await self.prefers(c.prompt, c.better, c.worse, [c.criterion], fresh=True) == 1

        async def verdict(decision: Awaitable[bool]) -> bool:
            try:
                return await decision
            except Disagreement:
                return False

        questions = {
            "reference": [matched(c) for c in CANARIES],
            "rubric": [met(c) for c in RUBRIC_CANARIES],
            "pair": [won(c) for c in PAIR_CANARIES],
        }
        batches = await asyncio.gather(
            *(asyncio.gather(*map(verdict, batch)) for batch in questions.values())
        )
        return self.canaries.reported(dict(zip(questions, batches, strict=True)))

    def metrics(self) -> dict[str, float]:
        """Return the counts since the start and what the run has spent."""
        if self.calls is None:
            return dict(self.guard.counts)
        spent = self.calls.total
        money = {
            "spent.calls": spent.calls,
            "spent.tokens": spent.tokens,
            "spent.money": spent.money,
        }
        latest = self.canaries.latest
        shares = latest.metrics() if latest else {}
        canaries = {f"canaries.{name}": value for name, value in shares.items()}
        return {**self.guard.counts, **self.calls.counts, **money, **canaries}


@dataclass(kw_only=True)
class EngineJudge(JudgeService):
    """A judge that is an engine of the slot ``judge_engine``: a local model, a frozen copy of a
    run, a script.

    A `TokenEngine` judges by the likelihoods of the verdicts (scores, choices and pairs); others
    write them.

    Attributes:
        cached: whether the engine's answers may be kept in the cache, under its name. The name must
            then say which weights answer, such as that of a checkpoint.
    """

    engine: Engine = need("judge_engine")
    cached: bool = False

    def make_backends(self) -> list[Backend]:
        if self.base_url or self.panel:
            raise UsageError(
                "judge-engine: the engine of the slot judge_engine judges; leave out base_url and "
                "panel"
            )
        return [EngineBackend(self.engine, f"engine {self.engine.name}" if self.cached else "")]


@dataclass(kw_only=True)
class PolicyJudge(JudgeService):
    """The policy judges itself, with the weights of the moment, by the likelihoods of the verdicts.

    Train it on verifiable tasks in the same run, so that its judgement improves with it (the
    self-critique of Kimi K2, 2507.20534, section 3.2.2). Its answers never enter the cache.
    """

    policy: Engine = need("policy")

    def make_backends(self) -> list[Backend]:
        if self.base_url or self.panel:
            raise UsageError("judge-policy: the policy judges; leave out base_url and panel")
        return [EngineBackend(self.policy, "")]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
