"""The other side of the service `peer`: reads and writes lines of JSON. It runs in an interpreter
that has the library and not Quintain, hence imports nothing of it.
"""

import asyncio
import json
import sys
import traceback


class AskedPolicy:
    """The policy of one episode, which is asked over the lines."""

    def __init__(self, number, write):
        self._number, self._write = number, write
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
    """Serve the tasks that ``load(target, args, limit)`` returns. ``await play(task, policy)``
    returns the score and a reason.
    """
    target, settings, mode = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr  # what the library prints is no line of ours
    settings = json.loads(settings)
    tasks, shown = load(target, settings["args"], settings["limit"])
    if mode == "tasks":
        out.write("\n" + json.dumps(shown) + "\n")
        return
    asyncio.run(serve(tasks, play, out))


async def serve(tasks, play, out):
    def write(message):
        out.write(json.dumps(message) + "\n")
        out.flush()

    async def episode(number, task, policy):
        try:
            value, reason = await play(task, policy)
            write({"id": number, "done": {"value": value, "reason": str(reason)[:500]}})
        except Exception as e:  # noqa: BLE001 - the library may raise anything
            traceback.print_exc()
            write({"id": number, "error": f"{type(e).__name__}: {e}"[:500]})

    running, policies = {}, {}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        message = json.loads(line)
        number = message["id"]
        if "start" in message:
            policies[number] = AskedPolicy(number, write)
            one = episode(number, tasks[message["start"]], policies[number])
            running[number] = asyncio.create_task(one)
        elif "reply" in message and number in policies:
            policies[number].replies.put_nowait(message["reply"])
        elif "end" in message and number in running:
            running.pop(number).cancel()
            del policies[number]
