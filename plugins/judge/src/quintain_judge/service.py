"""The judge services: a gate, prompts, one or several judge models, votes, swaps and canaries around their calls."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, Self

from quintain import Engine, InfrastructureError, Judgement, Message, Service, need
from quintain.errors import Interrupted, UsageError

from . import gate, rules
from .answers import extracted, same
from .backends import Backend, Endpoint, EndpointTable, EngineBackend, Replayed
from .cache import AnswerCache, Spending, default_path
from .calls import Budget, Caller, CallSettings
from .canaries import CANARIES, CanaryReport, report
from .prompts import Prompt, listed
from .running import RUNNING
from .verdicts import Choice, Form, Ranking, Scale


class Disagreement(InfrastructureError):
    """The verdicts of a panel, of votes or of swapped labels differ: there is no verdict, and the rollout is masked."""


class JudgeHalted(Interrupted):
    """The judge accepts wrong answers or has changed; the run stops as after Ctrl-C."""


@dataclass(kw_only=True)
class JudgeService(Service):
    """A judge behind any URL with OpenAI's protocol, a panel of such judges, or, without a URL, fixed rules.

    Every verdict is a failure until it is read: no answer, a refusal, text that is not the form asked for, a score out
    of range and a disagreement are retried and then raised as `InfrastructureError`, which masks the rollout. The rules
    decide the criteria of `quintain_judge.rules` and no others; they need no network.

    Attributes:
        base_url: of the judge model's server, up to and including ``/v1``; empty judges by rules.
        model: as the server calls it; empty takes the only one that it serves.
        api_key: name of the environment variable that holds the key.
        constrain: how the server is held to the form of a verdict.
        prices: per million tokens of the prompt and of the reply, for the budget of money.
        extra: further fields of each request.
        panel: several judges instead; scores are averaged, choices need a majority.
        votes: samples per judge and question (self-consistency); above 1 with a *temperature* above 0.
        temperature: of the judge.
        swap: ask about pairs, rankings and references a second time with the labels in the other order.
        on_disagreement: of the two orders of a pair: ``tie`` or ``mask``.
        max_spread: standard deviation of the scores of a panel or of votes from which there is no verdict.
        scale: highest score of a criterion; the lowest is 0.
        gate: give answers without content the lowest score without a call.
        injections: ``zero`` gives answers that speak to the judge the lowest score; ``flag`` has them judged and
            counts them.
        concurrency: requests in flight.
        rate: requests per second; 0 is no limit.
        retries: after the first try of a verdict.
        backoff: seconds before the first retry; doubles each time, with jitter.
        timeout: seconds for one try.
        max_tokens: of a verdict.
        seed: of delimiters, jitter and votes.
        budget: calls, tokens and money that the run may spend; then it stops and can be resumed.
        cache: file of the answers; empty is ``$QUINTAIN_CACHE/judge.sqlite``, ``none`` keeps them in memory.
        record: append every answer to this file, for tests.
        replay: answer from this file alone, without any judge.
        canary_every: steps between two batches of answers with known verdicts; 0 is never.
        canary_limit: share of accepted wrong answers above which the run stops.
        canary_drift: share of verdicts that differ from those of the first batch above which the run stops.
    """

    base_url: str = ""
    model: str = ""
    api_key: str = ""
    constrain: Literal["json_schema", "json_object", "none"] = "json_schema"
    prices: list[float] = field(default_factory=lambda: [0.0, 0.0])
    extra: dict[str, Any] = field(default_factory=dict)
    panel: list[EndpointTable] = field(default_factory=list)
    votes: int = 1
    temperature: float = 0.0
    swap: bool = True
    on_disagreement: Literal["tie", "mask"] = "tie"
    max_spread: float = 1.0
    scale: int = 2
    gate: bool = True
    injections: Literal["zero", "flag"] = "zero"
    concurrency: int = 32
    rate: float = 0.0
    retries: int = 3
    backoff: float = 0.5
    timeout: float = 60.0
    max_tokens: int = 512
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    cache: str = ""
    record: str = ""
    replay: str = ""
    canary_every: int = 0
    canary_limit: float = 0.01
    canary_drift: float = 0.1

    def __post_init__(self) -> None:
        if self.votes < 1 or self.scale < 1 or self.canary_every < 0:
            raise UsageError(
                f"judge: votes {self.votes}, scale {self.scale}, canary_every {self.canary_every}; too low"
            )
        if self.votes > 1 and not self.temperature > 0:
            raise UsageError("judge: votes at temperature 0 are all the same; set temperature, such as 0.7")
        if not self.timeout > 0:
            raise UsageError(f"judge: timeout is {self.timeout}; expected more than 0 seconds")
        if self.panel and self.base_url:
            raise UsageError("judge: give base_url or panel, not both")
        self.step = 0
        self.alert = ""
        self.canaries: CanaryReport | None = None
        self.counts: Counter[str] = Counter()
        self._first_canaries: list[bool] = []
        self._canary_step: int | None = None
        self._canary_lock = asyncio.Lock()
        self.backends: list[Backend] = self._judges()
        for number, backend in enumerate(self.backends):
            backend.number = number
        self.calls: Caller | None = None

    def _judges(self) -> list[Backend]:
        if self.replay:
            return [Replayed() for _ in range(max(1, len(self.panel)))]
        return self.make_backends()

    def make_backends(self) -> list[Backend]:
        """The judge models; none means rules."""
        if self.panel:
            return [Endpoint(table) for table in self.panel]
        if not self.base_url:
            return []
        return [Endpoint(EndpointTable(**{name: getattr(self, name) for name in EndpointTable.model_fields}))]

    def _caller(self) -> Caller:
        settings = CallSettings(**{f.name: getattr(self, f.name) for f in fields(CallSettings)})
        path = None if self.cache == "none" else Path(self.cache).expanduser() if self.cache else default_path()
        record, replay = (Path(text).expanduser() if text else None for text in (self.record, self.replay))
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
        try:
            self.calls = None if self.offline else self._caller()
            for backend in self.backends:
                await backend.start()
                started.append(backend)
        except BaseException:
            for backend in started:
                await backend.stop()
            if self.calls is not None:
                self.calls.close()
            raise
        RUNNING.append(self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self in RUNNING:
            RUNNING.remove(self)
        if self.calls is not None:
            await self.calls.stop()
            self.calls.close()
        for backend in self.backends:
            await backend.stop()

    def state(self) -> Mapping[str, Any]:
        """What has been spent, and the verdicts of the first canaries."""
        if self.calls is None:
            return {}
        return {**self.calls.state(), "canaries": list(self._first_canaries), "canary_step": self._canary_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        if self.calls is not None and state:
            self.calls.resume(state["ledger"], Spending(**state["spent"]))
            self._first_canaries = list(state.get("canaries", ()))

    # ---------------------------------------------------------------- what rewards ask for
    def gated(self, reply: str) -> str:
        """Why *reply* gets the lowest score without a call; empty if it is judged."""
        reason = gate.emptiness(reply) if self.gate else ""
        if reason:
            self.counts["gated"] += 1
            return reason
        reason = gate.injection(reply) if self.gate else ""
        if reason:
            self.counts["injections"] += 1
        return reason if self.injections == "zero" else ""

    async def grade(self, prompt: Any, reply: str, rubric: str) -> Judgement:
        """How well *reply* to *prompt* meets *rubric*, from 0 to 1. Its lines are criteria of equal weight."""
        criteria = [line.strip(" -*\t") for line in rubric.splitlines() if line.strip(" -*\t")]
        if not criteria:
            raise UsageError("an empty rubric; write what a good reply does")
        if reason := self.gated(reply):
            return Judgement(score=0.0, reason=f"not judged: {reason}")
        judgements = await asyncio.gather(*(self.meets(prompt, reply, criterion) for criterion in criteria))
        reasons = "; ".join(j.reason for j in judgements if j.reason)
        return Judgement(score=fmean(j.score for j in judgements), reason=reasons)

    async def meets(self, prompt: Any, reply: str, criterion: str) -> Judgement:
        """How well *reply* meets one criterion, from 0 to 1; *reply* has passed the gate."""
        if self.offline:
            return Judgement(score=rules.decided(criterion, reply))
        asked = Prompt(
            instruction="You judge how far a reply meets one criterion. Judge this criterion and nothing else.\n"
            f"Criterion: {criterion}",
            texts=(("prompt", text_of(prompt)), ("reply", reply)),
            form=Scale(0, self.scale),
        )
        verdicts = await self._verdicts(asked)
        scores = [float(score) for score, _ in verdicts]
        if len(scores) > 1 and pstdev(scores) > self.max_spread:
            raise Disagreement(
                f"scores {', '.join(f'{s:.2f}' for s in scores)} spread over more than {self.max_spread}"
            )
        return Judgement(score=fmean(scores), reason=verdicts[0][1])

    async def matches(self, prompt: Any, reply: str, reference: str) -> Judgement:
        """1 if the final answer of *reply* is right by *reference*, else 0.

        Equal text is right without a call, and what has no final answer is wrong without one. The judge sees the final
        answer only, never the explanation, and is asked twice with the labels swapped.
        """
        final = extracted(reply)
        if same(final, reference):
            return Judgement(score=1.0, reason="equal to the reference")
        if not final:
            return Judgement(score=0.0, reason="not judged: no final answer")
        if reason := self.gated(final):
            return Judgement(score=0.0, reason=f"not judged: {reason}")
        if self.offline:
            return Judgement(score=0.0, reason="not equal to the reference")
        return Judgement(score=float(await self._match(prompt, final, reference)))

    async def _match(self, prompt: Any, answer: str, reference: str, *, fresh: bool = False) -> bool:
        async def right(yes: str, no: str) -> bool:
            form = Choice(("A", "B"), f"{yes} if the answer is right, {no} if it is wrong")
            asked = Prompt(
                instruction="You compare an answer with the reference answer of a question. It is right only if it "
                "states the same thing; another form is fine, a wrong or missing value is not.",
                texts=(("question", text_of(prompt)), ("reference", reference), ("answer", answer)),
                form=form,
            )
            return bool(await self._majority(asked, fresh=fresh) == yes)

        if not self.swap:
            return await right("A", "B")
        verdict, swapped = await asyncio.gather(right("A", "B"), right("B", "A"))
        if verdict != swapped:
            raise Disagreement("the verdict on the answer changed when the labels were swapped")
        return verdict

    async def prefers(self, prompt: Any, first: str, second: str, criteria: Sequence[str]) -> float:
        """1 if *first* is the better reply by *criteria*, 0 if *second* is, 0.5 for a tie.

        Raises:
            Disagreement: the verdict changes with the order, and `on_disagreement` is ``mask``.
        """
        if (known := self.decided(first, second)) is not None:
            return known
        forward = self.in_order(prompt, first, second, criteria)
        if not self.swap or self.offline:
            return await forward
        here, there = await asyncio.gather(forward, self.in_order(prompt, second, first, criteria))
        if here == 1 - there:
            return here
        if self.on_disagreement == "mask":
            raise Disagreement("the preferred reply changed when the two were swapped")
        return 0.5

    def decided(self, first: str, second: str) -> float | None:
        """The value of *first* where no call is needed: a tie of equal replies, or one that the gate stops loses."""
        barred = first != second and [bool(self.gated(first)), bool(self.gated(second))]
        return 0.5 if not barred else 0.5 + 0.5 * (barred[1] - barred[0]) if any(barred) else None

    async def in_order(self, prompt: Any, first: str, second: str, criteria: Sequence[str]) -> float:
        """The value of the first of two replies, asked in this order alone, without the gate."""
        if self.offline:
            one, two = (sum(rules.decided(c, reply) for c in criteria) for reply in (first, second))
            return 0.5 + 0.5 * ((one > two) - (one < two))
        return {"A": 1.0, "B": 0.0, "tie": 0.5}[await self._majority(pair_prompt(prompt, first, second, criteria))]

    async def ranks(self, prompt: Any, replies: Sequence[str], criteria: Sequence[str]) -> list[float]:
        """A score per reply from 1 (best) to 0 (worst) by *criteria*; one call ranks all, a second one swapped.

        Equal replies have equal scores, and those that the gate stops have 0. A judge that cannot write a list, such as
        a policy that is asked by likelihood, compares all pairs instead.
        """
        barred = {reply for reply in replies if self.gated(reply)}
        distinct = sorted(set(replies) - barred, key=_digest)  # an order that says nothing about the replies
        if len(distinct) < 2:
            return [0.0 if reply in barred else 1.0 for reply in replies]
        if self.offline or any(not b.writes for b in self.backends):
            scores = dict(zip(distinct, await self.wins(prompt, distinct, criteria), strict=True))
        else:
            orders = [distinct, distinct[::-1]] if self.swap else [distinct]
            columns = await asyncio.gather(*(self._ranking(prompt, order, criteria) for order in orders))
            scores = {reply: fmean(column[reply] for column in columns) for reply in distinct}
        if barred:  # the worst judged reply is still better than none
            scores = {reply: (1 + score * (len(distinct) - 1)) / len(distinct) for reply, score in scores.items()}
        return [0.0 if reply in barred else scores[reply] for reply in replies]

    async def _ranking(self, prompt: Any, replies: Sequence[str], criteria: Sequence[str]) -> dict[str, float]:
        labels = tuple(str(i) for i in range(1, len(replies) + 1))
        asked = Prompt(
            instruction=f"You rank several replies to one prompt by these criteria:\n{listed(criteria)}",
            texts=(("prompt", text_of(prompt)), *((f"reply {n}", r) for n, r in zip(labels, replies, strict=True))),
            form=Ranking(labels),
        )
        rankings = [ranking for ranking, _ in await self._verdicts(asked)]
        worst = len(labels) - 1
        return {
            reply: fmean(1 - ranking.index(label) / worst for ranking in rankings)
            for label, reply in zip(labels, replies, strict=True)
        }

    async def wins(self, prompt: Any, replies: Sequence[str], criteria: Sequence[str]) -> list[float]:
        """The share of the other replies that each is better than, a tie as half; 0.5 for a single one."""
        if len(replies) < 2:
            return [0.5] * len(replies)
        pairs = [(i, j) for i in range(len(replies)) for j in range(i + 1, len(replies))]
        values = await asyncio.gather(*(self.prefers(prompt, replies[i], replies[j], criteria) for i, j in pairs))
        won = [0.0] * len(replies)
        for (i, j), value in zip(pairs, values, strict=True):
            won[i] += value
            won[j] += 1 - value
        return [w / (len(replies) - 1) for w in won]

    async def write(self, instruction: str, texts: Sequence[tuple[str, str]], form: Form) -> Any:
        """What the first judge writes in *form*, such as criteria for a rubric.

        Raises:
            UsageError: rules judge, which write nothing.
        """
        if self.offline:
            raise UsageError("rules write nothing: name a judge that does ([services.judge] with args.base_url)")
        await self._canaries_if_due()
        verdict, _ = await self._call(self.backends[0], Prompt(instruction=instruction, texts=tuple(texts), form=form))
        return verdict

    # ---------------------------------------------------------------- calls
    async def _call(self, backend: Backend, prompt: Prompt, vote: int = 0, *, fresh: bool = False) -> tuple[Any, str]:
        if self.calls is None:
            raise InfrastructureError("the judge is not started: use `async with judge:`")
        return await self.calls.call(backend, prompt, vote, fresh=fresh)

    async def _verdicts(self, prompt: Prompt, *, fresh: bool = False) -> list[tuple[Any, str]]:
        """The verdicts and reasons of every judge and vote."""
        if not fresh:
            await self._canaries_if_due()
        calls = [
            self._call(backend, prompt, vote, fresh=fresh) for backend in self.backends for vote in range(self.votes)
        ]
        return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)

    async def _majority(self, prompt: Prompt, *, fresh: bool = False) -> str:
        verdicts = await self._verdicts(prompt, fresh=fresh)
        verdict, count = Counter(str(v) for v, _ in verdicts).most_common(1)[0]
        if 2 * count <= len(verdicts):
            raise Disagreement(f"no majority among {len(verdicts)} verdicts")
        return verdict

    async def _canaries_if_due(self) -> None:
        """Judge the canaries, if that is due at this step.

        Raises:
            JudgeHalted: too many wrong answers are accepted, or verdicts have changed.
        """
        if not self.canary_every or self.replay:
            return
        async with self._canary_lock:
            last = self._canary_step
            if last is not None and self.step - last < self.canary_every:
                return
            self._canary_step = self.step
            try:
                self.canaries = await self.judge_canaries()
            except BaseException:
                self._canary_step = last  # no verdict on the judge: it is due still
                raise
        result = self.canaries
        worst = f"; it accepted {result.fooled!r}" if result.fooled else ""
        shares = f"{result.accepted:.1%} of wrong answers accepted, {result.changed:.1%} of verdicts changed"
        self.alert = f"judge_canaries: {shares}{worst}." if result.fooled or result.changed else ""
        if result.accepted > self.canary_limit or result.changed > self.canary_drift:
            raise JudgeHalted(
                f"the judge failed its canaries at step {self.step}: {shares}{worst}. Use another judge model, "
                "or raise canary_limit or canary_drift, and resume"
            )

    async def judge_canaries(self) -> CanaryReport:
        """The verdicts on the canaries, through the gate, asked again."""

        async def verdict(question: str, reference: str, answer: str) -> bool:
            final = extracted(answer)
            if same(final, reference) or not final or gate.emptiness(final) or gate.injection(final):
                return same(final, reference)
            try:
                return await self._match(question, final, reference, fresh=True)
            except Disagreement:
                return False

        verdicts = await asyncio.gather(*(verdict(c.question, c.reference, c.answer) for c in CANARIES))
        self._first_canaries = self._first_canaries or list(verdicts)
        return report(list(verdicts), self._first_canaries)

    def metrics(self) -> dict[str, float]:
        """Counts since the start and what the run has spent."""
        if self.calls is None:
            return dict(self.counts)
        spent = self.calls.total
        money = {"spent.calls": spent.calls, "spent.tokens": spent.tokens, "spent.money": spent.money}
        shares = (
            {f"canaries.{k}": getattr(self.canaries, k) for k in ("accepted", "rejected", "changed")}
            if self.canaries
            else {}
        )
        return {**self.counts, **self.calls.counts, **money, **shares}


@dataclass(kw_only=True)
class EngineJudge(JudgeService):
    """A judge that is an engine of the slot ``judge_engine``: a local model, a frozen copy of a run, a script.

    A `TokenEngine` judges by the likelihoods of the verdicts (scores, choices and pairs); others write them.

    Attributes:
        cached: whether the engine's answers may be kept in the cache, under its name. The name must then say which
            weights answer, such as that of a checkpoint.
    """

    engine: Engine = need("judge_engine")
    cached: bool = False

    def make_backends(self) -> list[Backend]:
        if self.base_url or self.panel:
            raise UsageError("judge-engine: the engine of the slot judge_engine judges; leave out base_url and panel")
        return [EngineBackend(self.engine, f"engine {self.engine.name}" if self.cached else "")]


@dataclass(kw_only=True)
class PolicyJudge(JudgeService):
    """The policy judges itself, with the weights of the moment, by the likelihoods of the verdicts.

    Train it on verifiable tasks in the same run, so that its judgement improves with it (the self-critique of Kimi K2,
    2507.20534, section 3.2.2). Its answers never enter the cache.
    """

    policy: Engine = need("policy")

    def make_backends(self) -> list[Backend]:
        if self.base_url or self.panel:
            raise UsageError("judge-policy: the policy judges; leave out base_url and panel")
        return [EngineBackend(self.policy, "")]


def pair_prompt(prompt: str | Sequence[Message], first: str, second: str, criteria: Sequence[str]) -> Prompt:
    """What a judge is asked about two replies, A and B."""
    return Prompt(
        instruction=f"You compare two replies, A and B, to one prompt by these criteria:\n{listed(criteria)}",
        texts=(("prompt", text_of(prompt)), ("A", first), ("B", second)),
        form=Choice(("A", "B", "tie"), "the better reply"),
    )


def text_of(prompt: str | Sequence[Message]) -> str:
    """A prompt as one text; the roles of several messages are named."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return prompt[0].content
    return "\n\n".join(f"({message.role}) {message.content}" for message in prompt)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
