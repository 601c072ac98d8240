"""Tasks of Inspect, for an interpreter that has it."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, choice, includes, match, scorer
from inspect_ai.solver import generate, multiple_choice, solver, system_message, use_tools
from inspect_ai.tool import tool


@task
def capitals(extra: int = 0):
    samples = [
        Sample(input="What is the capital of Peru?", target="Lima"),
        Sample(input="What is the capital of Japan?", target="Tokyo"),
    ]
    return Task(
        dataset=samples + samples[:1] * extra,
        solver=[system_message("Be brief."), generate()],
        scorer=includes(),
    )


@task
def letters():
    samples = [Sample(input="Which is a vowel?", choices=["x", "e", "z"], target="B")]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@solver
def twice():
    async def solve(state, generate):
        state = await generate(state)
        from inspect_ai.model import ChatMessageUser

        state.messages.append(ChatMessageUser(content="Are you sure?"))
        return await generate(state)

    return solve


@scorer(metrics=[accuracy()])
def broken():
    async def score(state, target):
        if state.output.completion == "die":
            import os

            os._exit(3)
        if state.output.completion == "words":
            return Score(value={"a": 1.0})
        raise ValueError("the scorer is broken")

    return score


@task
def sure():
    return Task(dataset=[Sample(input="1 + 1?", target="2")], solver=twice(), scorer=match())


@task
def failing():
    return Task(dataset=[Sample(input="?", target="x")], scorer=broken())


@tool
def adder():
    async def execute(a: int, b: int):
        """Add two numbers.

        Args:
            a: the first.
            b: the second.
        """
        return a + b

    return execute


@task
def tools():
    samples = [Sample(input="17 + 25?", target="42")]
    return Task(dataset=samples, solver=[use_tools(adder()), generate()], scorer=includes())


@task
def sandboxed():
    return Task(dataset=[Sample(input="?", target="x")], sandbox="local", scorer=includes())


@task
def two_scorers():
    samples = [Sample(input="1 + 1?", target="2")]
    return Task(dataset=samples, solver=generate(), scorer=[includes(), match()])


@task
def seen(images: list[str], document: str = ""):
    """Each picture in a sample of its own, behind a text and before another."""
    from inspect_ai.model import ChatMessageUser, ContentDocument, ContentImage, ContentText

    more = [ContentDocument(document=document)] if document else []
    samples = [
        Sample(
            input=[
                ChatMessageUser(
                    content=[
                        ContentText(text="Look:"),
                        ContentImage(image=image),
                        ContentText(text="What colour"),
                        ContentText(text="is it?"),
                        *more,
                    ]
                )
            ],
            target="red",
        )
        for image in images
    ]
    return Task(dataset=samples, solver=[system_message("Be brief."), generate()], scorer=match())


@solver
def shows_what_it_reads():
    """Ask, show the reply as a picture and as a text, and ask again."""

    async def solve(state, generate):
        from inspect_ai.model import ChatMessageUser, ContentImage, ContentText

        state = await generate(state)
        said = state.output.completion
        content = [ContentText(text=f"You said {said}"), ContentImage(image=said)]
        state.messages.append(ChatMessageUser(content=content))
        return await generate(state)

    return solve


@task
def echo():
    samples = [Sample(input="Name a picture.", target="x")]
    return Task(dataset=samples, solver=shows_what_it_reads(), scorer=match())
