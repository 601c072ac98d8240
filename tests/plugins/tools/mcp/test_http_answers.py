"""Answers of a server over HTTP to a call: what is about the call is a message to the policy, and
what is about the server is an infrastructure failure, whatever its body.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quintain.errors import InfrastructureError
from quintain_tools.mcp import Mcp, McpServer

from ....integration.hostile_server import Exchange, HostileServer, mcp_answer

RESULT = {"content": [{"type": "text", "text": "hello"}]}
ERROR = {"code": -32602, "message": "no such city"}


def outcome(body: Any, status: int = 200, *headers: str) -> str:
    """What a call gives, whose answer is *body*; ``OWN`` in it stands for the id of the request."""
    text = body if isinstance(body, str) else json.dumps(body)
    number = 0

    def honest(content: bytes) -> tuple[str, Any]:
        nonlocal number
        number = json.loads(content or b"{}").get("id", 0)
        return mcp_answer(content)

    async def answer(x: Exchange) -> None:
        said = text.replace('"OWN"', str(number)).encode()
        await x.answer(said, *headers, status=f"{status} Whatever")

    async def run() -> str:
        async with HostileServer({"/mcp": honest}, "tools/call", answer).up() as server:
            declared = McpServer(url=f"{server.url}/mcp", seconds=20, restarts=0)
            async with Mcp(servers={"it": declared}) as mcp, mcp.session() as session:
                try:
                    result = await session.call("greet")
                except InfrastructureError as e:
                    return f"infrastructure: {e}"
        return f"{'failed: ' if result.failed else ''}{result.text}"

    return asyncio.run(run())


def answer(**fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "OWN", **fields}


BODIES = {
    "text": "the key has expired",
    "json": {"error": "the key has expired"},
    "error": answer(error=ERROR),
    "result": answer(result=RESULT),
}


@pytest.mark.keeps("json-401", "error-403", "result-429", "json-500")
@pytest.mark.parametrize("status", [401, 402, 403, 407, 408, 425, 429, 451, 500, 502, 503, 529])
@pytest.mark.parametrize("body", BODIES)
def test_a_status_about_the_server_is_infrastructure(status: int, body: str) -> None:
    assert f"HTTP status {status}" in outcome(BODIES[body], status)


@pytest.mark.keeps("own-400", "null-400")
@pytest.mark.parametrize("status", [400, 404, 409, 422])
@pytest.mark.parametrize(
    "number", ["OWN", None, 987, "server-error"], ids="own null 987 word".split()
)
def test_a_refusal_counts_if_the_server_has_read_the_request(status: int, number: Any) -> None:
    """A request that is refused before its id was read is not wrong by what the policy wrote."""
    given = outcome({"jsonrpc": "2.0", "id": number, "error": ERROR}, status)
    own = number == "OWN"
    assert given.startswith("failed: no such city" if own else "infrastructure: ")


@pytest.mark.keeps("html", "foreign_id")
@pytest.mark.parametrize(
    "body",
    [
        {"error": "x"},
        {},
        [],
        "<html>",
        "",
        {"jsonrpc": "2.0", "id": 987, "result": RESULT},
        {"jsonrpc": "2.0", "id": None, "error": ERROR},
        {"jsonrpc": "1.0", "id": "OWN", "result": RESULT},
    ],
    ids="object empty list html nothing foreign_id null_id version".split(),
)
def test_what_is_no_answer_is_infrastructure(body: Any) -> None:
    events = f"event: message\ndata: {body if isinstance(body, str) else json.dumps(body)}\n\n"
    assert outcome(body).startswith(("infrastructure: ", "failed: the result is no JSON-RPC"))
    assert outcome(events, 200, "Content-Type: text/event-stream").startswith(
        ("infrastructure: ", "failed: the result is no JSON-RPC")
    )


@pytest.mark.keeps("whole-number", "stream-null", "whole-text")
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (7, "failed: the result is no JSON-RPC message"),
        ({"content": [{"type": "video"}]}, "failed: the result cannot be read: "),
        ({"content": RESULT["content"], "isError": None}, "failed: the result cannot be read: "),
        (RESULT, "hello"),
    ],
    ids=["number", "video", "null", "text"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_result_that_cannot_be_read_is_of_the_call(result: Any, said: str, stream: bool) -> None:
    body = answer(result=result)
    events = f": hi\n\nevent: message\ndata: {json.dumps(body)}\n\n"
    kind = ("Content-Type: text/event-stream",) if stream else ()
    assert outcome(events if stream else body, 200, *kind).startswith(said)


@pytest.mark.parametrize(
    ("status", "header"),
    [(202, "X: y"), (204, "X: y"), (302, "Location: /mcp"), (307, "Location: http://elsewhere/"),
     (308, "Location: http://[::1"), (200, "Content-Type: text/html")],
)  # fmt: skip
def test_an_answer_without_a_result_is_infrastructure(status: int, header: str) -> None:
    assert outcome("", status, header).startswith("infrastructure: ")
