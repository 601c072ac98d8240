"""Agents for tests in sandboxes, honest and hostile: the first argument names one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

URL, KEY = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
PORT = urlsplit(URL).port or 0
AGENTS: dict[str, Callable[[str], Any]] = {}


def agent(function: Callable[[str], Any]) -> Callable[[str], Any]:
    AGENTS[function.__name__] = function
    return function


def body_of(prompt: str, **more: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": prompt}], **more}
    ).encode()


def post(
    body: bytes, key: str = KEY, path: str = "/v1/chat/completions", method: str = "POST"
) -> tuple[int, Any]:
    """Status and JSON of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, body, head)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def ask(prompt: str, **more: Any) -> str:
    status, answer = post(body_of(prompt, **more))
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


def raw(data: bytes) -> bytes:
    """What comes back for bytes on a connection of their own, up to its end."""
    with socket.create_connection(("127.0.0.1", PORT)) as s:
        s.sendall(data)
        out = b""
        while piece := s.recv(65536):
            out += piece
    return out


# ---------------------------------------------------------------- honest


@agent
def plain(prompt: str) -> str:
    return ask(prompt)


@agent
def messages(prompt: str) -> str:
    """What Anthropic's variables name, with the key in its header, whole and refused."""
    url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    found = []
    for key in (os.environ["ANTHROPIC_API_KEY"], "wrong"):
        connection = http.client.HTTPConnection(url.hostname or "", url.port)
        head = {"x-api-key": key, "Content-Type": "application/json"}
        connection.request("POST", f"{url.path}/v1/messages?beta=true", body_of(prompt), head)
        found.append(json.loads(connection.getresponse().read()))
        connection.close()
    return f"{found[0]['content'][0]['text']} {found[1]['error']['type']}"


@agent
def file(prompt: str) -> str:
    Path("out").mkdir()
    Path("out/answer.txt").write_text(ask(prompt) + "\n")
    return "see the file"


@agent
def seen(prompt: str) -> str:
    """What the agent finds in its box."""
    names = sorted(os.environ)
    return json.dumps(
        {"environment": names, "files": sorted(map(str, Path().rglob("*"))), "argv": sys.argv[2:]}
    )


