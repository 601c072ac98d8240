"""Tasks of Inspect: their solvers ask, their scorers score."""

import runpy

from inspect_ai._util.registry import registry_info
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName, ModelOutput
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolDef
from side import NotPlayed, main

VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def load(target, settings):
    name, _, function = target.partition(":")
    run = runpy.run_path if name.endswith(".py") else runpy.run_module
    task = run(name)[function](**settings["args"])
    samples = list(task.dataset)[: settings["limit"]]
    if task.sandbox or any(s.sandbox or s.files or s.setup for s in samples):
        raise NotPlayed("the task runs in a sandbox, which is not played")
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
        if state.tools:
            names = ", ".join(ToolDef(tool).name for tool in state.tools)
            raise NotPlayed(f"the task gives the model tools ({names}), which are not played")
        text = await policy.answer([(m.role, m.text) for m in state.messages])
        state.messages.append(ChatMessageAssistant(content=text))
        state.output = ModelOutput.from_content("quintain/policy", text)
        return state

    for solver in (task.setup, task.solver):
        if solver is not None:
            state = await solver(state, generate)
    scores = {}
    for scorer in task.scorer or ():
        name = registry_info(scorer).name.rpartition("/")[2]
        score = await scorer(state, state.target)
        if score is not None:
            scores[f"{name}_{len(scores)}" if name in scores else name] = score
    values = {name: number(score) for name, score in scores.items()}
    reason = next((s.explanation for s in scores.values() if s.explanation), "")
    if not values or None in values.values():
        said = {name: score.value for name, score in scores.items()}
        return {"value": None, "reason": reason or f"scores {said}"}
    # Several scorers count alike, and each is shown.
    parts = values if len(values) > 1 else {}
    return {"value": sum(values.values()) / len(values), "reason": reason, "parts": parts}


def number(score):
    value = score.value
    if isinstance(value, str):
        return VALUES.get(value)
    return float(value) if isinstance(value, (int, float)) else None


if __name__ == "__main__":
    main(load, play)
