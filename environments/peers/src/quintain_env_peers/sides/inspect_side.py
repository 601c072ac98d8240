"""Tasks of Inspect: their solvers ask, their scorers score."""

import runpy

from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName, ModelOutput
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState
from side import main

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def load(target, settings):
    name, _, function = target.partition(":")
    run = runpy.run_path if name.endswith(".py") else runpy.run_module
    task = run(name)[function](**settings["args"])
    samples = list(task.dataset)[: settings["limit"]]
    shown = [{"prompt": text_of(s), "answer": answer_of(s)} for s in samples]
    return [(task, sample) for sample in samples], shown


def text_of(sample):
    if isinstance(sample.input, str):
        return sample.input
    return "\n\n".join(m.text for m in sample.input)


def answer_of(sample):
    """Return a reply that the scorers should take: the target, as a choice is asked for."""
    target = sample.target if isinstance(sample.target, str) else sample.target[0]
    return f"ANSWER: {target}" if sample.choices else target


async def play(of, policy):
    task, sample = of
    messages = sample.input
    if isinstance(messages, str):
        messages = [ChatMessageUser(content=messages)]
    state = TaskState(
        model=ModelName("quintain/policy"),
        sample_id=sample.id or 0,
        epoch=1,
        input=sample.input,
        messages=list(messages),
        target=Target(sample.target),
        choices=sample.choices,
        metadata=sample.metadata or {},
    )

    async def generate(state, *_, **__):
        text = await policy.answer([(m.role, m.text) for m in state.messages])
        state.messages.append(ChatMessageAssistant(content=text))
        state.output = ModelOutput.from_content("quintain/policy", text)
        return state

    for solver in (task.setup, task.solver):
        if solver is not None:
            state = await solver(state, generate)
    scores = [await scorer(state, state.target) for scorer in task.scorer or ()]
    values = [number(score) for score in scores if score is not None]
    reason = next((s.explanation for s in scores if s is not None and s.explanation), "")
    if not values or None in values:
        reason = reason or f"scores {[s and s.value for s in scores]}"
        return {"value": None, "reason": reason}
    return {"value": sum(values) / len(values), "reason": reason}


def number(score):
    value = score.value
    if isinstance(value, str):
        return VALUES.get(value)
    return float(value) if isinstance(value, (int, float)) else None


if __name__ == "__main__":
    main(load, play)
