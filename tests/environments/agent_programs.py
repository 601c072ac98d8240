"""Agents for tests: they know nothing of Quintain and speak HTTP with the standard library."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def complete(url: str, key: str, prompt: str) -> str:
    """One reply."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, head)) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as e:
        e.close()
        raise


def solve(prompt: str, endpoint: Any) -> str:
    """An agent that blocks."""
    return complete(endpoint.base_url, endpoint.api_key, prompt)


async def asked_twice(prompt: str, endpoint: Any) -> dict[str, Any]:
    """An async agent, which runs the blocking one in a thread."""
    import asyncio

    first = await asyncio.to_thread(solve, prompt, endpoint)
    return {"first": first, "second": await asyncio.to_thread(solve, first, endpoint)}


def crashes_early(prompt: str, endpoint: Any) -> str:
    raise KeyError("early")


def crashes_late(prompt: str, endpoint: Any) -> str:
    return str(json.loads(solve(prompt, endpoint)))


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
    if how == "sleep":
        time.sleep(600)
    if how == "secrets":
        print(sorted(os.environ))
    print(reply)


if __name__ == "__main__":
    main()
