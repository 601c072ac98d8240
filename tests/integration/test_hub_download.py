"""A model of the hub is fetched with progress on a terminal: against a small server that speaks the
hub's protocol.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ..core.models.tiny import save_tiny

NAME, COMMIT = "someone/tiny", "a" * 40


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The address of a hub that has one model."""
    folder = save_tiny(tmp_path / "model", context=128)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = folder / path.rpartition("/")[2]
            if path.startswith(f"/{NAME}/resolve/") and file.is_file():
                body = file.read_bytes()
                self.answer(
                    200, body, ETag=f'"{hashlib.sha1(body).hexdigest()}"', X_Repo_Commit=COMMIT
                )
            elif path.startswith(f"/api/models/{NAME}/tree"):
                sizes = {p.name: p.stat().st_size for p in folder.iterdir()}
                rows = [
                    {"type": "file", "path": name, "size": size, "oid": "0" * 40}
                    for name, size in sizes.items()
                ]
                self.answer(200, json.dumps(rows).encode())
            elif path.startswith(f"/api/models/{NAME}"):
                files = [{"rfilename": p.name} for p in folder.iterdir()]
                self.answer(
                    200,
                    json.dumps({"id": NAME, "sha": COMMIT, "siblings": files, "tags": []}).encode(),
                )
            else:
                self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.ci
def test_a_download_shows_its_progress(hub: str, tmp_path: Path) -> None:
    """On a terminal each file has a bar, which the live display of the run does not break into
    lines.
    """
    words = ["train", "arithmetic", "--model", NAME, "--steps", "1", "--set", "batch.prompts=1"]
    words += [
        "--set",
        "evaluation.test.tasks=0",
        "--set",
        "evaluation.every=0",
        "--set",
        "sampling.max_tokens=4",
    ]
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path / "cache"),
        "TERM": "xterm-256color",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    with subprocess.Popen(
        [sys.executable, "-m", "quintain", *words],
        stdin=child, stdout=child, stderr=child, cwd=tmp_path, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(child)
        shown = b""
        try:
            while piece := os.read(parent, 65536):
                shown += piece
        except OSError:  # Linux: the other end is closed
            pass
        assert process.wait(60) == 0, shown.decode()
    os.close(parent)

    text = shown.decode()
    assert f"loading {NAME}" in text
    assert re.search(r"\rmodel\.safetensors: 100%|\r\(…\)\w*/model\.safetensors: 100%", text)
    assert "step 1/1" in text
