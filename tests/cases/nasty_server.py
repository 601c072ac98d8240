"""An MCP server that does one strange thing, named on its command line, and is right otherwise."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

KIND = sys.argv[1]
TEXT = [{"type": "text", "text": "fine"}]


def send(message: dict[str, Any]) -> None:
    end = "\r\n" if KIND == "CRLF" else "\n"
    sys.stdout.buffer.write((json.dumps({"jsonrpc": "2.0", **message}) + end).encode())
    sys.stdout.buffer.flush()


def tool(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {"value": {}}}
    if KIND == "schema without properties":
        schema = {"type": "object"}
    if KIND == "enum":
        schema = {"type": "object", "properties": {"value": {"enum": ["<b>", "<i>"]}}}
    return {"name": name, "description": "d", "inputSchema": schema}


def call(number: Any, value: Any) -> dict[str, Any]:
    """The result of the call, after what is strange of it."""
    if KIND == "noise":
        sys.stdout.buffer.write(b"hello\n\xff\xfe\n{}\n[]\n")
    if KIND == "answer with another id":
        send({"id": 4711, "result": {"content": []}})
    if KIND == "sampling":
        send({"id": "s1", "method": "sampling/createMessage", "params": {"messages": []}})
    if KIND == "progress":
        for step in range(8):
            note = {"progressToken": 1, "progress": step}
            send({"method": "notifications/progress", "params": note})
            time.sleep(0.25)
    if KIND == "embedded empty content":
        return {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": ""}}]}
    if KIND == "structured error":
        failed = [{"type": "text", "text": "failed"}]
        return {"content": failed, "isError": True, "structuredContent": {"code": "RATE"}}
    return {"content": [{"type": "text", "text": f"got {value}"}] if KIND == "enum" else TEXT}


def main() -> None:
    if KIND == "mark":
        sys.stdout.buffer.write(b"\xef\xbb\xbf")
    for line in sys.stdin:
        request = json.loads(line)
        number, params = request.get("id"), request.get("params", {})
        method = request.get("method")
        if number is None or method is None:
            continue  # a note, or the answer to what this server asked
        if method == "initialize":
            server = {"name": "nasty", "version": "1"}
            version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            send({"id": number, "result": {**version, "serverInfo": server}})
        elif method == "tools/list":
            page = int(params.get("cursor") or 0)
            many = {"pages": 5, "same": 1}.get(KIND, 0)
            listed: dict[str, Any] = {"tools": [tool(f"tool_{page}" if many > 1 else "it")]}
            if KIND == "same":
                listed["nextCursor"] = "0"
            elif page + 1 < many:
                listed["nextCursor"] = str(page + 1)
            send({"id": number, "result": listed})
        elif method == "tools/call":
            result = call(number, params.get("arguments", {}).get("value"))
            shown = str(number) if KIND == "id as text" else number
            send({"id": shown, "result": result})
            if KIND == "answer twice":
                send({"id": number, "result": {"content": []}})
        else:
            send({"id": number, "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main()