@agent
def dialogues(prompt: str) -> str:
    """Forty sub-agents at one time, each with two turns."""

    def talk(i: int) -> str:
        first = ask(f"{i}")
        talk = [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": first}]
        status, answer = post(
            json.dumps(
                {"model": "m", "messages": [*talk, {"role": "user", "content": "?"}]}
            ).encode()
        )
        assert status == 200, answer
        return first

    with ThreadPoolExecutor(40) as pool:
        return json.dumps(sorted(pool.map(talk, range(40))))


@agent
def streams(prompt: str) -> str:
    """Server-sent events as they are on the wire."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    head = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", body_of(prompt, stream=True), head)
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream"
    assert answer.getheader("Transfer-Encoding") == "chunked"
    events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    again = connection.sock
    connection.request("GET", "/v1/models", headers=head)  # the connection stays usable
    assert connection.sock is again
    models = json.load(connection.getresponse())
    text = "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events)
    return json.dumps(
        {"text": text, "events": len(events), "models": [m["id"] for m in models["data"]]}
    )


@agent
def wire(prompt: str) -> str:
    """Forms of HTTP that clients use, and some that none does: the status of each."""
    body = body_of(prompt)
    own = f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
    line, close = b"POST /v1/chat/completions HTTP/1.1\r\n" + own, b"Connection: close\r\n"
    chunks = b"".join(
        b"%x;note\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7])
        for i in range(0, len(body), 7)
    )
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    requests = {
        "length": line + close + length + body,
        "chunks": line + close + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n",
        "old": line.replace(b"1.1", b"1.0") + length + body,
        "two": line + length + body + line + close + length + body,
        "continue": line + close + b"Expect: 100-continue\r\n" + length + body,
        "head": b"HEAD /v1/models HTTP/1.1\r\n" + own + close + b"\r\n",
        "query": b"GET /v1/models?x=1 HTTP/1.1\r\n" + own + close + b"\r\n",
        "elsewhere": b"GET http://10.0.0.1/ HTTP/1.1\r\n" + own + close + b"\r\n",
        "connect": b"CONNECT 10.0.0.1:80 HTTP/1.1\r\n" + own + close + b"\r\n",
        "no key": b"GET /v1/models HTTP/1.1\r\n" + close + b"\r\n",
        "no type": b"POST /v1/responses HTTP/1.1\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n" + close + length
        + body,
        "noise": b"\x16\x03\x01\x00\xff\r\n\r\n",
        "long": b"GET /" + b"x" * 100_000,
        "negative": line + b"Content-Length: -1\r\n\r\n",
        "chunk": line + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "large": line + b"Content-Length: 20000000000\r\n\r\n",
    }  # fmt: skip
    # the connection is held until the client closes it
    broken = ("noise", "long", "negative", "chunk", "large")
    found = {}
    for name, data in requests.items():
        with socket.create_connection(("127.0.0.1", PORT)) as s:
            s.sendall(data)
            out = b""
            while (piece := s.recv(65536)) and name not in broken:
                out += piece
        found[name] = [int(part.split()[0]) for part in (out or piece).split(b"HTTP/1.1 ")[1:]]
    return json.dumps(found)


@agent
def leaves(prompt: str) -> str:
    """Cancels a request whose reply never comes."""
    with socket.create_connection(("127.0.0.1", PORT)) as s:
        body = body_of("never")
        s.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Type: "
            f"application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        time.sleep(1)
    return ask("now")


@agent
def openai(prompt: str) -> str:
    """The plain client: sync, streaming, async, responses."""
    import asyncio

    from openai import AsyncOpenAI, OpenAI

    message: Any = [{"role": "user", "content": prompt}]
    client = OpenAI()
    replies = [
        client.chat.completions.create(model="m", messages=message).choices[0].message.content
    ]
    parts = client.chat.completions.create(model="m", messages=message, stream=True)
    replies.append("".join(p.choices[0].delta.content or "" for p in parts if p.choices))
    replies.append(client.responses.create(model="m", input=prompt).output_text)

    async def many() -> list[Any]:
        async with AsyncOpenAI() as own:
            calls = [own.chat.completions.create(model="m", messages=message) for _ in range(8)]
            return [r.choices[0].message.content for r in await asyncio.gather(*calls)]

    return json.dumps(replies + asyncio.run(many()))


# ---------------------------------------------------------------- failures


@agent
def early(prompt: str) -> str:
    sys.exit("no idea")


@agent
def late(prompt: str) -> str:
    ask(prompt)
    sys.exit(3)


@agent
def sleeps(prompt: str) -> str:
    time.sleep(600)
    return ""


@agent
def asks_and_sleeps(prompt: str) -> str:
    ask(prompt)
    return sleeps(prompt)


@agent
def tries_again(prompt: str) -> str:
    """The status of a request after the turns are used up."""
    ask(prompt)
    return str(post(body_of("more"))[1]["error"]["code"])


# ---------------------------------------------------------------- hostile


@agent
def reaches_out(prompt: str) -> str:
    """Addresses outside the box: the trainer's servers, other machines, names, abstract sockets."""
    reached = []
    host = int(os.environ["GATEWAY_PORT"])
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", host)),
        (socket.AF_INET6, ("::1", host)),
        (socket.AF_INET, ("10.0.0.1", 80)),
        (socket.AF_INET, ("169.254.169.254", 80)),
        (socket.AF_INET, (socket.gethostname(), host)),
        (socket.AF_UNIX, "\0quintain"),
    ):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as s:
                s.settimeout(2)
                s.connect(address)
            reached.append(str(address))
        except OSError:
            pass
    return json.dumps(reached)


