"""The environment `story`: plan the next chapter, for the likelihood of the real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Literal

from quintain import Agent, Demonstration, Environment, Limits, Message, Reply, control
from quintain.errors import UsageError

from .books import book_tasks
from .procedural import CANALS, stories, task_of
from .rewards import plan_overlap, vr_cli
from .tasks import PAGES, StoryResult, StoryTask, plan_of, writing_prompt


class Story(Environment[StoryTask, StoryResult]):
    """Plan the next chapter of a story; what helps a frozen scorer to predict the real chapter is
    rewarded.

    The plan is the reply after its reasoning, or what follows its last line "Plan" or "In summary".

    Attributes:
        data: folder that `quintain-story build` wrote; by default the stories are generated.
        boats: in generated stories, 2 to 8.
        size: generated tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the generated tasks.
        slips: share of the locks in demonstrations of generated stories that are the first ones: in
            plans, and in chapters, which follow their plan where they have one. So there is
            something to learn, and a plan tells the scorer something.
        plan_words: longest plan that counts, so that no plan is a chapter.
        chapter_words: words of the next chapter that are scored, from its beginning.
        skip_first, skip_last: chapters of a book that are no tasks; the published setting leaves
            out the first two, for there is hardly a story before them, and the last two.
        words: least and most words of a chapter that is a task.
        split_by: whether whole books or the chapters of each book go to the splits; ``auto`` is
            books, where there are three or more.
        synopsis: whether the prompt tells what the next chapter is about, as the paper's does.
        whole_book: whether the prompt has the summary of the whole book, its end included, as the
            paper's does.
    """

    reward = vr_cli(floor="controls")
    yardstick = plan_overlap
    limits = Limits(turns=1, reward_seconds=600)  # the groups of a batch wait for one scorer
    system = "Think about the story. Then reply with a plan of the next chapter."

    data: str = ""
    boats: int = 3
    size: int = 200
    seed: int = 0
    slips: float = 0.5
    plan_words: int = 300
    chapter_words: int = 1000
    skip_first: int = 2
    skip_last: int = 2
    words: tuple[int, int] = (200, 5000)
    split_by: Literal["auto", "book", "chapter"] = "auto"
    synopsis: bool = True
    whole_book: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.boats <= len(CANALS) or self.size < 1 or not 0 <= self.slips <= 1:
            raise UsageError(
                f"story: boats {self.boats}, size {self.size}, slips {self.slips}; expected 2 to "
                f"{len(CANALS)}, at least 1, and a share"
            )
        if min(self.plan_words, self.chapter_words) < 1:
            raise UsageError(
                f"story: plan_words {self.plan_words}, chapter_words {self.chapter_words}; at "
                f"least 1"
            )

    def tasks(self, split: str) -> Iterable[StoryTask]:
        if not self.data:
            return map(task_of, stories(split, boats=self.boats, size=self.size, seed=self.seed))
        return book_tasks(
            self.data,
            split,
            split_by=self.split_by,
            chapter_words=self.chapter_words,
            plan_words=self.plan_words,
            first=self.skip_first,
            last=self.skip_last,
            words=self.words,
            synopsis=self.synopsis,
            whole_book=self.whole_book,
        )

    async def rollout(self, task: StoryTask, agent: Agent) -> StoryResult:
        agent.user(task.prompt)
        turn = await agent.turn()
        plan = plan_of(turn.reply, self.plan_words)
        agent.metric(plan_words=len(plan.split()))
        return StoryResult(plan=plan)

    def demonstrations(self, split: str) -> Iterator[Demonstration]:
        """Yield, of generated stories, plans, and chapters after a plan and without one, which make
        the policy a scorer.
        """
        if self.data:
            return
        rng = Random(f"story/demonstrations/{self.seed}/{split}")
        for story in stories(split, boats=self.boats, size=self.size, seed=self.seed + 1):
            task = task_of(story)
            locks = {
                c: story.first[c] if rng.random() < self.slips else last
                for c, last in story.last.items()
            }
            habit = story.plan(locks)
            yield Demonstration(prompt=task.prompt, reply=habit, system=self.system)
            # The chapter follows its plan, right or wrong. If only right plans came before chapters,
            # any text in the place of a plan would make the right chapter likely.
            plan = habit if rng.random() < 0.7 else ""
            yield Demonstration(prompt=writing_prompt(task, plan), reply=habit)

    @control(scores="max")
    def oracle(self, task: StoryTask, messages: Sequence[Message]) -> str | Reply:
        """Write an honest plan: for generated stories what follows from the prompt, for books a
        summary of the chapter.
        """
        return str(task.answer)

    @control()
    def gold(self, task: StoryTask, messages: Sequence[Message]) -> str:
        """Give the upper bound: the chapter itself, as far as a plan may go."""
        return task.chapter

    @control(scores="min")
    def wrong_chapter(self, task: StoryTask, messages: Sequence[Message]) -> str:
        """Reply with a plan for another chapter."""
        return task.wrong

    @control(scores="min")
    def copied_synopsis(self, task: StoryTask, messages: Sequence[Message]) -> str:
        """Say once more what the prompt says of the next chapter."""
        return task.synopsis

    @control(scores="min")
    def filler(self, task: StoryTask, messages: Sequence[Message]) -> str:
        """Reply with as many words as an honest plan has, about nothing."""
        return task.filler

    @control(scores="min")
    def page(self, task: StoryTask, messages: Sequence[Message]) -> str:
        """Reply with a page that fits any novel, as long as a plan may be."""
        return " ".join(PAGES[0][: self.plan_words])
