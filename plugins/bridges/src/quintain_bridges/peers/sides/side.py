"""The other side of the service `peer`: reads and writes lines of JSON. It runs in an interpreter
that has the library and not Quintain, hence imports nothing of it.
"""

import asyncio
import json
import os
import sys
import traceback


class Lost(Exception):
    """What the episode ran on is gone, so that it says nothing about the policy or the task."""


class NotPlayed(Exception):
    """The task needs what is not played, whoever the policy is."""


class AskedPolicy:
    """The policy of one episode, which is asked over the lines.

    Attributes:
        endpoint: its address and key, where it is asked over HTTP in place of the lines.
    """

    def __init__(self, number, write, endpoint):
        self._number, self._write, self.endpoint = number, write, endpoint
        self.replies = asyncio.Queue()
        self._told = 0

    async def answer(self, messages):
        """Return the reply to *messages*, ``(role, content)``, of which those that it read before
        are not sent again.
        """
        new = [m for m in messages[self._told :] if m[0] != "assistant"]
        self._told = len(messages)
        ask = [{"role": role, "content": content} for role, content in new]
        self._write({"id": self._number, "ask": ask})
        return await self.replies.get()


def main(load, play):
    """Serve the tasks that ``load(target, settings)`` returns. ``await play(task, policy)`` returns
    the ``value`` of the score, a ``reason`` and perhaps ``parts``.
    """
    target, settings, mode = sys.argv[1:]
    # What the library and its processes print is no line of ours.
    out, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    try:
        tasks, shown = load(target, json.loads(settings))
    except Exception as e:  # noqa: BLE001 - the library may raise anything
        traceback.print_exc()
        # The last line of what this process says is shown to the user.
        sys.exit(f"{type(e).__name__}: {' '.join(str(e).split())}")
    if mode == "tasks":
        out.write("\n" + json.dumps(shown) + "\n")
        out.flush()
        return
    asyncio.run(serve(tasks, play, out))


async def serve(tasks, play, out):
    def write(message):
        out.write(json.dumps(message) + "\n")
        out.flush()

    async def episode(number, task, policy):
        try:
            done = await play(task, policy)
            write({"id": number, "done": {**done, "reason": str(done["reason"])[:500]}})
        except Exception as e:  # noqa: BLE001 - the library may raise anything
            traceback.print_exc()
            said = f"{type(e).__name__}: {e}"[:500]
            kind = {"lost": isinstance(e, Lost), "refused": isinstance(e, NotPlayed)}
            write({"id": number, "error": said, **kind})

    running, policies = {}, {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        message = json.loads(line)
        number = message["id"]
        if "start" in message:
            policies[number] = AskedPolicy(number, write, message.get("endpoint"))
            one = episode(number, tasks[message["start"]], policies[number])
            running[number] = asyncio.create_task(one)
        elif "reply" in message and number in policies:
            policies[number].replies.put_nowait(message["reply"])
        elif "end" in message and number in running:
            running.pop(number).cancel()
            del policies[number]
