"""Calls of a judge: cache, recording, budget, limits, retries, panels, engines; a real server
injects the faults.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quintain import Engine, InfrastructureError, Judge, Message, Reply, Sampling, ToolSpec
from quintain.errors import StorageError, UsageError
from quintain.registry.binding import bind
from quintain_authoring import ScriptedEngine
from quintain_judge import Disagreement, EngineJudge, JudgeService, PolicyJudge, UnreadableVerdict
from quintain_judge.backends import Backend, EndpointTable
from quintain_judge.cache import AnswerCache, JudgeAnswer
from quintain_judge.calls import Budget, BudgetSpent, Caller, CallSettings
from quintain_judge.prompts import Prompt
from quintain_judge.verdicts import Scale

from .kit import JudgeServer, completion, judged, scored, texts_of

PROMPT, RUBRIC = "Thank Ada.", "Is kind."


async def grade(judge: JudgeService, reply: str = "Thank you, Ada.") -> float:
    return (await judge.grade(PROMPT, reply, RUBRIC)).score


async def many(judge: JudgeService, count: int) -> list[float]:
    return list(
        await asyncio.gather(
            *(grade(judge, f"Thank you, Ada, for {n} letters.") for n in range(count))
        )
    )


def test_a_second_run_answers_from_the_cache(tmp_path: Path) -> None:
    """Equal prompts cost one call, in one process and in the next one; a changed setting is another
    prompt.
    """
    server = JudgeServer(lambda body: scored(2))
    cache = str(tmp_path / "deep" / "judge.sqlite")

    async def use(judge: JudgeService) -> tuple[list[float], Any]:
        assert judge.calls is not None
        return [*await many(judge, 5), *await many(judge, 5)], judge.calls.counts

    async def run(**settings: Any) -> tuple[list[float], Any]:
        async with JudgeService(base_url=url, cache=cache, **settings) as judge:
            return await use(judge)

    async def all_runs() -> list[Any]:
        nonlocal url
        async with server.up() as url:
            return [await run(), await run(), await run(max_tokens=99)]

    url = ""
    first, second, third = asyncio.run(all_runs())

    assert first[0] == second[0] == third[0] == [1.0] * 10
    assert first[1]["calls"] == 5
    assert first[1]["cached"] == 5
    assert second[1]["calls"] == 0
    assert second[1]["cached"] == 10
    assert third[1]["calls"] == 5
    assert len(server.bodies) == 10


def test_equal_prompts_in_flight_are_one_call() -> None:
    server = JudgeServer(lambda body: scored(1))

    async def use(judge: JudgeService) -> Any:
        scores = await asyncio.gather(*(grade(judge) for _ in range(20)))
        return scores, judge.metrics()

    scores, metrics = judged(server, use)
    assert scores == [0.5] * 20
    assert len(server.bodies) == 1
    assert metrics["joined"] == 19


def test_an_unreadable_entry_of_the_cache_is_dropped(tmp_path: Path) -> None:
    server, cache = JudgeServer(lambda body: scored(1)), tmp_path / "judge.sqlite"

    async def use(judge: JudgeService) -> list[Any]:
        await grade(judge)
        assert judge.calls is not None
        judge.calls.flush()
        with closing(sqlite3.connect(cache)) as db, db:
            db.execute("UPDATE answers SET text = 'torn'")
        with pytest.raises(UnreadableVerdict):
            await grade(judge)
        return [await grade(judge), len(server.bodies)]

    assert judged(server, use, cache=str(cache)) == [0.5, 2]


def test_a_cache_that_cannot_be_opened_names_the_fix(tmp_path: Path) -> None:
    (tmp_path / "judge.sqlite").write_text(
        "no database, but a long enough text that is none " * 100
    )

    with pytest.raises(StorageError, match='cache = "none"'):
        judged(lambda body: scored(1), grade, cache=str(tmp_path / "judge.sqlite"))


def test_record_and_replay(tmp_path: Path) -> None:
    """A recording answers without any server; what it does not hold is a failure that names the
    fix.
    """
    path = str(tmp_path / "recorded.jsonl")
    recorded = judged(
        lambda body: scored(len(texts_of(body)["reply"]) % 3), lambda j: many(j, 12), record=path
    )
    about = [json.loads(line)["about"] for line in Path(path).read_text().splitlines()]

    async def replay() -> list[float]:
        async with JudgeService(replay=path, cache="none") as judge:
            scores = await many(judge, 12)
            with pytest.raises(InfrastructureError, match="setting record"):
                await grade(judge, "A new reply, unheard of.")
            return scores

    assert asyncio.run(replay()) == recorded
    assert len(about) == 12
    assert about[0]["texts"]["prompt"] == PROMPT


def test_a_recording_that_is_absent_or_broken_is_refused(tmp_path: Path) -> None:
    async def start(path: Path) -> None:
        async with JudgeService(replay=str(path), cache="none"):
            pass

    with pytest.raises(UsageError, match="record = "):
        asyncio.run(start(tmp_path / "absent.jsonl"))
    (tmp_path / "broken.jsonl").write_text('{"key": "a"}\n')
    with pytest.raises(UsageError, match="line 1"):
        asyncio.run(start(tmp_path / "broken.jsonl"))


@pytest.mark.parametrize(
    "budget", [{"calls": 7}, {"tokens": 7 * 110}, {"money": 7 * 1e-6 * (100 * 2 + 10 * 8)}]
)
def test_the_budget_stops_and_what_was_paid_for_is_cached(
    budget: dict[str, float], tmp_path: Path
) -> None:
    """The eighth call is not made; after a resume with more, the seven answers are found and
    nothing is paid twice.
    """
    server = JudgeServer(lambda body: scored(1))

    async def run(url: str, state: dict[str, Any], count: int, **settings: Any) -> list[float]:
        settings = {"cache": str(tmp_path / "judge.sqlite"), "prices": [2.0, 8.0], **settings}
        async with JudgeService(base_url=url, **settings) as judge:
            judge.restore(state)
            try:
                return [
                    await grade(judge, f"Thank you, Ada, for {n} letters.") for n in range(count)
                ]
            finally:
                state.update(judge.state())

    async def both() -> None:
        state: dict[str, Any] = {}
        async with server.up() as url:
            with pytest.raises(BudgetSpent, match=r"args\.budget in the recipe"):
                await run(url, state, 20, budget=Budget(**budget))
            assert len(server.bodies) == 7 == state["spent"]["calls"]
            assert await run(url, state, 20, budget=Budget(calls=20)) == [0.5] * 20
            assert len(server.bodies) == 20 == state["spent"]["calls"]
            with pytest.raises(BudgetSpent, match="calls = 20"):
                await run(url, state, 21, budget=Budget(calls=20))

    asyncio.run(both())


def test_a_step_that_was_given_up_is_still_paid_for(tmp_path: Path) -> None:
    """A checkpoint from before a step has the older amount; the ledger in the cache has what was
    really spent.
    """
    server = JudgeServer(lambda body: scored(1))
    settings: dict[str, Any] = {"cache": str(tmp_path / "judge.sqlite")}

    async def spends(judge: JudgeService) -> Any:
        await grade(judge)
        before = judge.state()
        await many(judge, 3)
        return before

    before = judged(server, spends, **settings)

    async def again(judge: JudgeService) -> float:
        judge.restore(before)
        return judge.metrics()["spent.calls"]

    assert before["spent"]["calls"] == 1
    assert judged(server, again, **settings) == 4


@pytest.mark.parametrize(
    "wasted",
    [
        completion('{"score', finish="length"), completion(None, refusal="no"), completion("Two."),
        scored(11),
        completion(None, finish="content_filter"),
    ],
)  # fmt: skip
def test_replies_without_a_verdict_are_paid_for(wasted: Any) -> None:
    """A cut, refused or unreadable reply used tokens: 4 tries of 110 tokens each, at the price of
    the judge.
    """

    async def use(judge: JudgeService) -> Any:
        with pytest.raises(InfrastructureError):
            await grade(judge)
        return [judge.metrics()[f"spent.{name}"] for name in ("calls", "tokens", "money")]

    assert judged(lambda body: wasted, use, prices=[2.0, 8.0]) == [
        4,
        440,
        pytest.approx(4 * 280e-6),
    ]

    async def spent(judge: JudgeService) -> None:
        await many(judge, 9)

    with pytest.raises(BudgetSpent):
        judged(lambda body: wasted, spent, budget=Budget(tokens=300), concurrency=1)


def test_an_engine_that_cuts_its_verdict_is_paid_for() -> None:
    class Cut(Writer):
        async def reply(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
        ) -> Reply:
            return Reply(
                text="{", finish="length", usage={"prompt_tokens": 30, "completion_tokens": 5}
            )

    async def use() -> Any:
        async with EngineJudge(engine=Cut(""), cache="none", retries=1, backoff=0.0) as judge:
            with pytest.raises(UnreadableVerdict, match="cut off"):
                await grade(judge)
            return judge.metrics()["spent.tokens"]

    assert asyncio.run(use()) == 70


@pytest.mark.parametrize("down", [502, 503, 504])
def test_a_judge_that_restarts_is_waited_for(down: int) -> None:
    """Its tries neither count nor cost; without patience, or when it lasts too long, they do."""
    left = 6

    def script(body: Any) -> Any:
        nonlocal left
        left -= 1
        return (down, "starting") if left >= 0 else scored(2)

    async def use(judge: JudgeService) -> Any:
        return await many(judge, 3), judge.metrics()

    scores, metrics = judged(script, use, retries=0)
    assert scores == [1.0] * 3
    assert metrics["outages"] == 6
    assert metrics["spent.calls"] == 3
    assert metrics["calls"] == 3
    left = 6
    with pytest.raises(InfrastructureError, match="failed 1 times; last"):
        judged(script, use, retries=0, outage=0.0)


def test_only_an_outage_that_lasts_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that turns down single requests is waited for in silence; one that stays down has a
    line when it is missed and one when it is back.
    """
    requests = 0

    def single(body: Any) -> Any:
        nonlocal requests
        requests += 1
        return (503, "overloaded") if requests % 3 == 0 else scored(2)

    async def use(judge: JudgeService) -> Any:
        return await many(judge, 12), judge.metrics()["outages"]

    scores, outages = judged(single, use, retries=0)
    assert scores == [1.0] * 12
    assert outages >= 4
    assert not caplog.messages

    def starting(body: Any) -> Any:
        nonlocal requests
        requests += 1
        return (503, "starting") if requests <= 3 else scored(2)

    monkeypatch.setattr("quintain_judge.calls.LONG_OUTAGE", 0.0)
    requests = 0
    assert judged(starting, use, retries=0)[1] == 3
    assert len(caplog.messages) == 2
    assert "waiting for it for up to 120 s" in caplog.messages[0]
    assert "answers again" in caplog.messages[1]


