"""Tasks of Inspect: their solvers ask, their scorers score."""

import importlib.util
import runpy
from pathlib import Path

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
    folders = folders_of(name, task, settings["pictures"])
    shown = [{"prompt": text_of(s), "answer": answer_of(s)} for s in samples]
    return [(task, s, files_of(s, folders)) for s in samples], shown


def text_of(sample):
    if isinstance(sample.input, str):
        return sample.input
    texts = ["".join(p.get("text", "[image]") for p in parts_of(m, {})) for m in sample.input]
    return "\n\n".join(texts)


def folders_of(name, task, pictures):
    """Return the folders in which samples may name pictures: that of the tasks, that of the data,
    and *pictures*.
    """
    source = name if name.endswith(".py") else importlib.util.find_spec(name).origin
    found = [Path(source).parent]
    data = task.dataset.location
    if data and Path(data).is_file():
        found.append(Path(data).parent)
    if pictures:
        found.append(Path(pictures).expanduser())
    return [folder.resolve() for folder in found]


def files_of(sample, folders):
    """Return the path of each file that the sample names as a picture, by the name."""
    messages = () if isinstance(sample.input, str) else sample.input
    images = [c.image for m in messages for c in m.content_list if c.type == "image"]
    return {image: file_of(image, folders) for image in images if not image.startswith("data:")}


def file_of(image, folders):
    """Return the path of a picture, which has to lie in one of *folders*: rows of a data set come
    from others, and must not show the policy files of this machine.
    """
    if "://" in image:
        raise NotPlayed(f"{image[:80]!r} is an address, and nothing is fetched; download it")
    for folder in folders:
        path = (folder / image).resolve()
        if any(path.is_relative_to(one) for one in folders) and path.is_file():
            return str(path)
    tried = ", ".join(map(str, folders))
    raise NotPlayed(
        f"picture {image[:200]!r} is no file in {tried}; copy it there, write a data: URL, or name "
        "its folder in peer.pictures"
    )


def parts_of(message, files):
    """Return texts and pictures of a message in turn. A picture is a ``file`` if the sample names
    it, else a ``data`` URL.
    """
    found = []
    for content in message.content_list:
        if content.type == "text":
            if found and "text" in found[-1]:
                found[-1]["text"] += f"\n{content.text}"  # as `ChatMessage.text` joins them
            else:
                found.append({"text": content.text})
        elif content.type == "image":
            image = content.image
            found.append({"file": files[image]} if image in files else {"data": image})
        elif content.type != "reasoning":
            raise NotPlayed(f"the task has messages with {content.type}, which is not played")
    return found


def content_of(message, files):
    """Return the text of a message, or its parts if it has pictures."""
    if message.role == "assistant":  # not sent: the policy wrote it
        return message.text
    parts = parts_of(message, files)
    return parts if any("text" not in part for part in parts) else message.text


def answer_of(sample):
    """Return a reply that the scorers should take: the target, as a choice is asked for."""
    target = sample.target if isinstance(sample.target, str) else sample.target[0]
    return f"ANSWER: {target}" if sample.choices else target


async def play(of, policy):
    task, sample, files = of
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
        text = await policy.answer([(m.role, content_of(m, files)) for m in state.messages])
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
