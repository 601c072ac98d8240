"""Plain functions as rewards, also those written for TRL and verl."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import BindingError, RewardFault, nearest, suggestion
from ..interfaces.reward import Reward, reward
from ..tracebacks import defined_at
from ..types.rollout import AnyRollout
from ..types.task import Task, messages_of


def of_function(function: Callable[..., Any]) -> Reward:
    """Return the reward of a plain *function*, called by the names of its parameters.

    ``prompt`` is the last user message, ``completion`` the last reply without reasoning, ``answer``
    the task's; ``rollout`` and ``task`` are the records. Other names are fields or ``columns`` of
    the task; those with a default are settings. Functions of verl (``solution_str``,
    ``ground_truth``, ``data_source``, ``extra_info``) and of TRL (``prompts``, ``completions``,
    columns as lists, ``**kwargs``) are called as there, TRL's with one rollout: with the last turn
    as the policy wrote it, reasoning included.

    Raises:
        BindingError: a parameter without a name.
    """
    parameters = inspect.signature(function).parameters
    named = {n: p for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    of_trl = not named.keys().isdisjoint(("prompts", "completions"))
    for parameter in named.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            one = "def score(prompt, completion, answer)"
            raise BindingError(
                f"reward {function.__name__!r} takes {parameter}; it scores one reply at a time: "
                f"{one}"
            )

    def score(rollout: AnyRollout, /, **settings: Any) -> Any:
        values = {**_of_trl(rollout), **settings} if of_trl else {**_by_name(rollout), **settings}
        if missing := next(
            (n for n, p in named.items() if p.default is p.empty and n not in values), None
        ):
            near = suggestion(nearest(missing, values))
            raise RewardFault(
                f"no task has {missing!r}{near}; there is {', '.join(values)} "
                f"({defined_at(function)})"
            )
        every = of_trl and len(named) < len(parameters)
        value = function(
            **(values if every else {name: values[name] for name in named if name in values})
        )
        return _scored(value, function, of_trl)

    keywords = [p.replace(kind=p.KEYWORD_ONLY) for p in named.values() if p.default is not p.empty]
    first = inspect.Parameter("rollout", inspect.Parameter.POSITIONAL_ONLY)
    score.__signature__ = inspect.Signature([first, *keywords])  # type: ignore[attr-defined]
    score.__name__, score.__doc__ = function.__name__, function.__doc__
    score.__wrapped__ = function  # type: ignore[attr-defined]  # messages name its file and line
    return reward(score)


def _by_name(rollout: AnyRollout) -> dict[str, Any]:
    """Return the values of the parameters of a function of one rollout, by name."""
    task = rollout.task
    prompt = next((m.content for m in reversed(messages_of(task.prompt)) if m.role == "user"), "")
    columns = getattr(task, "columns", {})
    # verl, whose rows have the right answer in `reward_model`
    model = columns.get("reward_model")
    answer = task.answer
    if isinstance(model, Mapping):
        answer = model.get("ground_truth", answer)
    values = {
        "data_source": rollout.environment,
        "ground_truth": answer,
        "extra_info": dict(columns),
        "solution_str": _written(rollout),
    }
    values |= {**vars(task), **columns, "task": task, "rollout": rollout, "prompt": prompt}
    return values | {"completion": rollout.reply, "answer": task.answer}


def _of_trl(rollout: AnyRollout) -> dict[str, Any]:
    """Return the same for a function of TRL, as lists of one: text, or messages where the prompt of
    the data set is a conversation.
    """
    values = _by_name(rollout)
    prompt, completion = values.pop("prompt"), _written(rollout)
    del values["completion"]
    lists: dict[str, Any] = {name: [value] for name, value in values.items()}
    if not _is_conversational(rollout.task):
        return lists | {"prompts": [prompt], "completions": [completion]}
    messages = [{"role": m.role, "content": m.content} for m in messages_of(rollout.task.prompt)]
    reply = [{"role": "assistant", "content": completion}]
    return lists | {"prompts": [messages], "completions": [reply]}


def _written(rollout: AnyRollout) -> str:
    """Return the policy's last turn as it wrote it, which is what trainers decode; empty if it took
    none.
    """
    return next((t.text for t in reversed(rollout.turns) if not t.player), "")


def _is_conversational(task: Task) -> bool:
    """Return whether the prompt of the data set holds messages, though the task may have a single
    one as text, or have got a system message from elsewhere.
    """
    columns = getattr(task, "columns", {})
    if "prompt" in columns:
        return _is_conversation(columns["prompt"])
    return not isinstance(task.prompt, str) or any(map(_is_conversation, columns.values()))


def _is_conversation(value: Any) -> bool:
    """Return whether a column holds messages."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, Mapping) and "role" in first


def _scored(value: Any, function: Callable[..., Any], of_trl: bool) -> Any:
    """Return the score in what a function returned: verl's may be a dictionary, TRL's is a list of
    one number.
    """
    if isinstance(value, Awaitable):

        async def later() -> Any:
            return _scored(await value, function, of_trl)

        return later()
    if of_trl:
        if not isinstance(value, Sequence) or len(value) != 1:
            fault = (
                f"reward {function.__name__!r} returned {value!r} for one completion; expected a "
                f"list of one number"
            )
            raise RewardFault(f"{fault} ({defined_at(function)})")
        return value[0]
    return value["score"] if isinstance(value, Mapping) and "score" in value else value
