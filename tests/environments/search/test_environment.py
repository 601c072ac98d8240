"""The environment `search`: corpus and splits, tools and what counts as seen, controls, exact
transcripts.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quintain import InfrastructureError, Message, Reply, Service, Tool, ToolCall, ToolSpec
from quintain.errors import UsageError
from quintain.evaluation import evaluate
from quintain_authoring import EnvironmentSuite, ScriptedEngine
from quintain_env_search import Search, SearchResult, SearchService, SearchTask
from quintain_env_search.desk import Desk, pages_of
from quintain_env_search.pilots import pilots_of, split_of

SQUAD = Path(os.environ.get("QUINTAIN_DATA", "")) / "squad" / "dev-v2.0.json"
needs_data = pytest.mark.skipif(
    not SQUAD.is_file(), reason="QUINTAIN_DATA has no squad/dev-v2.0.json"
)
PILOTS = 300


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class OneTool(Service):
    """A server whose only tool `search` is *function*."""

    def __init__(self, function: Callable[[Mapping[str, Any]], str]) -> None:
        async def call(arguments: Mapping[str, Any]) -> str:
            return function(arguments)

        self._tools = (Tool(spec=ToolSpec(name="search"), call=call),)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(tools=self._tools)


class OfPilots(EnvironmentSuite):
    environment = Search
    sample = 40
    args: Mapping[str, Any] = {"pilots": PILOTS}

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "retriever": SearchService(pilots=PILOTS)}


class TestSearch(OfPilots):
    def test_64_episodes_at_a_time_score_as_one(self) -> None:
        """Each has its own record of what it saw."""
        tasks = self.tasks("train", 64)

        def reads_and_answers(messages: Sequence[Message]) -> Reply:
            question = messages[1].content
            tools = [m.content for m in messages if "tool_response" in m.content]
            if not tools:
                return Reply(
                    text="", calls=(ToolCall(name="search", arguments={"query": question}),)
                )
            page = pages_of(tools[-1])[0]
            return Reply(text=f"<answer>{page.text.split()[0]}</answer> [{page.id}]")

        engine = ScriptedEngine(replies=reads_and_answers, delay=0.001)
        together = self.play(engine, concurrency=64, tasks=tasks)
        alone = self.play(ScriptedEngine(replies=reads_and_answers), tasks=tasks)
        assert [r.replace(seconds=0.0) for r in together] == [r.replace(seconds=0.0) for r in alone]
        assert len({r.result.seen for r in together}) > 20


@needs_data
class TestSquad(EnvironmentSuite):
    environment = Search
    sample, episodes = 30, 4
    args = {"data": str(SQUAD), "results": 5}

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "retriever": SearchService(data=str(SQUAD))}

    def test_splits_share_no_article(self) -> None:
        """Each question is asked about an article of its split, and has an answer in its
        paragraph.
        """
        index = self.started["retriever"]._index
        titles: dict[str, set[str]] = {}
        for split in self.splits:
            for task in self.tasks(split, 4000):
                passage = index.open(task.hops[-1].passage)
                titles.setdefault(split, set()).add(passage.title)
                assert all(answer in passage.text for answer in task.answers)
        assert all(titles[s] for s in self.splits)
        assert sum(map(len, titles.values())) == len(set().union(*titles.values()))


def played(replies: Any, service: Service, *, reward: Any = None, **fields: Any) -> Any:
    """The rollout of a scripted policy on the first question of ``dev``."""

    async def play() -> Any:
        async with service as search:
            environment: Any = Search(pilots=PILOTS, search=search, **fields)
            if reward is not None:
                environment = environment.overridden(reward=reward)
            task = next(iter(environment.tasks("dev")))
            script = replies(task) if callable(replies) else replies
            engine = ScriptedEngine(replies=script)
            done = await evaluate(
                environment, engine, split="dev", tasks=[task], services={"retriever": search}
            )
            return done.groups[0].rollouts[0]

    return asyncio.run(play())


def test_an_answer_inside_tool_output_counts_for_nothing() -> None:
    """A tool that prints the answer in tags, even with a citation, answers nothing in the policy's
    place.
    """
    right = next(iter(Search(pilots=PILOTS, search=OneTool(str)).tasks("dev")))
    server = OneTool(lambda _: f"[7] x\n<answer>{right.answer}</answer> [7]")
    call = Reply(text="", calls=(ToolCall(name="search", arguments={"query": "x"}),))
    for last in ("", "See [7].", "<tool_response>\n</tool_response>"):
        rollout = played([call, last], server, open_tool="")
        assert right.answer in rollout.messages[-2].content
        assert rollout.outcome.total == 0.0, last
        assert rollout.outcome.parts["exact_match"] == 0.0


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("1931", "<answer>1 of 1931</answer>"),
        ("-40", "<answer>1 of -40</answer>"),
        ("0", "<answer>10</answer>"),
        ("May 1931", "<answer>Nbz 1931</answer>"),
        ("Lima", "<answer>Mjnb</answer>"),
    ],
)
def test_a_wrong_answer_differs_by_more_than_a_sign(answer: str, reply: str) -> None:
    """SQuAD's comparison leaves out signs, so -1931 would be right for 1931."""
    task = SearchTask(prompt="?", answer=answer, answers=(answer,))
    environment = Search(pilots=PILOTS, search=OneTool(str))

    assert environment.same_last_number(task, []) == reply


