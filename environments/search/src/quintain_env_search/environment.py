"""The environment `search`: questions with one or two hops, tools to search a corpus, answers with
a citation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from weakref import WeakSet

from quintain import Agent, Environment, Limits, Message, Reply, ToolCall, ToolError, control, need
from quintain.errors import UsageError
from quintain.evaluation import WrongAnswers

from .answers import CLOSE, OPEN, exact
from .desk import Desk, ToolServer, ToolSession
from .pilots import KINDS, questions
from .rewards import answer_format, citation, exact_match, tool_calls
from .squad import read_squad
from .tasks import SearchResult, SearchTask

_COMPARED: WeakSet[ToolServer] = WeakSet()
"""Servers whose corpus is that of the tasks."""


class Search(WrongAnswers, Environment[SearchTask, SearchResult]):
    """Questions about a corpus that the policy has to search.

    Attributes:
        data: a JSON file of SQuAD; by default it is the generated corpus of pilots that is asked
            about.
        pilots: of the generated corpus, 100 to 2,500.
        hops: numbers of hops of the generated questions.
        seed: of the generated facts. The server must have the corpus of the same `data`, `pilots`
            and `seed`.
        size: questions in ``dev`` and in ``test``, at most.
        results: passages of a search, where the server has a parameter ``k``; 0 is the server's own
            number.
        search_tool, open_tool: the server's names of the tools; without the latter there is no
            `open`.
        slips: share of the demonstrations of generated questions that answer rather than search,
            before the first hop (``unknown``) and before each later one (with what the hop before
            found).
    """

    reward = exact_match
    shaping = 0.1 * citation.gate(exact_match) + 0.05 * answer_format + -0.01 * tool_calls(free=2)
    limits = Limits(turns=6, tokens=1024)
    system = (
        f"Search for the answer. Then reply {OPEN}the answer{CLOSE} [id of the passage that says "
        f"so]."
    )

    data: str = ""
    pilots: int = 2000
    hops: tuple[int, ...] = (1, 2)
    seed: int = 0
    size: int = 200
    results: int = 2
    search_tool: str = "search"
    open_tool: str = "open"
    slips: tuple[float, ...] = (0.3, 0.6)
    search: ToolServer = need("retriever")

    def __post_init__(self) -> None:
        if not self.hops or not all(n in KINDS for n in self.hops):
            raise UsageError(
                f"search: hops {self.hops!r}; expected some of {', '.join(map(str, KINDS))}"
            )
        if self.size < 1 or self.results < 0 or not self.search_tool:
            raise UsageError(
                f"search: size {self.size}, results {self.results}, search_tool "
                f"{self.search_tool!r}; expected at least 1, at least 0, and a name"
            )
        if not self.slips or not all(0 <= share <= 1 for share in self.slips):
            raise UsageError(f"search: slips {self.slips!r}; expected shares, one for each hop")

    def tasks(self, split: str) -> Iterable[SearchTask]:
        """Return the questions of *split* in random order, each once; SQuAD's by article, pilots by
        name.
        """
        if self.data:
            tasks: Sequence[SearchTask] = read_squad(self.data).tasks[split]
        else:
            tasks = questions(self.pilots, self.seed, self.hops, split)
        return tasks if split == "train" else tasks[: self.size]

    async def rollout(self, task: SearchTask, agent: Agent) -> SearchResult:
        agent.user(task.prompt)
        async with self.search.session() as session:
            await self._compare_corpus(session, task)
            desk = Desk(session, self.search_tool, self.open_tool, self.results)
            turn = await agent.run(*desk.tools)
        return desk.result(final=not turn.calls)

    async def _compare_corpus(self, session: ToolSession, task: SearchTask) -> None:
        """Read, once for each server, a passage that must have the answer: with another corpus no
        question has one.
        """
        tool = next((t for t in session.tools if t.spec.name == (self.open_tool or "open")), None)
        if self.search in _COMPARED or tool is None or not task.hops:
            return
        _COMPARED.add(self.search)  # at once: the other episodes that begin now need not read it
        passage = task.hops[-1].passage
        try:
            text = await tool.call({"id": passage})
        except ToolError as e:
            text = str(e)
        except BaseException:
            _COMPARED.discard(self.search)
            raise
        if not any(answer in text for answer in task.answers):
            _COMPARED.discard(self.search)
            raise UsageError(
                f"search: the server's passage {passage!r} does not have the answer "
                f"{task.answer!r}; give the service `retriever` the same data, pilots and seed as the "
                "environment"
            )

    @control()
    def demonstrator(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Search hop by hop, but answer too early a share `slips` of the time; the warm start
        imitates it.
        """
        rng = Random(f"{self.seed}/{task.id}")
        hops_done = sum(m.role == "assistant" for m in messages)
        shares = [self.slips[min(hop, len(self.slips) - 1)] for hop in range(len(task.hops))]
        early = [rng.random() < share for share in shares]
        if self.data or hops_done == len(task.hops) or not early[hops_done]:
            return self.oracle(task, messages)
        if hops_done:  # what the hop before found is the name of the next query
            return Reply(
                text=f"{OPEN}{task.hops[hops_done].query}{CLOSE} "
                f"[{task.hops[hops_done - 1].passage}]"
            )
        return Reply(text=f"{OPEN}unknown{CLOSE}")

    @control(scores="max")
    def oracle(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Search hop by hop, then answer with a citation."""
        turn = sum(m.role == "assistant" for m in messages)
        if turn < len(task.hops):
            return _call("search", task.hops[turn].query)
        # the search may have missed the paragraph
        if self.data and self.open_tool and turn == len(task.hops):
            return _call("open", task.hops[-1].passage)
        return Reply(text=f"{OPEN}{task.answer}{CLOSE} [{task.hops[-1].passage}]")

    @control(scores="min")
    def in_the_query(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Write the answer into a query only."""
        searched = any(m.role == "assistant" for m in messages)
        return (
            Reply(text="See above.") if searched else _call("search", f"{OPEN}{task.answer}{CLOSE}")
        )

    @control(scores="min")
    def every_passage(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Answer with all that the tools returned."""
        turn = sum(m.role == "assistant" for m in messages)
        if turn < len(task.hops):
            return _call("search", task.hops[turn].query)
        pages = " ".join(m.content for m in messages if m.role == "tool")
        return Reply(text=f"{OPEN}{pages}{CLOSE} [{task.hops[-1].passage}]")

    @control(scores="min")
    def every_word(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Answer with every word that the tools returned, one after the other."""
        reply = self.every_passage(task, messages)
        if reply.text and OPEN in reply.text:
            words = reply.text.removeprefix(OPEN).partition(CLOSE)[0].split()
            return Reply(text=" ".join(f"{OPEN}{word}{CLOSE}" for word in words))
        return reply

    def stating(self, answer: str) -> str:
        return f"{OPEN}{answer}{CLOSE}"

    @control(scores="max")
    def in_a_sentence(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Search hop by hop, then answer in a sentence."""
        reply = self.oracle(task, messages)
        return reply if reply.calls else Reply(text=f"The answer is {reply.text}.")

    @control(scores="min")
    def same_last_number(self, task: SearchTask, messages: Sequence[Message]) -> str:
        """State a wrong answer that shares the last number of the right one."""
        reply = super().same_last_number(task, messages)
        # SQuAD's comparison leaves out a sign
        signed = exact(reply.removeprefix(OPEN).removesuffix(CLOSE), task.answer)
        return self.stating(f"1 of {task.answer}") if signed else reply

    @control()
    def unseen(self, task: SearchTask, messages: Sequence[Message]) -> Reply:
        """Answer without a search, and cite the right passage, which no tool returned."""
        return Reply(text=f"{OPEN}{task.answer}{CLOSE} [{task.hops[-1].passage}]")


def _call(name: str, argument: str) -> Reply:
    key = {"search": "query", "open": "id"}[name]
    return Reply(text="", calls=(ToolCall(name=name, arguments={key: argument}),))
