"""Agents for tests: they know nothing of Quintain and speak HTTP with the standard library."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any


def complete(url: str, key: str, prompt: str) -> str:
    """The text of one reply."""
    return str(message(url, key, [{"role": "user", "content": prompt}])["content"])


def message(url: str, key: str, messages: list[Any], **fields: Any) -> dict[str, Any]:
    """The message of one reply."""
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + "/chat/completions", body, head)
        ) as answer:
            reply: dict[str, Any] = json.load(answer)["choices"][0]["message"]
            return reply
    except urllib.error.HTTPError as e:
        e.close()
        raise


def solve(prompt: str, endpoint: Any) -> str:
    """An agent that blocks."""
    return complete(endpoint.base_url, endpoint.api_key, prompt)


async def asked_twice(prompt: str, endpoint: Any) -> dict[str, Any]:
    """An async agent, which runs the blocking one in a thread."""
    reply = await asyncio.to_thread(solve, prompt, endpoint)
    return {"first": reply, "second": await asyncio.to_thread(solve, reply, endpoint)}


def crashes_early(prompt: str, endpoint: Any) -> str:
    raise KeyError("early")


def crashes_late(prompt: str, endpoint: Any) -> str:
    return str(json.loads(solve(prompt, endpoint)))


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
        },
    },
}


def strict(prompt: str, endpoint: Any) -> str:
    """A loop over one tool, as frameworks have it, which raises for whatever it does not expect."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    while True:
        reply = message(endpoint.base_url, endpoint.api_key, messages, tools=[ADD])
        messages.append(reply)
        if "tool_calls" not in reply:
            return str(reply["content"])
        for call in reply["tool_calls"]:
            run = {"add": lambda x: str(1 // x)}[call["function"]["name"]]
            result = run(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def forgiving(prompt: str, endpoint: Any) -> str:
    """A loop that tells the policy of a wrong call, and fails later of its own."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    reply = message(endpoint.base_url, endpoint.api_key, messages, tools=[ADD])
    told = [
        {"role": "tool", "tool_call_id": c["id"], "content": "no such tool"}
        for c in reply["tool_calls"]
    ]
    message(endpoint.base_url, endpoint.api_key, [*messages, reply, *told], tools=[ADD])
    raise ValueError("a bug")


SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


def structured(prompt: str, endpoint: Any) -> str:
    """Asks for JSON and relies on it."""
    messages = [{"role": "user", "content": prompt}]
    reply = message(endpoint.base_url, endpoint.api_key, messages, response_format=FORM)
    return str(1 // json.loads(reply["content"])["sum"])


def demanding(prompt: str, endpoint: Any) -> str:
    """Demands a call and does not use it."""
    messages = [{"role": "user", "content": prompt}]
    return str(
        message(endpoint.base_url, endpoint.api_key, messages, tools=[ADD], tool_choice="required")[
            "content"
        ]
    )


first, other_ended, go_on = threading.Lock(), threading.Event(), threading.Event()
note = contextvars.ContextVar("note", default="")


async def waits_for_the_other(prompt: str, endpoint: Any) -> str:
    """The first call blocks until the second has ended."""
    if first.acquire(blocking=False):
        return "the other has ended" if other_ended.wait(30) else "the other is held up"
    reply = await asyncio.to_thread(solve, prompt, endpoint)
    other_ended.set()
    return reply


def write_note(text: str) -> None:
    pathlib.Path(note.get()).write_text(text)


async def hangs(prompt: str, endpoint: Any) -> str:
    """Awaits what never comes, and notes how that ended."""
    try:
        await asyncio.sleep(600)
    except BaseException as e:
        await asyncio.sleep(0)
        write_note(type(e).__name__)
        raise
    return ""


async def blocks(prompt: str, endpoint: Any) -> str:
    go_on.wait(60)
    return ""


def knows(prompt: str, endpoint: Any) -> str:
    """Never asks: it adds the numbers of the question itself."""
    numbers = [int(word) for word in re.findall("[0-9]+", prompt)]
    return str(sum(numbers))


def rewrites(prompt: str, endpoint: Any) -> str:
    """Sends each reply back in other words."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for _ in range(3):
        reply = message(endpoint.base_url, endpoint.api_key, messages)
        messages += [
            {"role": "assistant", "content": f"I said {reply['content']}"},
            {"role": "user", "content": "?"},
        ]
    return ""


def leaves(prompt: str, endpoint: Any) -> str:
    sys.exit(0)


def main() -> None:
    """An agent that is a program; its first argument says how it behaves."""
    how, prompt = sys.argv[1], sys.stdin.read()
    if how == "early":
        sys.exit("no idea")
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    reply = complete(url, key, prompt)
    if how == "late":
        sys.exit(3)
    if how == "noisy":
        print("x" * 5_000_000)
    if how == "file":
        with open("answer.txt", "w") as file:
            file.write(reply)
    if how == "orphan":  # leaves the process group, and holds the pipes open
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        print(os.getpid(), file=sys.stderr)
    if how == "escape":  # leaves group, session and environment
        escaped = subprocess.Popen(["setsid", "env", "-i", "sleep", "600"])
        pathlib.Path(os.environ["ESCAPED"]).write_text(str(escaped.pid))
    if how == "sleep" or os.environ.get("THEN") == "sleep":
        time.sleep(600)
    if how == "secrets":
        print(sorted(os.environ))
    print(reply)


if __name__ == "__main__":
    main()