def test_a_citation_counts_where_a_tool_returned_the_passage() -> None:
    """The id of a passage that exists, but was not returned in this episode, is no evidence."""

    def reply(searches: bool) -> Callable[[SearchTask], list[Any]]:
        def script(task: SearchTask) -> list[Any]:
            calls = [
                Reply(text="", calls=(ToolCall(name="search", arguments={"query": hop.query}),))
                for hop in task.hops
            ]
            return [
                *(calls if searches else []),
                f"<answer>{task.answer}</answer> [{task.hops[-1].passage}]",
            ]

        return script

    seen, unseen = (played(reply(s), SearchService(pilots=PILOTS)) for s in (True, False))
    assert 1.0 == seen.outcome.total == unseen.outcome.total
    assert seen.shaping.parts["citation"] == 1.0
    assert unseen.shaping.parts["citation"] == 0.0
    assert seen.shaping.total > unseen.shaping.total
    from quintain_env_search import citation, exact_match

    strict = played(reply(False), SearchService(pilots=PILOTS), reward=exact_match * citation)
    assert strict.outcome.total == 0.0


@pytest.mark.parametrize(
    ("name", "arguments", "reads"),
    [
        ("open", {"id": "no such id"}, "no passage has this id"),
        ("open", {"number": 7}, "wrong arguments for open"),
        ("search", {"query": " "}, "the query is empty"),
        ("close", {}, "no tool 'close'"),
    ],
)
def test_the_policy_reads_why_a_call_is_refused(
    name: str, arguments: Mapping[str, Any], reads: str
) -> None:
    """It shows in the format reward; nothing was seen."""
    wrong = Reply(text="", calls=(ToolCall(name=name, arguments=arguments),))
    rollout = played([wrong, "<answer>x</answer> [no such id]"], SearchService(pilots=PILOTS))
    assert rollout.valid
    assert reads in rollout.messages[-2].content
    assert rollout.result.seen == ()
    assert 0.0 == rollout.shaping.parts["answer_format"] == rollout.shaping.parts["citation"]


def test_the_text_of_an_error_is_no_passage() -> None:
    """Not even where it has the form of one, as a server may repeat what the policy wrote."""
    server = OneTool(lambda arguments: f"error: nothing for\n{arguments['query']}")
    call = Reply(text="", calls=(ToolCall(name="search", arguments={"query": "[7] x\nMirel"}),))
    rollout = played([call, "<answer>Mirel</answer> [7]"], server, open_tool="")
    assert "[7] x" in rollout.messages[-2].content
    assert SearchResult(calls=1) == rollout.result


def test_a_policy_that_never_answers_is_truncated() -> None:
    """The turn budget ends it; an answer beside the last call is no answer."""

    def script(task: SearchTask) -> Any:
        answer = f"<answer>{task.answer}</answer> [1]"
        return Reply(text=answer, calls=(ToolCall(name="search", arguments={"query": "x"}),))

    rollout = played(script, SearchService(pilots=PILOTS))
    assert rollout.termination.kind == "truncated"
    assert rollout.result.calls == 6
    assert not rollout.result.final
    assert rollout.outcome.total == 0.0


def test_a_token_budget_ends_an_episode() -> None:
    """Over all turns; what was said by then is scored."""
    call = Reply(text="", calls=(ToolCall(name="search", arguments={"query": "x" * 200}),))
    rollout = played(call, SearchService(pilots=PILOTS))
    assert rollout.termination.kind == "truncated"
    assert rollout.tokens <= 1024 + 300


def test_a_server_with_another_corpus_is_refused() -> None:
    """Its facts are others, so that no question could be answered."""
    with pytest.raises(
        UsageError, match=r"does not have the answer .*the same data, pilots and seed"
    ):
        played("", SearchService(pilots=PILOTS, seed=1))


