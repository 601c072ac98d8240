"""Agreement with EvalPlus 0.3.1 on rows in its format: references and mutants of MBPP's tasks.

EvalPlus downloads its rows, so these are MBPP's own, with the arguments of their asserts. The library
needs an environment of its own (``pip install evalplus``). From the root of the repository::

    python -m studies.benchmarks.peers.evalplus_agreement cases mbpp.jsonl cases.json
    PEER/bin/python studies/benchmarks/peers/evalplus_agreement.py peer cases.json peer.json
    python -m studies.benchmarks.peers.evalplus_agreement ours cases.json ours.json
    python -m studies.benchmarks.peers.evalplus_agreement compare cases.json peer.json ours.json
"""

from __future__ import annotations

import ast
import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

TASKS = 240
"""Tasks, those with a rule of their own and others drawn with seed 0."""
MUTANTS = 3
RULED = {2, 7, 111, 140, 232, 249, 558, 579, 581, 769, 794}
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or,
}  # fmt: skip


class Mutation(ast.NodeTransformer):
    """Changes the node with number *at*: an operator, a number, or the order of a result."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        number = isinstance(node, ast.Constant) and type(node.value) is int
        if type(node) not in SWAPPED and not number and not isinstance(node, ast.Return):
            return node
        self.seen += 1
        if self.seen - 1 != self.at:
            return node
        if isinstance(node, ast.Constant):
            return ast.Constant(node.value + 1)
        if isinstance(node, ast.Return) and node.value is not None:
            text = ast.unparse(node.value)
            turned = f"(lambda r: r[::-1] if isinstance(r, (list, tuple)) else r)({text})"
            return ast.Return(ast.parse(turned, mode="eval").body)
        return SWAPPED[type(node)]() if type(node) in SWAPPED else node


def mutants(code: str, rng: random.Random) -> list[str]:
    """Return up to `MUTANTS` sources that differ from *code*."""
    count = Mutation(-1)
    count.visit(ast.parse(code))
    found = {code: None}
    for at in rng.sample(range(count.seen), count.seen):
        tree = Mutation(at).visit(ast.parse(code))
        found[ast.unparse(ast.fix_missing_locations(tree))] = None
        if len(found) > MUTANTS:
            break
    return list(found)[1:]


def arguments(test: str) -> tuple[str, list[Any]]:
    """Return the function and the arguments of the first call in an assert with literals alone."""
    for node in ast.walk(ast.parse(test)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.args and node.func.id not in ("set", "sorted", "tuple", "list", "round", "str"):
            return node.func.id, [ast.literal_eval(argument) for argument in node.args]
    raise ValueError("no call")


def cases(data: str, out: str) -> None:
    """Write rows in EvalPlus' format, each with its reference and mutants."""
    rows = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()]
    rng = random.Random(0)
    rng.shuffle(rows)
    rows.sort(key=lambda row: row["task_id"] not in RULED)
    found: list[dict[str, Any]] = []
    for row in rows:
        try:
            calls = [arguments(test) for test in row["test_list"]]
            inputs = json.loads(json.dumps([given for _, given in calls], allow_nan=False))
        except (ValueError, TypeError, SyntaxError):
            continue
        code = row["code"].replace("\r\n", "\n")
        given = {"task_id": f"Mbpp/{row['task_id']}", "prompt": "", "entry_point": calls[0][0]}
        given |= {"canonical_solution": code, "base_input": inputs, "plus_input": [], "atol": 0}
        found.append({"row": given, "solutions": [code, *mutants(code, rng)]})
        if len(found) == TASKS:
            break
    Path(out).write_text(json.dumps(found), encoding="utf-8")


def peer(data: str, out: str) -> None:
    """Write what EvalPlus says of each solution; nothing for a task whose reference fails."""
    from evalplus.data.mbpp import mbpp_deserialize_inputs
    from evalplus.eval import PASS, untrusted_check
    from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
    from evalplus.gen.util import trusted_exec

    verdicts: list[list[bool] | None] = []
    for case in json.loads(Path(data).read_text(encoding="utf-8")):
        row = case["row"]
        entry = row["entry_point"]
        try:
            inputs = mbpp_deserialize_inputs(row["task_id"], row["base_input"])
            not_none = entry in MBPP_OUTPUT_NOT_NONE_TASKS
            expected, seconds = trusted_exec(
                row["canonical_solution"], inputs, entry, record_time=True, output_not_none=not_none
            )
        except Exception:  # noqa: BLE001 - a reference that does not take lists for tuples
            verdicts.append(None)
            continue
        verdicts.append(
            [
                untrusted_check("mbpp", code, inputs, entry, expected, row["atol"], seconds)[0]
                == PASS
                for code in case["solutions"]
            ]
        )
    Path(out).write_text(json.dumps(verdicts), encoding="utf-8")


async def grades(found: list[dict[str, Any]]) -> list[list[bool]]:
    """Return what the environment `code` says of each solution."""
    from quintain_env_code import Grader, task_of
    from quintain_sandbox import Bubblewrap

    verdicts: list[list[bool]] = []
    async with Bubblewrap(slots=2, warm=4, enforce=()) as sandbox:
        grader = Grader(sandbox)
        for case in found:
            task = task_of(case["row"], case["row"]["task_id"])
            graded = [grader.once(task, {"solution.py": code}) for code in case["solutions"]]
            verdicts.append([g.outcome == "passed" for g in await asyncio.gather(*graded)])
    return verdicts


def compare(data: str, of_peer: str, of_ours: str) -> None:
    """Print the agreement, and each solution on which both differ."""
    counts: Counter[str] = Counter()
    read = [json.loads(Path(file).read_text(encoding="utf-8")) for file in (data, of_peer, of_ours)]
    for case, theirs, ours in zip(*read, strict=True):
        if theirs is None or not theirs[0]:
            counts["tasks whose reference EvalPlus fails"] += 1
            continue
        counts["tasks"] += 1
        for code, a, b in zip(case["solutions"], theirs, ours, strict=True):
            counts["solutions"] += 1
            counts["both pass"] += a and b
            counts["both fail"] += not a and not b
            if a != b:
                counts["differ"] += 1
                print(json.dumps([case["row"]["task_id"], {"EvalPlus": a, "here": b}, code]))
    print(json.dumps(counts))


def main() -> None:
    command, *files = sys.argv[1:]
    if command == "ours":
        found = json.loads(Path(files[0]).read_text(encoding="utf-8"))
        Path(files[1]).write_text(json.dumps(asyncio.run(grades(found))), encoding="utf-8")
    else:
        {"cases": cases, "peer": peer, "compare": compare}[command](*files)


if __name__ == "__main__":
    main()
