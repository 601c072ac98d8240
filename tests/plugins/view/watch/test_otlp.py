"""Spans in OTLP: a receiver that reads protobuf with OpenTelemetry's own classes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from quintain.errors import InfrastructureError
from quintain_view.watch.otlp import Exporter, request_of, traces_url

from .kit import Spans

messages = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="needs OpenTelemetry's messages: pip install opentelemetry-proto",
)


class Collector:
    """What arrived: path, headers and request of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.url = ""


@contextmanager
def collector() -> Iterator[Collector]:
    """Listen at a free port of this machine as a collector does."""
    got = Collector()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = messages.ExportTraceServiceRequest.FromString(body)
            got.calls.append((self.path, {k.lower(): v for k, v in self.headers.items()}, request))
            self.send_response(got.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    got.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def made() -> Spans:
    spans = Spans()
    step = spans.add("step", 0, 3, step=7)
    rollouts = spans.add("rollouts", 0, 2, step)
    episode = spans.episode(0, 2, rollouts)
    spans.turn(0, 1, episode)
    spans.add("ranks", 2, 3, step, command="step", seconds={"0": 1.5}, exact=True)
    return spans


def plain(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


def test_a_collector_gets_every_span_of_a_step() -> None:
    """Names, kinds, parents, times and attributes, as one trace whose root is the step."""
    spans = made()
    with collector() as got:
        Exporter(f"{got.url}/v1/traces", {"x-key": "k"}, "tests").post(spans.timeline(7, "sums"))

    ((path, headers, request),) = got.calls
    assert path == "/v1/traces"
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["x-key"] == "k"
    (resource,) = request.resource_spans
    assert plain(resource.resource.attributes) == {
        "service.name": "tests",
        "quintain.run": "sums",
        "quintain.step": 7,
    }
    (scope,) = resource.scope_spans
    by_name = {span.name: span for span in scope.spans}
    assert list(by_name) == ["step 7", "rollouts", "invoke_agent sums", "chat embedded", "ranks"]
    step, episode, turn = (by_name[n] for n in ("step 7", "invoke_agent sums", "chat embedded"))
    assert len({span.trace_id for span in scope.spans}) == 1
    assert len(step.trace_id) == 16
    assert len(step.span_id) == 8
    assert step.parent_span_id == b""
    assert turn.parent_span_id == episode.span_id
    assert episode.parent_span_id == by_name["rollouts"].span_id
    assert turn.kind == turn.SPAN_KIND_CLIENT
    assert episode.kind == turn.SPAN_KIND_INTERNAL
    assert turn.end_time_unix_nano - turn.start_time_unix_nano == 1_000_000_000
    assert step.start_time_unix_nano == 1_000 * 10**9
    found = plain(turn.attributes)
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.usage.output_tokens"] == 4
    assert [v.string_value for v in found["gen_ai.response.finish_reasons"].values] == ["stop"]
    ranks = plain(by_name["ranks"].attributes)
    assert ranks["quintain.exact"] is True
    assert plain(ranks["quintain.seconds"].values) == {"0": 1.5}


def test_an_error_is_a_status() -> None:
    """A span that an exception ended has its name, and a status that says so."""
    spans = Spans()
    spans.add("step", 0, 1, step=1)
    failed = spans.made[0].__class__(
        id=2,
        parent=1,
        kind="transfer",
        began=1_000,
        ended=1_001,
        attributes={"replica": 1},
        error="OSError",
    )
    spans.made.append(failed)

    request = messages.ExportTraceServiceRequest.FromString(request_of(spans.timeline()))

    span = request.resource_spans[0].scope_spans[0].spans[1]
    assert span.name == "transfer 1"
    assert span.status.code == 2
    assert span.status.message == "OSError"
    assert plain(span.attributes)["error.type"] == "OSError"


def test_hostile_names_and_large_numbers_survive() -> None:
    """Lone surrogates become replacement characters, and negative numbers stay."""
    spans = Spans()
    spans.add("step", 0, 1, step=1, text="a\ud800\x00", low=-5, high=2**62)

    request = messages.ExportTraceServiceRequest.FromString(request_of(spans.timeline()))

    found = plain(request.resource_spans[0].scope_spans[0].spans[0].attributes)
    assert found["quintain.text"] == "a?\x00"
    assert found["quintain.low"] == -5
    assert found["quintain.high"] == 2**62


def test_a_collector_that_is_down_is_named() -> None:
    """The message has the address and what kind of address is expected."""
    with collector() as got:
        got.status = 500
        with pytest.raises(InfrastructureError, match="took no spans: HTTP status 500"):
            Exporter(f"{got.url}/v1/traces").post(made().timeline())
        assert len(got.calls) == 1
    with pytest.raises(InfrastructureError, match="is it an OTLP address for HTTP"):
        Exporter(f"{got.url}/v1/traces").post(made().timeline())


def test_the_variables_of_opentelemetry_choose_the_collector() -> None:
    """The address of traces wins, the general one gets the path, and the SDK's switch holds."""
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}
    assert traces_url(base) == "http://c:4318/v1/traces"
    assert traces_url(base | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x"}) == "http://t/x"
    assert traces_url({}) == ""
    assert Exporter.of_environment({}, "a") is None
    assert Exporter.of_environment(base | {"OTEL_SDK_DISABLED": "true"}, "a") is None


def test_steps_are_sent_in_the_background_and_before_the_end() -> None:
    """`close` waits for what is on its way."""
    with collector() as got:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": got.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-a=1%202,x-b=c",
            "OTEL_SERVICE_NAME": "mine",
        }
        exporter = Exporter.of_environment(variables, "a")
        assert exporter is not None
        for step in (1, 2, 3):
            exporter.send(made().timeline(step))
        exporter.close()

    assert [headers["x-a"] for _, headers, _ in got.calls] == ["1 2"] * 3
    services = [plain(r.resource_spans[0].resource.attributes) for *_, r in got.calls]
    assert [(s["service.name"], s["quintain.step"]) for s in services] == [
        ("mine", step) for step in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    "answer",
    [b"220 mail.example.org ESMTP\r\n", b"HTTP/x.y 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000],
    ids=["another protocol", "no version", "a line without end"],
)  # fmt: skip
def test_what_is_no_answer_of_http_is_a_failure_of_the_collector(answer: bytes) -> None:
    """A server of another kind at the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            connection, _ = server.accept()
            # A client that gives up hangs up on what it has not read, which resets the connection.
            with connection, suppress(ConnectionError):
                connection.recv(1)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=speak)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces"
        with pytest.raises(InfrastructureError, match="took no spans"):
            Exporter(url, {}, "tests").post(made().timeline(7, "sums"))
        thread.join()


def test_an_address_with_a_port_that_is_none_is_a_failure_of_the_collector() -> None:
    with pytest.raises(InfrastructureError, match="took no spans"):
        Exporter("http://127.0.0.1:port/v1/traces", {}, "tests").post(made().timeline(7, "sums"))