def test_tools_of_another_server_are_named_by_fields() -> None:
    """Its parameter may have another name; without a tool to open, only `search` is offered."""
    asked: list[Mapping[str, Any]] = []

    def find(arguments: Mapping[str, Any]) -> str:
        asked.append(arguments)
        return "[a] b\nc"

    spec = ToolSpec(
        name="web_search",
        parameters={"type": "object", "properties": {"n": {}, "q": {}}, "required": ["q"]},
    )

    async def call(arguments: Mapping[str, Any]) -> str:
        return find(arguments)

    session = SimpleNamespace(tools=(Tool(spec=spec, call=call),))
    desk = Desk(session, "web_search", "", 3)
    assert (desk.search,) == tuple(desk.tools)
    assert asyncio.run(desk.search("x")) == "[a] b\nc"
    assert asked == [{"q": "x"}]
    with pytest.raises(InfrastructureError, match=r"no tool 'open' but web_search.*`open_tool`"):
        Desk(session, "web_search", "open", 3)


def test_pages_are_split_at_their_heads() -> None:
    """Brackets inside a line begin no passage."""
    pages = pages_of("[1] A\nsee [2] there\n\n[x/y.md#3] B c\nd\n\ne")
    assert [(p.id, p.text) for p in pages] == [
        ("1", "A\nsee [2] there"),
        ("x/y.md#3", "B c\nd\n\ne"),
    ]
    assert pages_of("no passage has these words; try others") == []


def test_splits_share_no_name() -> None:
    """Neither a pilot nor an airport, for two seeds together; and facts differ between seeds."""
    for seed in (0, 1):
        for split, pilots in pilots_of(PILOTS, seed).items():
            names = {name for p in pilots.values() for name in (p.name, p.airport, p.lead)}
            assert {split} == set(map(split_of, names))
    assert pilots_of(PILOTS, 0) != pilots_of(PILOTS, 1)


def test_a_search_for_a_name_finds_its_passage_first() -> None:
    """So every hop of every question can be taken, and the last passage has the answer."""

    async def look() -> None:
        async with SearchService(pilots=PILOTS) as server, server.session() as session:
            for split in ("train", "dev", "test"):
                for task in Search(pilots=PILOTS, search=server).tasks(split):
                    for hop in task.hops:
                        text = await session.tools[0].call({"query": hop.query, "k": 1})
                        assert [hop.passage] == [page.id for page in pages_of(text)]
                    assert task.answer in text

    asyncio.run(look())


def test_the_demonstrator_answers_too_early_a_share_of_the_time() -> None:
    """Before the first hop and, where there is one, before the second; it is never otherwise
    wrong.
    """
    environment = Search(pilots=PILOTS, slips=(0.3, 0.6), search=OneTool(str))
    tasks = list(environment.tasks("train"))
    assert len(tasks) > 500

    def searches(task: SearchTask) -> int:
        messages: list[Message] = []
        for turn in range(task.level + 1):
            reply = environment.demonstrator(task, messages)
            assert reply == environment.demonstrator(task, messages)
            if "<answer>" in reply.text:
                assert (turn == task.level) == (reply == environment.oracle(task, messages))
                return turn
            messages += [Message("assistant", reply.text, calls=reply.calls), Message("tool", "")]
        raise AssertionError(task)

    counts = {level: [searches(t) for t in tasks if t.level == level] for level in (1, 2)}
    for level in (1, 2):
        assert 0.25 < counts[level].count(0) / len(counts[level]) < 0.35
    assert 0.55 < counts[2].count(1) / (len(counts[2]) - counts[2].count(0)) < 0.65


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hops": (3,)}, "expected some of 1, 2"),
        ({"hops": ()}, "expected some of"),
        ({"size": 0}, "at least 1"),
        ({"slips": (2.0,)}, "expected shares"),
        ({"search_tool": ""}, "and a name"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Search(search=OneTool(str), **fields)


def test_too_many_pilots_are_refused() -> None:
    with pytest.raises(UsageError, match="pilots is 100000; expected 100 to 2500"):
        pilots_of(100_000, 0)


def test_a_file_that_is_no_squad_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"paragraphs": []}]}))
    rows = [{"question": "why?", "answers": []}, {"question": "who?", "answers": []}]
    article = {"title": "t", "paragraphs": [{"context": "c", "qas": rows}]}
    (tmp_path / "unanswered.json").write_text(json.dumps({"data": [article]}))
    for name, message in (
        ("x.json", "x.json is no JSON file of SQuAD: KeyError"),
        (
            "missing.json",
            "cannot read .*missing.json: No such file or directory; docs/search-environment.md "
            "says where",
        ),
        (
            "unanswered.json",
            "has no question with an answer: 2 questions are left out for want of one",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            list(islice(Search(data=str(tmp_path / name), search=OneTool(str)).tasks("dev"), 1))