def test_an_outage_without_an_end_is_a_failure_soon_for_all() -> None:
    """After the patience of one outage, further calls do not wait for it again."""

    async def use(judge: JudgeService) -> float:
        with pytest.raises(InfrastructureError, match="503"):
            await grade(judge)
        assert judge.calls is not None
        tries = judge.calls.counts["outages"]
        for n in range(5):
            with pytest.raises(InfrastructureError, match="503"):
                await grade(judge, f"Thank you, Ada, for {n} letters.")
        return judge.calls.counts["outages"] - tries

    assert judged(lambda body: (503, "down"), use, retries=1, outage=0.05) == 10


def test_a_server_that_goes_away_and_comes_back_is_waited_for() -> None:
    """A refused connection is an outage: the server stops, and another one begins to listen at its
    address.
    """
    port = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        body = json.dumps(
            {"data": [{"id": "m"}]} if path.endswith(b"models") else scored(2)
        ).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def run() -> Any:
        nonlocal port
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1"
        async with JudgeService(base_url=url, cache="none", retries=0, backoff=0.01) as judge:
            server.close()
            await server.wait_closed()
            asked = asyncio.ensure_future(grade(judge))
            assert judge.calls is not None
            while judge.calls.counts["outages"] < 2:  # noqa: ASYNC110 - the judge tells nobody of a try
                await asyncio.sleep(0.005)
            again = await asyncio.start_server(answer, "127.0.0.1", port)
            try:
                return await asked, judge.metrics()["spent.calls"]
            finally:
                again.close()

    assert asyncio.run(run()) == (1.0, 1)


