"""An MCP server without the SDK, for tests that start many or need lines that the SDK would not
write.

It starts in 20 ms, and is as simple as servers in other languages: one call after the other, ids
after results.
"""

from __future__ import annotations

import json
import os
import sys
import time

TOOLS = (
    "add",
    "note",
    "recall",
    "forget",
    "big",
    "nameless",
    "chatter",
    "odd",
    "raw",
    "late",
    "quiet",
    "crash",
    "crash_once",
    "deaf",
    "twice",
    "place",
)


def send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    notes: list[str] = []
    if "mark" in sys.argv:
        sys.stdout.write("\ufeff")
    if "flood" in sys.argv:
        while True:
            print("Welcome to the tools!")
    names = [*TOOLS, *filter(None, [os.environ.get("EXTRA_TOOL")])]
    said = os.environ.get("NOTE_TEXT", "Keep a note.")
    for line in sys.stdin:
        request = json.loads(line)
        number, method, params = request.get("id"), request["method"], request.get("params", {})
        if number is None:
            continue
        if method == "initialize":
            info = {"name": "bare", "version": "1"}
            result: object = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"value": {}}}
            hints = {"readOnlyHint": True}
            tools = [
                {"name": n, "inputSchema": schema, "description": said, "annotations": hints}
                for n in names
            ]
            for tool in tools[1:]:
                if tool["name"] != "crash_once":
                    del tool["annotations"]
            result = {"tools": tools}
            if "turns" in sys.argv:
                result["nextCursor"] = "again"
            if "twins" in sys.argv:
                tools.append({**tools[0], "description": "Another one."})
        elif method == "tools/call":
            result = call(params["name"], params["arguments"].get("value"), notes, number)
        else:
            send(
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "error": {"code": -32601, "message": "no such method"},
                }
            )
            continue
        if result is not None:
            send({"result": result, "jsonrpc": "2.0", "id": number})


def call(name: str, value: object, notes: list[str], number: int) -> object:
    text = ""
    match name:
        case "note":
            notes.append(str(value))
        case "recall":
            text = f"{os.getpid()} {' '.join(notes)}"
        case "forget":
            notes.clear()
        case "big":
            text = "x" * int(str(value))
        case "nameless":  # too long, and nothing in it says to which request it belongs
            send({"result": "x" * int(str(value))})
            return None
        case "chatter":
            send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/message",
                    "params": {"data": "x" * int(str(value))},
                }
            )
        case "odd":
            return value
        case "raw":  # a result as text, which need not be JSON
            sys.stdout.write(f'{{"result": {value}, "jsonrpc": "2.0", "id": {number}}}\n')
            sys.stdout.flush()
            return None
        case "place":
            seen = [*os.listdir(), os.environ["PLACE"], sys.argv[-1], os.getcwd()]
            os.mkdir("taken")
            text = " ".join(seen)
        case "late":
            time.sleep(float(str(value)))
        case "quiet":
            return None
        case "crash":
            print("about to crash", file=sys.stderr, flush=True)
            os._exit(3)
        case "crash_once":
            try:
                os.close(os.open(str(value), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                text = "back again"
            else:
                os._exit(3)
        case "deaf":  # reads nothing more, and stays
            time.sleep(600)
        case "twice":
            send(
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "result": {"content": [{"type": "text", "text": "first"}]},
                }
            )
            send({"jsonrpc": "2.0", "id": 999, "result": {"content": []}})
            text = "second"
    return {"content": [{"type": "text", "text": text}]}


if __name__ == "__main__":
    main()
