"""An agent that knows nothing of Quintain: it asks a model for commands and runs them in a
container.
"""

import json
import os
import sys
import urllib.request

import docker

TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def ask(messages):
    body = {"model": "policy", "messages": messages, "tools": [TOOL]}
    head = {
        "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        "Content-Type": "application/json",
    }
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as r:
        return json.load(r)["choices"][0]["message"]


def main():
    prompt, name, folder = sys.argv[1:]
    container = docker.from_env().containers.get(name)
    messages = [{"role": "user", "content": prompt}]
    for _ in range(8):
        reply = ask(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            break
        for call in reply["tool_calls"]:
            try:
                command = json.loads(call["function"]["arguments"])["command"]
                _, output = container.exec_run(["sh", "-c", command], workdir=folder)
            except (ValueError, KeyError, TypeError) as e:
                output = str(e).encode()
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": output.decode("utf-8", "replace"),
                }
            )


main()