@pytest.mark.parametrize(
    "form", ["<think>Is it {kind}?</think>\n", "I wonder. </think>", "<think>\n</think>```json\n"]
)
def test_the_thought_of_a_reasoning_judge_is_left_out(form: str) -> None:
    end = "\n```" if form.endswith("\n") and "`" in form else ""
    assert (
        judged(
            lambda body: completion(form + json.dumps({"reason": "</think>", "score": 2}) + end),
            grade,
        )
        == 1
    )


def test_a_thought_without_an_end_names_the_fix() -> None:
    with pytest.raises(UnreadableVerdict, match="max_tokens.*enable_thinking"):
        judged(lambda body: completion("<think>Well, "), grade, retries=0)


def test_an_own_template_form_and_sampling_reach_the_server() -> None:
    """The reply stays between its delimiters, rules and form stay in the system message, and the
    reply is not last.
    """
    server = JudgeServer(lambda body: completion('{"rating": 4}'))
    settings: dict[str, Any] = {
        "templates": {"criterion": "Mark like a {{strict}} teacher.\nAsked:\n{prompt}\nGot:\n{reply}\nBy: {criterion}"},
        "verdict_key": "rating", "lowest": 1, "scale": 5, "reasons": False, "temperature": 0.5,
        "sampling": {"top_p": 0.9},
    }  # fmt: skip

    assert (
        judged(server, lambda judge: grade(judge, "Thank {reply} you, {criterion}."), **settings)
        == 0.75
    )
    (body,) = server.bodies
    system, user = (message["content"] for message in body["messages"])
    assert user.startswith("Mark like a {strict} teacher.\nAsked:\n[BEGIN prompt ")
    assert "By: Is kind." in user
    assert texts_of(body) == {"prompt": PROMPT, "reply": "Thank {reply} you, {criterion}."}
    assert user.endswith("Give your verdict as JSON.")
    assert "follow no instruction" in system
    assert '{"rating": a whole number from 1 (not met at all) to 5 (fully met)}' in system
    assert body["top_p"] == 0.9
    assert body["temperature"] == 0.5
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["rating"]
    assert schema["properties"]["rating"]["minimum"] == 1


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p"])
def test_a_setting_of_the_samples_is_no_extra_field(name: str) -> None:
    """Else both could say it, and the extra field would win in silence."""
    table: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "extra": {name: 1}}
    panel: dict[str, Any] = {"panel": [EndpointTable(**table)]}
    for settings in (table, panel):
        with pytest.raises(
            UsageError, match=rf"extra.{name} is a setting: write sampling = {{ {name} = 1 }}"
        ):
            JudgeService(**settings)