@agent
def other_key(prompt: str) -> str:
    """The key of another episode, the outer key, none."""
    keys = [os.environ["OTHER_KEY"], "", "x" * 5000]
    return json.dumps([post(body_of(prompt), key)[0] for key in keys])


@agent
def floods(prompt: str) -> str:
    """Connections that send nothing, and as many requests as fit, given up at once."""
    idle = []
    for _ in range(400):
        try:
            idle.append(socket.create_connection(("127.0.0.1", PORT), timeout=5))
        except OSError:
            break
    body = body_of("x" * 10_000)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Type: "
        f"application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", PORT)) as s:
            s.sendall(request)
    return f"{len(idle)} connections"


@agent
def gigabyte(prompt: str) -> str:
    """A body of a gigabyte, with a length and without; and a gigabyte to standard output."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Type: "
        f"application/json\r\n"
    )
    ends = []
    for how in ("Content-Length: 1073741824\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", PORT)) as s:
            piece = bytes(1 << 20)
            s.sendall((head + how).encode())
            try:
                for _ in range(1024):
                    s.sendall(b"100000\r\n" + piece + b"\r\n" if "chunked" in how else piece)
            except OSError:
                pass
            try:
                ends.append(s.recv(12).decode())
            except OSError:
                ends.append("reset")
    print(ends, flush=True)
    for _ in range(1024):
        os.write(1, b"x" * (1 << 20))
    return ""


@agent
def never_reads(prompt: str) -> str:
    """Fifty requests for long replies, of which it reads nothing."""
    waiting = []
    body = body_of("long")
    for _ in range(50):
        s = socket.create_connection(("127.0.0.1", PORT))
        s.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Type: "
            f"application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        waiting.append(s)
    time.sleep(3)
    return str(len(waiting))


@agent
def garbage(prompt: str) -> str:
    """Writes into the streams of every process that it can reach."""
    frames = (
        b'noise\n\xff\xfe\n{"do":"exited","status":0}\n{"do":"refused","what":"program","reason":"x"}\n'
        * 1000
    )
    reached = 0
    for pid in [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]:
        for number in range(10):
            try:
                descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
                reached += os.write(descriptor, frames)
            except OSError:
                continue
    time.sleep(1)
    os.write(1, frames)
    return str(reached)


@agent
def outlives(prompt: str) -> str:
    """Daemons that hold the streams open, write to them, and fork on."""
    for _ in range(5):
        subprocess.Popen(
            ["/bin/sh", "-c", "while :; do sleep 60 & sleep 0.1; echo alive; done"],
            start_new_session=True,
        )
    print(ask(prompt))
    sys.stdout.flush()
    os._exit(0)


@agent
def kills(prompt: str) -> str:
    """Signals to everybody, its parent first."""
    for pid in (os.getppid(), 1, -1):
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
    time.sleep(1)
    return ask(prompt)


@agent
def forks(prompt: str) -> str:
    """As many processes as there may be, and still a request."""
    born = 0
    while born < 10_000:
        try:
            if os.fork() == 0:
                time.sleep(600)
        except OSError:
            break
        born += 1
    return f"{born < 10_000} {ask(prompt)}"


@agent
def eats(prompt: str) -> str:
    """More memory than the box has."""
    ask(prompt)
    return str(len([bytearray(b"x" * (1 << 20)) for _ in range(100_000)]))


@agent
def imitates(prompt: str) -> str:
    """Takes the relay's port where it can, and answers the threads of its own requests itself."""
    try:
        with socket.create_server(("127.0.0.1", PORT)):
            return "taken"
    except OSError:
        pass
    threading.Thread(target=raw, args=(b"GET / HTTP/1.1\r\n\r\n",), daemon=True).start()
    return ask(prompt)


def main() -> None:
    print(AGENTS[sys.argv[1]](sys.stdin.read()))


if __name__ == "__main__":
    main()
