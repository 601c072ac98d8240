"""What clients send for the forward and backward passes, from JSON or protobuf, and what they get
back in either.

Numbers of fields are those of ``tinker_public.proto`` in the SDK ``tinker`` 0.38.
"""

from __future__ import annotations

import contextlib
import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import invalid
from .protobuf import doubled, fields, number, sized, text, varints

__all__ = ["WRONG", "Datum", "ForwardBackward", "TensorData", "forward_backward_of", "reading"]

FLOAT32, INT64 = 1, 2
MOST_CELLS = 1 << 24
"""Cells of all tensors of a request that are sent sparse; dense ones are bounded by the size of the
body.
"""
MOST_FIELDS = 1 << 16
"""Fields of a message whose head is read while other clients wait."""
WRONG = (
    AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""What is raised where a body has another form."""
EMPTY_TOKEN, EMPTY_LOGPROB = 0, -99999.0


@dataclass(frozen=True, kw_only=True)
class TensorData:
    """A tensor of a datum, as rows of numbers: *values* in row-major order."""

    values: Sequence[float]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Datum:
    """One sequence, and the tensors that its loss reads."""

    ids: list[int]
    inputs: Mapping[str, TensorData]


@dataclass(frozen=True, kw_only=True)
class ForwardBackward:
    """A request for log-probs, and for gradients unless *forward_only*."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss: str
    config: Mapping[str, float | str] = field(default_factory=dict)
    forward_only: bool = False


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Tell the client where its body is not of the form that the code inside reads.

    Raises:
        ApiError: 400.
    """
    try:
        yield
    except WRONG as e:
        raise invalid(f"the body is not what this call takes: {type(e).__name__}: {e}") from e


class _Room:
    """How many more cells a request may have."""

    def __init__(self) -> None:
        self.left = MOST_CELLS

    def take(self, cells: int) -> None:
        self.left -= cells
        if self.left < 0:
            raise invalid(f"the sparse tensors of a request have more than {MOST_CELLS:,} cells")


def forward_backward_of(
    body: bytes, content_type: str, parsed: Any = None, *, forward_only: bool = False
) -> ForwardBackward:
    """Return the request in *body*: protobuf by its *content_type*, else the JSON *parsed* from it.

    Raises:
        ApiError: 400, something in it is wrong or not served.
    """
    with reading():
        if "protobuf" in content_type:
            return _from_protobuf(body)
        return _from_json(parsed, forward_only=forward_only)


def _from_json(parsed: Any, *, forward_only: bool) -> ForwardBackward:
    key = "forward_input" if forward_only else "forward_backward_input"
    given = parsed.get(key)
    if not isinstance(given, Mapping):
        raise invalid(f"{key} is missing", key)
    room, config = _Room(), given.get("loss_fn_config") or {}
    return ForwardBackward(
        model_id=str(parsed.get("model_id")),
        seq_id=int(parsed.get("seq_id") or 0),
        data=[_datum_of_json(datum, room) for datum in given.get("data", [])],
        loss=str(given.get("loss_fn")),
        config={name: s if isinstance(s, str) else float(s) for name, s in config.items()},
        forward_only=forward_only,
    )


def head_of(body: bytes) -> tuple[str, int, bool]:
    """Return model, place in its order and whether the pass is forward alone, of a request in
    protobuf; the rest may be wrong.

    Raises:
        ApiError: 400, it is no message.
    """
    model, seq, only = b"", 0, 0
    for count, (key, value) in enumerate(fields(body)):
        if count >= MOST_FIELDS:
            raise invalid(f"the message has more than {MOST_FIELDS:,} fields")
        if key == 1:
            model = _bytes(value)
        elif key == 2 and isinstance(value, int):
            seq = value
        elif key == 6 and isinstance(value, int):
            only = value
    return model.decode(errors="replace"), seq, bool(only)


def ids_of(model_input: Any) -> list[int]:
    """Return the tokens of a ``ModelInput`` in JSON.

    Raises:
        ApiError: 400, it has a chunk that is no text.
    """
    ids: list[int] = []
    for chunk in model_input["chunks"]:
        if chunk.get("type", "encoded_text") != "encoded_text":
            raise _no_text(chunk["type"])
        ids += chunk["tokens"]
    if any(type(i) is not int for i in ids):
        raise invalid("a token is no whole number")
    return ids


def tensor_of_json(given: Any, room: _Room) -> TensorData:
    """Return a ``TensorData`` in JSON, a sparse one filled with zeros."""
    values = given["data"]
    if any(type(value) not in (int, float) for value in values):
        raise invalid("a tensor has a value that is no number")
    shape = tuple(given.get("shape") or (len(values),))
    rows = given.get("sparse_crow_indices")
    if rows is not None:
        return _filled(values, rows, given["sparse_col_indices"], shape, room)
    return _checked(values, shape)


def output_in_protobuf(result: Mapping[str, Any]) -> bytes:
    """Return the ``ForwardBackwardOutput`` of *result*, which is its JSON.

    Rows of one width are one record; a datum of another width begins the next.
    """
    records: list[list[Mapping[str, Any]]] = []
    for output in result["loss_fn_outputs"]:
        if not records or _widths(records[-1][-1]) != _widths(output):
            records.append([])
        records[-1].append(output)
    message = text(1, result["loss_fn_output_type"])
    for record in records:
        inner = b""
        for name in record[0]:
            inner += sized(2, text(1, name) + sized(2, _batched([o[name] for o in record])))
        message += sized(2, inner + number(3, len(record)))
    for name, value in result["metrics"].items():
        message += sized(3, text(1, name) + doubled(2, value))
    return message


def sample_in_protobuf(result: Mapping[str, Any]) -> bytes:
    """Return the ``SampleResponse`` of *result*, which is its JSON."""
    message = b""
    for sequence in result["sequences"]:
        inner = number(1, int(sequence["stop_reason"] == "length"))
        inner += sized(2, _packed("i", sequence["tokens"]))
        inner += sized(3, _packed("f", sequence["logprobs"]))
        if sequence.get("topk_logprobs") is not None:
            inner += sized(4, _topk(sequence["topk_logprobs"]))
        message += sized(1, inner)
    if result.get("prompt_logprobs") is not None:
        known = [math.nan if p is None else p for p in result["prompt_logprobs"]]
        message += sized(2, _packed("f", known))
    if result.get("topk_prompt_logprobs") is not None:
        message += sized(3, _topk(result["topk_prompt_logprobs"]))
    return message


def _from_protobuf(body: bytes) -> ForwardBackward:
    found: dict[str, Any] = {"model_id": "", "seq_id": 0, "loss": "", "forward_only": False}
    data: list[Datum] = []
    config: dict[str, float | str] = {}
    room = _Room()
    for key, value in fields(body):
        if key == 2:
            found["seq_id"] = value
        elif key == 6:
            found["forward_only"] = bool(value)
        elif key in (1, 4):
            found["model_id" if key == 1 else "loss"] = _bytes(value).decode()
        elif key == 3:
            data.append(_datum_of(_bytes(value), room))
        elif key in (5, 7):
            name, setting = _entry(value)
            config[name] = _config_value(setting) if key == 7 else struct.unpack("<d", setting)[0]
    return ForwardBackward(data=data, config=config, **found)


def _datum_of(message: bytes, room: _Room) -> Datum:
    ids: list[int] = []
    inputs: dict[str, TensorData] = {}
    for key, value in fields(message):
        if key == 1:
            for kind, chunk in fields(_bytes(value)):
                if kind != 1:
                    raise _no_text({2: "image", 3: "dmel"}.get(kind, str(kind)))
                tokens = dict(fields(_bytes(chunk))).get(1, b"")
                ids += _unpacked("i", _bytes(tokens))
        elif key == 2:
            name, tensor = _entry(value)
            inputs[name] = _tensor_of(tensor, room)
    return Datum(ids=ids, inputs=inputs)


def _datum_of_json(given: Any, room: _Room) -> Datum:
    inputs = {name: tensor_of_json(t, room) for name, t in given["loss_fn_inputs"].items()}
    return Datum(ids=ids_of(given["model_input"]), inputs=inputs)


def _tensor_of(message: bytes, room: _Room) -> TensorData:
    kind, shape, content, sparse = 0, [], b"", b""
    for key, value in fields(message):
        if key == 1:
            content = _bytes(value)
        elif key == 2:
            sparse = _bytes(value)
        elif key == 3 and isinstance(value, int):
            kind = value
        elif key == 4:
            shape += [value] if isinstance(value, int) else varints(value)
    code = {FLOAT32: "f", INT64: "q"}.get(kind)
    if code is None:
        raise invalid(f"a tensor has type {kind}; expected 1 (float32) or 2 (int64)")
    if not sparse:
        values = _unpacked(code, content)
        return _checked(values, tuple(shape or (len(values),)))
    parts = {key: _bytes(value) for key, value in fields(sparse)}
    rows, columns = (_unpacked("q", parts.get(key, b"")) for key in (2, 3))
    return _filled(_unpacked(code, parts.get(1, b"")), rows, columns, tuple(shape), room)


def _checked(values: Sequence[float], shape: tuple[int, ...]) -> TensorData:
    _check_shape(shape)
    if math.prod(shape) != len(values):
        raise invalid(f"a tensor of shape {list(shape)} has {len(values)} values")
    return TensorData(values=values, shape=shape)


def _check_shape(shape: tuple[int, ...]) -> None:
    """Check that a loss could read *shape* before anything is computed from it."""
    if len(shape) > 2 or any(type(size) is not int or size < 0 for size in shape):
        raise invalid("a tensor has another shape than [N] or [N, K]")


def _filled(
    values: Sequence[float],
    rows: Sequence[int],
    columns: Sequence[int],
    shape: tuple[int, ...],
    room: _Room,
) -> TensorData:
    """Return a matrix whose compressed sparse rows are given; all other cells are 0."""
    _check_shape(shape)
    if len(shape) != 2 or len(rows) != shape[0] + 1 or len(columns) != len(values):
        raise invalid(f"a sparse tensor of shape {list(shape)} has parts that do not fit")
    # Rows that overlap would be read once for each of them.
    if [*rows] != sorted(rows) or (rows[0], rows[-1]) != (0, len(values)):
        raise invalid("a sparse tensor has rows that do not follow each other")
    room.take(math.prod(shape))
    cells: list[float] = [0] * math.prod(shape)
    for row in range(shape[0]):
        for place in range(rows[row], rows[row + 1]):
            if not 0 <= columns[place] < shape[1]:
                raise invalid("a sparse tensor has an index outside of its shape")
            cells[row * shape[1] + columns[place]] = values[place]
    return TensorData(values=cells, shape=shape)


def _entry(value: int | bytes) -> tuple[str, bytes]:
    parts = dict(fields(_bytes(value)))
    return _bytes(parts.get(1, b"")).decode(), _bytes(parts.get(2, b""))


def _config_value(message: bytes) -> float | str:
    for key, value in fields(message):
        content = _bytes(value)
        return content.decode() if key == 2 else float(struct.unpack("<d", content)[0])
    return 0.0


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise invalid("the body is no message of this API: a number in place of bytes")
    return value


def _unpacked(code: str, content: bytes) -> list[Any]:
    try:
        return array(code, content).tolist()
    except ValueError as e:
        raise invalid(f"a tensor of {len(content)} bytes does not fit its type") from e


def _packed(code: str, values: Sequence[float]) -> bytes:
    return array(code, values).tobytes()


def _widths(output: Mapping[str, Any]) -> list[Any]:
    return [(name, tensor["shape"][1:], tensor["dtype"]) for name, tensor in output.items()]


def _batched(tensors: Sequence[Mapping[str, Any]]) -> bytes:
    content, offsets = b"", [0]
    for tensor in tensors:
        content += _packed("f", tensor["data"])
        offsets.append(len(content))
    message = sized(1, content) + sized(2, _packed("q", offsets)) + number(3, FLOAT32)
    for width in tensors[0]["shape"][1:]:
        message += number(4, width)
    return message


def _topk(rows: Sequence[Sequence[Sequence[Any]] | None]) -> bytes:
    """Return ``TopkLogprobs`` of *rows*, each pairs of id and log-prob, or ``None`` for an empty
    one.
    """
    width = max((len(row) for row in rows if row), default=0)
    filled = [
        [*(row or ())] + [(EMPTY_TOKEN, EMPTY_LOGPROB)] * (width - len(row or ())) for row in rows
    ]
    ids = [pair[0] for row in filled for pair in row]
    logps = [pair[1] for row in filled for pair in row]
    head = sized(1, _packed("i", ids)) + sized(2, _packed("f", logps))
    return head + number(3, width) + number(4, len(rows))


def _no_text(kind: str) -> Exception:
    return invalid(f"a chunk is {kind!r}; this server trains on text alone: send encoded_text")
