"""Tasksets of verifiers 0.4: one reply to each prompt, scored by the task's rewards."""

import importlib
import inspect
from itertools import islice

import verifiers.v1 as vf
from side import main
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage
from verifiers.v1.utils.generic import concrete_type


def load(target, settings):
    kinds = [
        kind
        for kind in vars(importlib.import_module(target)).values()
        if inspect.isclass(kind) and issubclass(kind, vf.Taskset) and kind is not vf.Taskset
    ]
    (kind,) = [k for k in kinds if k.__module__.startswith(target)] or kinds
    config = concrete_type(kind, vf.TasksetConfig) or vf.TasksetConfig
    taskset = kind(config(**settings["args"]))
    tasks = list(islice(taskset, settings["limit"]))
    shown = [
        {"prompt": t.data.prompt_text, "answer": getattr(t.data, "answer", None)} for t in tasks
    ]
    return tasks, shown


async def play(task, policy):
    data = task.data
    prompt = data.prompt
    messages = [UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
    if data.system_prompt:
        messages.insert(0, SystemMessage(content=data.system_prompt))
    text = await policy.answer([(m.role, m.content) for m in messages])
    nodes = [MessageNode(parent=n - 1 if n else None, message=m) for n, m in enumerate(messages)]
    reply = AssistantMessage(content=text)
    nodes.append(MessageNode(parent=len(nodes) - 1, message=reply, sampled=True))
    trace = Trace(
        task=TraceTask(type=type(task).__name__, data=data),
        agent=AgentInfo(config=AgentConfig()),
        nodes=nodes,
    )
    await task.score(trace, runtime=None)
    given = {name: r for name, r in trace.rewards.items() if r is not None}
    if not given:
        return {"value": None, "reason": "no reward can be given without a runtime"}
    said = ", ".join(f"{name} {r.score:g}" for name, r in given.items())
    return {"value": sum(r.value for r in given.values()), "reason": said}


if __name__ == "__main__":
    main(load, play)