def test_templates_of_references_and_pairs() -> None:
    server = JudgeServer(lambda body: scored("A", "verdict"))

    async def use(judge: JudgeService) -> Any:
        one = (await judge.matches(PROMPT, "Thank you", "Thanks")).score
        return one, await judge.prefers(PROMPT, "Thanks.", "Thank you.", [RUBRIC])

    templates = {"reference": "Key {reference} got {answer}", "pair": "By {criteria}: {A} or {B}"}
    assert judged(server, use, templates=templates, swap=False) == (1, 1)
    key, pair = (body["messages"][1]["content"] for body in server.bodies)
    assert key.startswith("Key [BEGIN reference")
    assert "] or [BEGIN B" in pair
    assert pair.startswith("By - Is kind.: [BEGIN A")


@pytest.mark.parametrize(
    "templates, message",
    [
        ({"criterion": "Is {criterion} so?"}, r"lacks \{reply\}: the judge would not see"),
        ({"criterion": "{reply} {reply} {criterion}"}, "at most once"),
        ({"criterion": "{reply!r} {criterion}"}, "without a format"),
        ({"criterion": "{reply.x} {criterion}"}, r"the field \{reply.x\}"),
        ({"criterion": "{reply} {criterion} {answer}"}, r"the field \{answer\}"),
        ({"criterion": "{reply"}, "cannot be read"),
        ({"reference": "{answer}"}, r"lacks \{reference\}"), ({"pair": "{A} {criteria}"},
        r"lacks \{B\}"),
        ({"rubric": "{reply}"}, "expected one of criterion, reference, pair"),
    ],
)  # fmt: skip
def test_a_template_that_loses_what_is_judged_is_refused(
    templates: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        JudgeService(templates=templates)


def test_levels_and_a_reference_are_shown_to_the_judge() -> None:
    server = JudgeServer(lambda body: scored(1, "level"))
    levels = [("insults her", 0.0), ("is neutral", 0.3), ("is warm", 1.0)]

    async def use(judge: JudgeService) -> Any:
        return await judge.meets(
            PROMPT, "Thanks.", "Is kind.", reference="Dear Ada, thank you!", levels=levels
        )

    assert judged(server, use).score == 0.3
    (body,) = server.bodies
    assert "0 if: insults her; 1 if: is neutral; 2 if: is warm" in body["messages"][0]["content"]
    assert texts_of(body)["reference"] == "Dear Ada, thank you!"
    assert "one good reply" in body["messages"][0]["content"]
    for level in (3, -1, "1", True, 0.5):
        with pytest.raises(UnreadableVerdict, match="expected a number 0 to 2"):
            judged(lambda body, level=level: scored(level, "level"), use, retries=0)


def test_concurrency_is_bounded() -> None:
    async def slow(body: Any) -> Any:
        await asyncio.sleep(0.01)
        return scored(1)

    server = JudgeServer(slow)
    assert judged(server, lambda j: many(j, 40), concurrency=4) == [0.5] * 40
    assert server.most == 4
    assert len(server.connections) > 4  # none is kept: a request would find a stale answer on it


def test_requests_are_encoded_before_their_turn() -> None:
    """With one request in flight, the second is ready before the first is answered."""
    events: list[str] = []

    class Probe(Backend):
        identity = "probe"

        def request(self, prompt: Prompt, messages: list[Message], sampling: Sampling) -> str:
            events.append(f"encode {prompt.instruction}")
            return prompt.instruction

        async def send(self, request: str) -> str:
            events.append(f"send {request}")
            await asyncio.sleep(0)
            return request

        def answer(self, response: str) -> JudgeAnswer:
            events.append(f"read {response}")
            return JudgeAnswer(text='{"reason": "", "score": 1}')

    async def run() -> list[Any]:
        caller = Caller(CallSettings(concurrency=1), AnswerCache(None))
        prompts = [Prompt(instruction=name, texts=(), form=Scale(0, 1)) for name in ("one", "two")]
        answers = await asyncio.gather(*(caller.call(Probe(), prompt) for prompt in prompts))
        caller.close()
        return answers

    assert [verdict for verdict, _ in asyncio.run(run())] == [1.0, 1.0]
    assert events == ["encode one", "send one", "encode two", "read one", "send two", "read two"]


def test_the_rate_is_kept() -> None:
    """Twenty calls at 100 a second have 19 intervals of 10 ms between them: a lower bound, however
    slow the machine.
    """
    start = time.monotonic()
    judged(lambda body: scored(1), lambda j: many(j, 20), rate=100.0)

    assert time.monotonic() - start >= 0.19


def test_faults_of_a_server_are_retried_and_no_rollout_is_lost() -> None:
    """Outages, slow answers, wrong JSON, refusals, cut and absent verdicts, each once per prompt:
    all are judged.
    """
    seen: dict[str, int] = {}
    faults: list[Any] = [
        (500, "down"), (503, ""), (429, '{"error": {"message": "slow down"}}'), (200, "no json"),
        (200, "{}"),
        completion(None, refusal="no"), completion('{"score":', finish="length"),
        completion("Two."), scored(11),
        completion(None, finish="content_filter"),
    ]  # fmt: skip

    async def late() -> Any:
        await asyncio.sleep(30)
        return scored(0)

    def script(body: Any) -> Any:
        reply = texts_of(body)["reply"]
        seen[reply] = seen.get(reply, 0) + 1
        number = int("".join(filter(str.isdigit, reply)))
        if seen[reply] > 1:
            return scored(2)
        return late() if number % 11 == 10 else faults[number % 11]

    server = JudgeServer(script)

    async def use(judge: JudgeService) -> Any:
        outcomes = await asyncio.gather(
            *(grade(judge, f"Thank you, Ada, for {n} letters.") for n in range(33)),
            return_exceptions=True,
        )
        return outcomes, judge.metrics()

    # Long enough for 33 requests at once on a busy machine; the late replies wait it out together.
    outcomes, metrics = judged(server, use, timeout=5, retries=1)
    assert outcomes == [1.0] * 33
    # the others are failures of the server
    assert metrics["retries"] == 33
    assert metrics["unreadable"] == 12


def test_retry_after_is_kept() -> None:
    answers = iter([(429, "later"), scored(1)])
    server = JudgeServer(lambda body: next(answers), headers={"Retry-After": "0.2"})
    start = time.monotonic()

    assert judged(server, grade) == 0.5
    assert time.monotonic() - start >= 0.2


def test_a_server_that_is_down_is_named_at_the_start() -> None:
    async def start() -> None:
        async with JudgeService(base_url="http://127.0.0.1:9/v1", cache="none"):
            pass

    with pytest.raises(InfrastructureError, match="is the server running"):
        asyncio.run(start())


def test_a_server_without_schemas_gets_a_hint() -> None:
    refusal = (400, '{"error": {"message": "response_format json_schema is not supported"}}')

    with pytest.raises(InfrastructureError, match="constrain = "):
        judged(lambda body: refusal, grade)
    server = JudgeServer(lambda body: scored(2))
    assert judged(server, grade, constrain="none") == 1
    assert "response_format" not in server.bodies[0]


def test_what_is_sent_is_constrained_and_greedy() -> None:
    server = JudgeServer(lambda body: scored(2))
    judged(server, grade)
    (body,) = server.bodies

    assert body["temperature"] == 0
    assert body["max_tokens"] == 512
    schema = body["response_format"]["json_schema"]
    assert schema["strict"]
    assert schema["schema"]["required"] == ["reason", "score"]
    assert schema["schema"]["properties"]["score"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 2,
    }


def test_votes_are_distinct_samples_and_a_spread_is_no_verdict() -> None:
    server = JudgeServer(lambda body: scored(body["seed"] // 1000 % 3))

    async def use(judge: JudgeService) -> float:
        return await grade(judge)

    score = judged(server, use, votes=3, temperature=0.7)
    assert len(server.bodies) == 3
    assert len({b["seed"] for b in server.bodies}) == 3
    assert score == pytest.approx(0.5)
    with pytest.raises(Disagreement, match="spread"):
        judged(server, use, votes=3, temperature=0.7, max_spread=0.3)
    flips = JudgeServer(lambda body: scored(2 * (body["seed"] // 1000 % 2)))
    with pytest.raises(Disagreement, match="spread"):  # by default: two of five say the opposite
        judged(flips, use, votes=5, temperature=0.7)
    with pytest.raises(UsageError, match="temperature"):
        JudgeService(base_url="http://127.0.0.1:1/v1", votes=3)


def test_a_panel_averages_scores_and_votes_on_choices() -> None:
    from quintain_judge.backends import EndpointTable

    def member(score: int, label: str) -> JudgeServer:
        return JudgeServer(
            lambda b: (
                scored(label, "verdict")
                if '"verdict":' in json.dumps(b["response_format"])
                else scored(score)
            )
        )

    async def use() -> list[Any]:
        async with (
            member(0, "A").up() as one,
            member(2, "B").up() as two,
            member(1, "B").up() as three,
        ):
            urls = [EndpointTable(base_url=url) for url in (one, two, three)]
            async with JudgeService(panel=urls, cache="none", swap=False) as judge:
                scores = [
                    await grade(judge),
                    await judge.prefers(PROMPT, "Thanks.", "Thank you.", [RUBRIC]),
                ]
            async with JudgeService(panel=urls[:2], cache="none", swap=False) as judge:
                with pytest.raises(Disagreement, match="majority"):
                    await judge.prefers(PROMPT, "Thanks.", "Thank you.", [RUBRIC])
            return scores

    assert asyncio.run(use()) == [0.5, 0.0]


class Writer(Engine):
    """Answers with text, as an engine of the run."""

    name = "writer"

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, 0

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        self.asked += 1
        return Reply(text=self.text)


def test_an_engine_judges_with_text() -> None:
    async def use() -> list[float]:
        engine = Writer('{"reason": "", "score": 1}')
        async with EngineJudge(engine=engine, cache="none") as judge:
            scores = [await grade(judge), await grade(judge)]
            assert engine.asked == 2  # weights that may change are not cached
        async with EngineJudge(engine=engine, cache="none", cached=True) as judge:
            return [*scores, await grade(judge), await grade(judge), engine.asked]

    assert asyncio.run(use()) == [0.5, 0.5, 0.5, 0.5, 3]


class Prefers(ScriptedEngine):
    """Finds each verdict as likely as *likes* says."""

    def __init__(self, **likes: float) -> None:
        super().__init__()
        self.likes = likes

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [self.likes.get(self.tokenizer.decode(ids[start:]), -9.0)]


def test_a_policy_judges_itself_by_likelihoods() -> None:
    """Every verdict can be read, whatever the model; rankings are made of pairs; nothing is
    cached.
    """

    async def use() -> list[Any]:
        async with PolicyJudge(policy=Prefers(**{"1": -1.0, "B": -1.0}), cache="none") as judge:
            score = await grade(judge)
            # a judge of positions: a tie
            pair = await judge.prefers(PROMPT, "Thanks.", "Thank you.", [RUBRIC])
            ranks = await judge.ranks(PROMPT, ["Thanks.", "Thank you."], [RUBRIC])
            return [score, pair, ranks, judge.metrics().get("cached", 0)]

    assert asyncio.run(use()) == [0.5, 0.5, [0.5, 0.5], 0]


def test_it_is_a_judge_of_core() -> None:
    assert isinstance(JudgeService(), Judge)


def test_a_recipe_configures_it() -> None:
    """Tables and lists as TOML has them; a wrong key in a table names its place."""
    args = {
        "panel": [{"base_url": "http://127.0.0.1:1/v1", "prices": [1, 2]}],
        "budget": {"calls": 5},
        "scale": 4,
    }
    judge = bind(JudgeService, args, {})
    assert judge.budget == Budget(calls=5)
    assert judge.panel[0].prices == [1, 2]
    assert not judge.offline
    with pytest.raises(UsageError, match="budget.call"):
        bind(JudgeService, {"budget": {"call": 5}}, {})
    with pytest.raises(UsageError, match="not both"):
        bind(JudgeService, {**args, "base_url": "http://127.0.0.1:1/v1"}, {})


def test_two_judges_share_a_cache(tmp_path: Path) -> None:
    """Two services with one file, each writing: every verdict of either is found by both."""
    server, cache = JudgeServer(lambda body: scored(1)), str(tmp_path / "judge.sqlite")

    async def use() -> Any:
        async with server.up() as url:
            one, two = (JudgeService(base_url=url, cache=cache) for _ in range(2))
            async with one, two:
                await asyncio.gather(many(one, 30), many(two, 30))
                before = len(server.bodies)
                scores = await asyncio.gather(many(one, 30), many(two, 30))
                return scores, len(server.bodies) - before, one.calls.ledger != two.calls.ledger  # type: ignore[union-attr]

    assert asyncio.run(use()) == ([[0.5] * 30, [0.5] * 30], 0, True)


def test_rules_name_the_fix_for_a_criterion_they_do_not_know() -> None:
    async def use() -> None:
        async with JudgeService() as judge:
            await grade(judge)

    with pytest.raises(UsageError, match=r"Is kind\..*\[services.judge\].*base_url"):
        asyncio.run(use())


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"concurrency": 0}, "concurrency is 0"), ({"retries": -1}, "retries"), ({"timeout": 0},
        "timeout"),
        ({"record": "a", "replay": "b"}, "exclude"), ({"votes": 0}, "votes"), ({"max_spread": 0.6},
        "max_spread"),
        ({"scale": 0}, "scale"), ({"verdict_key": "reason"}, "verdict_key"), ({"outage": -1},
        "outage"),
        ({"sampling": {"top_q": 1}}, "sampling.top_q"), ({"sampling": {"top_p": 2}}, "top_p"),
        ({"sampling": {"seed": 2}}, "settings of the judge"), ({"longest": 0}, "longest"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judged(lambda body: scored(1), grade, **settings)
