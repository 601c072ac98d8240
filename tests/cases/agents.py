"""Runs reported cases of agent builders, one JSON object a line, against the code of now.

    python -m tests.cases.agents FILE [--templates FOLDER] [--only PREFIX]

A case has an ``id``, an ``input`` and what is ``expected``. Calls to parse are run from the file.
Templates are, too, if FOLDER has the chat templates (``*.jinja``), which are not part of this
repository. The other inputs are sentences: `WRITTEN` has a function for a case, or `HELD` the tests
that hold it. What has neither is *not run*, and so is what a test skips.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from quintain import ToolSpec
from quintain_tools.formats import tool_format

from .written import WRITTEN

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, MCP, AGENT = "tests/plugins/gateway", "tests/plugins/tools/mcp", "tests/environments/agent"
NULL = f"{GATEWAY}/test_calls.py::test_no_arguments_are_no_arguments"
THOUGHT = f"{GATEWAY}/test_calls.py::test_a_broken_call_shows_no_thought"
STATUS = f"{MCP}/test_http_answers.py::test_a_status_about_the_server_is_infrastructure"
FILES = f"{MCP}/test_official_servers.py::test_a_policy_copies_and_edits_files"
PLAIN = f"{MCP}/test_fence.py::test_a_text_reaches_the_policy_as_it_is"
SERVE = f"{GATEWAY}/test_serve.py::test_a_key_with_many_conversations_loses_no_request"
HELD: dict[str, tuple[str, ...]] = {
    "W1c": (f"{GATEWAY}/test_calls.py::test_thoughts_that_an_agent_sends_back_stay_in_responses",),
    "W2-JSON-null": (f"{NULL}[null]",),
    "W2-absent": (f"{NULL}[absent]",),
    "W3a": (f"{THOUGHT}[auto-gpt-oss]",),
    "W3e": (f"{THOUGHT}[auto-Qwen3]",),
    "W4": (SERVE,),
    "W4b": (SERVE,),
    "W5": (
        f"{GATEWAY}/test_episodes.py::test_models_of_other_names_are_recorded_and_do_not_train",
    ),
    "M08-401": (f"{STATUS}[json-401]",),
    "M08-403": (f"{STATUS}[json-403]",),
    "M08-429": (f"{STATUS}[json-429]",),
    "M08-401-text": (f"{STATUS}[text-401]",),
    "M08-403-text": (f"{STATUS}[text-403]",),
    "M08-429-text": (f"{STATUS}[text-429]",),
    "M09": (PLAIN, FILES),
    "M09-generics": (PLAIN, FILES),
    "M09-speaker": (PLAIN, FILES),
    "M09-plain": (PLAIN, FILES),
    "M11": (f"{MCP}/test_official_servers.py::test_each_episode_has_its_own_memory",),
    "E2": (f"{AGENT}/test_program.py::test_crashes_are_typed",),
    "E7": (f"{AGENT}/test_program.py::test_a_proxy_of_the_machine_is_not_asked_for_the_gateway",),
    "Y1": (
        f"{GATEWAY}/test_episodes.py::"
        "test_the_recipes_system_message_is_in_each_conversation_that_brings_none",
    ),
    "F3": (f"{GATEWAY}/test_openai.py::test_streaming_client",),
    "F4": (f"{GATEWAY}/test_openai.py::test_responses_client_plain_and_streaming",),
    "F5": (f"{GATEWAY}/test_frameworks.py::test_openai_agents_keep_one_conversation",),
}
"""Tests that have the input of a case, by its id without ``agents-``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--templates", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    cases = [json.loads(line) for line in options.file.read_text().splitlines()]
    cases = [case for case in cases if case["id"].startswith(options.only)]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case, verdict, seen in verdicts(cases, options.templates):
        counts[kind_of(case)][verdict] += 1
        if verdict != "right":
            print(f"{case['id']}: {verdict}; expected {case['expected'][:100]}; {seen[:200]}")
    for kind, count in {**counts, "all": sum(counts.values(), Counter())}.items():
        print(f"{kind:24}", *(f"{name} {number}" for name, number in sorted(count.items())))


def kind_of(case: dict[str, Any]) -> str:
    return re.split(r"[, (:]", str(case["area"]), maxsplit=1)[0]


def verdicts(
    cases: Iterable[dict[str, Any]], templates: Path | None
) -> Iterable[tuple[dict[str, Any], str, str]]:
    """Each case with ``right``, ``wrong`` or ``not run``, and what was seen."""
    later = []
    for case in cases:
        name = case["id"].removeprefix("agents-")
        if name.startswith("parse-"):
            yield case, *parsed(case)
        elif name.startswith("template-"):
            yield case, *written_by(name.removeprefix("template-"), templates)
        elif name in WRITTEN:
            yield case, *tried(name)
        else:
            later.append((case, name))
    outcomes = tested({node for _, name in later for node in HELD.get(name, ())})
    for case, name in later:
        found = {outcome for node in HELD.get(name, ()) for outcome in outcomes[node]}
        if not found or found - {"passed", "failed"}:
            yield case, "not run", "no test has it, or it skips"
        else:
            yield case, "wrong" if "failed" in found else "right", ""


def parsed(case: dict[str, Any]) -> tuple[str, str]:
    given = json.loads(case["input"])
    (form,) = re.findall(r"tool_format\('(\w+)'\)", case["call"])
    tools = [ToolSpec(**tool) for tool in given["tools"]]
    turn = tool_format(form).parse(given["text"], tools=tools)
    seen = ["fault" if c.error else [c.name, dict(c.arguments)] for c in turn.calls]
    expected, _ = json.JSONDecoder().raw_decode(case["expected"])
    return "right" if seen == expected else "wrong", json.dumps(seen)


def written_by(name: str, templates: Path | None) -> tuple[str, str]:
    """Read the call that a template writes."""
    from studies.benchmarks.templates import outcomes, tokenizer_with

    file = None if templates is None else templates / f"{name}.jinja"
    if file is None or not file.exists():
        return "not run", "no such template"
    tokenizer = tokenizer_with(file.read_text())
    seen = outcomes(tokenizer)["call"]
    refused = "reads the call" not in tokenizer.tool_format.summary
    right = seen == "yes" or refused
    return "right" if right else "wrong", f"{seen}; {tokenizer.tool_format.summary}"


def tried(name: str) -> tuple[str, str]:
    try:
        WRITTEN[name]()
    except Exception as e:
        return "wrong", f"{type(e).__name__}: {e}"
    return "right", ""


def tested(nodes: set[str]) -> dict[str, set[str]]:
    """The outcomes of tests, by the node that names one or all cases of one."""
    found: dict[str, set[str]] = {node: set() for node in nodes}
    if not nodes:
        return found
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["-q", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}", *sorted(nodes)]
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False)
        for test in ElementTree.parse(report).iter("testcase"):
            file = test.attrib["classname"].replace(".", "/") + ".py"
            node = f"{file}::{test.attrib['name']}"
            kinds = {child.tag for child in test}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
            for wanted in {node, node.partition("[")[0]} & nodes:
                found[wanted].add(outcome)
    return found


if __name__ == "__main__":
    main()
