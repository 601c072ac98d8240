"""BFCL, the Berkeley Function Calling Leaderboard: the tasks, functions and checker of its package.

pip install bfcl-eval soundfile
quintain eval examples/adapters/bfcl.py:BFCL --controls
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib import import_module
from typing import Any

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Score,
    Task,
    Tool,
    ToolCall,
    ToolSpec,
    control,
    reward,
)
from quintain.errors import PolicyFault, ToolError, UsageError

RULES = "gpt-4o-2024-11-20-FC"  # tools and checker follow its rule: no dots in names
SINGLE = "simple_python multiple parallel parallel_multiple live_simple live_multiple".split()
SINGLE += ["live_parallel", "live_parallel_multiple"]
SEVERAL = [f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context")]
LEFT_OUT = {
    "irrelevance": "silence is right, so it would earn 1",
    "live_relevance": "no answer is stored",
    "java": "values are source text of Java or JavaScript, in which no answer is stored",
    "memory": "it needs what the model wrote in earlier conversations",
    "web_search": "it searches the web",
}
"""Why categories that have these words in their names are left out."""
CHECKS = "eval_checker.multi_turn_eval"


def package(name: str) -> Any:
    """Return a module of the package, which imports soundfile and does not ask for it."""
    try:
        return import_module(f"bfcl_eval.{name}")
    except ModuleNotFoundError as e:
        raise UsageError(f"BFCL needs the module {e.name}: pip install bfcl-eval soundfile") from e


@dataclass(frozen=True, kw_only=True)
class Entry(Task):
    """A task: *entry* is its JSON object, ``answer`` the stored answer."""

    category: str
    entry: Mapping[str, Any]


@reward(range=(0, 1))
def accepted(rollout: Rollout[Entry, str]) -> Score:
    """Whether the checker objects to nothing."""
    return Score(value=float(not rollout.result), reason=rollout.result)


class BFCL(Environment[Entry, str]):
    """Calls of functions, which run in tasks of several turns. All tasks are ``test``, so that no
    run trains on them. *categories* are of the leaderboard.
    """

    reward, limits = accepted, Limits(turns=200)
    categories: tuple[str, ...] = (*SINGLE, *SEVERAL)

    def tasks(self, split: str) -> list[Entry]:
        if unknown := [c for c in self.categories if c not in (*SINGLE, *SEVERAL)]:
            raise UsageError(f"not played: {unknown}; left out are {LEFT_OUT}")
        return [task for c in self.categories for task in entries(c)[0] if split == "test"]

    async def rollout(self, task: Entry, agent: Agent) -> str:
        if task.category in SINGLE:
            agent.user(task.prompt)
            turn = await agent.turn(*specs(task, 0))
            broken = [c.error for c in turn.calls if c.error]
            return broken[0] if broken else objection(task, turn.calls)
        more = package("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
        utils, name = package(f"{CHECKS}.multi_turn_utils"), f"episode{id(agent)}"
        lines, long = list[list[list[str]]](), "long_context" in task.id

        async def call(function: str, arguments: Mapping[str, Any]) -> str:
            if not all(map(str.isidentifier, arguments)):  # BFCL evaluates the line
                raise ToolError("the name of an argument is no name")
            write = package("model_handler.utils").convert_to_function_call
            lines[-1].append(write([{function: dict(arguments)}]))
            begin = task.entry["initial_config"], task.entry["involved_classes"], name, task.id
            (told,), _ = utils.execute_multi_turn_func_call(lines[-1][-1], *begin, long)
            return str(told)

        try:
            for number, said in enumerate(task.entry["question"]):
                lines.append([])
                agent.user([Message(m["role"], m["content"]) for m in said] or more)
                tools = [Tool(spec=s, call=partial(call, s.name)) for s in specs(task, number)]
                await agent.run(*tools)
            return objection(task, lines, name)
        finally:  # BFCL keeps the programs of all episodes as globals
            for key in [key for key in vars(utils) if key.startswith(f"{name}_")]:
                delattr(utils, key)

    @control(scores="max")
    def oracle(self, task: Entry, messages: Sequence[Message]) -> str | Reply:
        """Make the calls of the stored answer."""
        if task.category in SINGLE:
            return Reply(calls=stated(task))
        script: list[str | Reply] = []
        for lines in task.answer:
            calls = Reply(calls=tuple(parsed(line, task) for line in lines))
            script += [calls, "That is all."] if lines else ["I cannot do that."]
        return script[sum(m.role == "assistant" for m in messages)]


@cache
def entries(category: str) -> tuple[list[Entry], int]:
    """Return the tasks of a category, and the number of others, whose stored answer is not taken."""
    utils, tasks = package("utils"), []
    loaded = utils.load_dataset_entry(category, include_language_specific_hint=False)
    for entry, known in zip(loaded, utils.load_ground_truth_entry(category), strict=True):
        prompt = tuple(Message(m["role"], m["content"]) for m in entry["question"][0])
        given = {"prompt": prompt, "id": entry["id"], "answer": known["ground_truth"]}
        tasks.append(Entry(category=category, entry=entry, **given))
    sound = [
        t for t in tasks if not (unoffered(t) if category in SEVERAL else objection(t, stated(t)))
    ]
    return sound, len(tasks) - len(sound)


def unoffered(task: Entry) -> bool:
    offered = [{f["name"] for f in functions(task, turn)} for turn in range(len(task.answer))]
    return any({c.split("(")[0] for c in a} - o for a, o in zip(task.answer, offered, strict=True))


def functions(task: Entry, turn: int) -> list[Any]:
    """Return the functions of a turn; BFCL holds some back until one of the turns."""
    held = task.entry.get("missed_function", {}).items()
    return [*task.entry["function"], *(f for n, fs in held if int(n) <= turn for f in fs)]


def specs(task: Entry, turn: int) -> list[ToolSpec]:
    """Return the functions of a turn as BFCL shows them to models."""
    given = [{"id": task.id, "function": deepcopy(functions(task, turn))}]
    (hinted,) = package("utils").add_language_specific_hint_to_function_doc(given)
    types = package("constants.type_mappings").GORILLA_TO_OPENAPI
    style = package("constants.enums").ModelStyle.OPENAI_COMPLETIONS
    tools = package("model_handler.utils").convert_to_tool(hinted["function"], types, style)
    wanted = {field.name for field in fields(ToolSpec)}
    return [ToolSpec(**{k: v for k, v in t["function"].items() if k in wanted}) for t in tools]


def objection(task: Entry, calls: Sequence[Any], name: str = "") -> str:
    """Return what the checker objects to, or nothing. It takes the stored answer, so what it raises
    is a fault of the calls.
    """
    try:
        if task.category in SEVERAL:
            check = package(f"{CHECKS}.multi_turn_checker").multi_turn_checker
            said = check(calls, task.answer, task.entry, task.category, name)
        else:
            made = [{c.name: dict(c.arguments)} for c in calls]
            python = package("constants.enums").Language.PYTHON
            check = package("eval_checker.ast_eval.ast_checker").ast_checker
            said = check(functions(task, 0), made, task.answer, python, task.category, RULES)
    except Exception as e:
        raise PolicyFault(f"BFCL cannot check these calls: {e!r}") from e
    return "" if said["valid"] else str(said["error_type"])


def stated(task: Entry) -> tuple[ToolCall, ...]:
    """Return the calls of a stored answer, which lists what each argument may be."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping) and all(isinstance(v, list) for v in value.values()):
            known = {k: [option for option in v if option != ""] for k, v in value.items()}
            return {k: plain(options[0]) for k, options in known.items() if options}
        return [plain(v) for v in value] if isinstance(value, list) else value

    calls = [(name.replace(".", "_"), plain(a)) for call in task.answer for name, a in call.items()]
    return tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)


def parsed(line: str, task: Entry) -> ToolCall:
    """Return a line of Python, such as ``mv(source='a', destination='b')``, as a call."""
    call: Any = ast.parse(line, mode="eval").body
    known = {f["name"]: f["parameters"]["properties"] for f in functions(task, 99)}
    given = dict(zip(known[call.func.id], call.args)) | {k.arg: k.value for k in call.keywords}  # noqa: B905
    return ToolCall(name=call.func.id, arguments={k: ast.literal_eval(given[k]) for k in given})
