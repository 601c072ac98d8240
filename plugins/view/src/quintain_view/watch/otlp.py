"""Spans as OTLP over HTTP: what OpenTelemetry collectors, Jaeger and Tempo take at ``/v1/traces``.

The messages are those of `opentelemetry/proto/trace/v1/trace.proto`, written here in protobuf's wire
format (https://protobuf.dev/programming-guides/encoding/), so that no library is needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import queue
import struct
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from quintain.errors import InfrastructureError, UsageError

from .trace import Timed, TimelineFile, public_form

__all__ = ["Exporter", "request_of"]

SECONDS = 10.0
"""That a collector may take for a step."""
MOST_BYTES = 1_000_000
"""Of what a collector answers."""
WAITING = 100
"""Steps that wait for a collector; later ones are left out."""
CLIENT, INTERNAL = 3, 1
ERROR = 2
log = logging.getLogger(__name__)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode(errors="replace"))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _fixed64(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _any_value(value: Any) -> bytes:
    """Return an ``AnyValue``."""
    if isinstance(value, bool):
        return _number(2, value)
    if isinstance(value, int):
        return _number(3, value)
    if isinstance(value, float):
        return _varint(4 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, (list, tuple)):
        return _bytes(5, b"".join(_bytes(1, _any_value(one)) for one in value))
    if isinstance(value, Mapping):
        return _bytes(6, _attributes(1, {str(key): one for key, one in value.items()}))
    return _text(1, str(value))


def _attributes(field: int, attributes: Mapping[str, Any]) -> bytes:
    """Return repeated ``KeyValue``."""
    return b"".join(
        _bytes(field, _text(1, name) + _bytes(2, _any_value(value)))
        for name, value in attributes.items()
    )


def _span(span: Timed, trace: bytes, parent: int) -> bytes:
    name, attributes = public_form(span)
    return b"".join(
        (
            _bytes(1, trace),
            _bytes(2, span.id.to_bytes(8, "big")),
            _bytes(4, parent.to_bytes(8, "big")) if parent else b"",
            _text(5, name),
            _number(6, CLIENT if span.kind == "turn" else INTERNAL),
            _fixed64(7, round(span.began * 1e9)),
            _fixed64(8, round(span.ended * 1e9)),
            _attributes(9, attributes),
            _bytes(15, _text(2, span.error) + _number(3, ERROR)) if span.error else b"",
        )
    )


def request_of(timeline: TimelineFile, service: str = "quintain") -> bytes:
    """Return an ``ExportTraceServiceRequest``: one trace whose root is the step.

    Its id depends on the run, the step and the time, so that a step which is sent twice is one.
    """
    whole = timeline.whole
    seed = f"{timeline.run}/{timeline.step}/{whole.began:.6f}"
    trace = hashlib.sha256(seed.encode()).digest()[:16]
    spans = b""
    for span in timeline.spans:
        # Spans without a parent hang under the step, which has none.
        parent = span.parent or (0 if span is whole else whole.id)
        spans += _bytes(2, _span(span, trace, parent))
    resource = {
        "service.name": service,
        "quintain.run": timeline.run,
        "quintain.step": timeline.step,
    }
    # ExportTraceServiceRequest{1: ResourceSpans{1: Resource{1: attributes},
    # 2: ScopeSpans{1: Scope{1: name}, 2: spans}}}
    scope = _bytes(1, _text(1, "quintain")) + spans
    return _bytes(1, _bytes(1, _attributes(1, resource)) + _bytes(2, scope))


def traces_url(environment: Mapping[str, str]) -> str:
    """Return where OpenTelemetry's variables send traces; empty if they do not say."""
    if url := environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""):
        return url
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return f"{base.rstrip('/')}/v1/traces" if base else ""


def _headers(text: str) -> Iterable[tuple[str, str]]:
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        yield name.strip(), unquote(value.strip())


class Exporter:
    """Sends the spans of steps to a collector, in a thread of its own.

    Args:
        url: where traces go, with ``/v1/traces``.
        headers: of each request.
        service: the ``service.name`` of the spans.
        seconds: that the collector may take for a step.

    Raises:
        UsageError: quintain-engines, whose client sends them, is not installed.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        service: str = "quintain",
        *,
        seconds: float = SECONDS,
    ) -> None:
        if importlib.util.find_spec("quintain_engines") is None:
            raise UsageError(
                "spans are sent by quintain-engines: pip install 'quintain-view[otlp]'"
            )
        self._url, self._headers, self._service = url, dict(headers or {}), service
        self._seconds = seconds
        self._steps: queue.Queue[TimelineFile | None] = queue.Queue(WAITING)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="quintain-otlp", daemon=True)
        self._thread.start()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], run: str) -> Exporter | None:
        """Return what ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``..._TRACES_ENDPOINT``, ``..._HEADERS`` and
        ``OTEL_SERVICE_NAME`` ask for; ``None`` without an address.
        """
        url = traces_url(environment)
        if not url or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        headers = dict(_headers(environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")))
        return cls(url, headers, environment.get("OTEL_SERVICE_NAME") or "quintain")

    def send(self, timeline: TimelineFile) -> None:
        """Hand over a step; it is left out if too many wait."""
        try:
            self._steps.put_nowait(timeline)
        except queue.Full:
            self._warn(f"{WAITING} steps wait for it")

    def post(self, timeline: TimelineFile) -> None:
        """Send a step and wait until the collector has it.

        Raises:
            InfrastructureError: it does not take it.
        """
        from quintain_engines.http import run_apart

        try:
            run_apart(self._posted(request_of(timeline, self._service)))
        except InfrastructureError as e:
            raise InfrastructureError(
                f"the collector {self._url} took no spans: {e}; is it an OTLP address for HTTP, "
                "such as http://localhost:4318/v1/traces?"
            ) from e

    async def _posted(self, body: bytes) -> None:
        from quintain_engines.http import HttpClient

        headers = {"Content-Type": "application/x-protobuf", **self._headers}
        end = "/" if self._url.endswith("/") else ""
        async with HttpClient(self._url, seconds=self._seconds, most_bytes=MOST_BYTES) as client:
            answer = await client.send("POST", end, data=body, headers=headers)
        if not 200 <= answer.status < 300:
            said = " ".join(answer.text[:200].split())
            raise InfrastructureError(f"HTTP status {answer.status} {said}".rstrip())

    def close(self) -> None:
        """Send what waits, for `SECONDS` at most."""
        self._steps.put(None)
        self._thread.join(SECONDS)

    def _work(self) -> None:
        while (timeline := self._steps.get()) is not None:
            try:
                self.post(timeline)
            except InfrastructureError as e:
                self._warn(str(e))

    def _warn(self, text: str) -> None:
        if not self._failed:
            log.warning("%s (said once)", text)
        self._failed = True
