"""Positions of the tokens of a picture that follow its grid: the rotary embedding of Qwen-VL has three
axes, and text has the same number on all of them.

A position is one number, also in a picture: where the picture begins, with row and column in higher
bits. So layouts and caches of the engine and the learner copy numbers, and only the rotary embedding
of the module takes them apart. A picture of R rows and C columns takes R C tokens and max(R, C)
positions: what follows it lies behind its place by the difference.

Shapes: n rows of T tokens, E head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from quintain.engine import CacheAttention, KVStore, LayerForward, LayerSteps, Steps
from quintain.errors import UsageError
from quintain.models import PICTURE_PLACES, PICTURE_TOKENS

from .processor import PictureProcessor
from .tokens import digits_of, key_of

ROW_BITS, COLUMN_BITS = 24, 44
"""Bits from which on a position has the row and the column of its token."""

Shifts = list[tuple[int, int]]
"""Places of a row from which on positions are so many behind places: behind each picture, one."""


def positions(
    processor: PictureProcessor, ids: Sequence[int], start: int = 0, offset: int = 0
) -> tuple[Sequence[int], Shifts]:
    """Return the positions of *ids*, which stand from the place *start* of a row on, and the shifts
    behind the pictures that end in them.

    Args:
        offset: what positions of text are ahead of places at *start*, or less than 0.
    """
    if max(ids, default=0) < PICTURE_TOKENS:
        return range(start + offset, start + offset + len(ids)), []
    found: list[int] = []
    shifts: Shifts = []
    for place, token in enumerate(ids, start):
        if token < PICTURE_TOKENS:
            found.append(place + offset)
            continue
        rows, columns = processor.grid(digits_of(key_of(token)))
        number = token % PICTURE_PLACES
        row, column = divmod(number, columns)
        found.append(place - number + offset + (row << ROW_BITS) + (column << COLUMN_BITS))
        if number == rows * columns - 1:
            offset += max(rows, columns) - rows * columns
            shifts.append((place + 1, offset))
    return found, shifts


def axes(positions: Tensor) -> Tensor:
    """Return *positions* [...] as time, height and width, [3, ...]."""
    first = positions & ((1 << ROW_BITS) - 1)
    row = (positions >> ROW_BITS) & ((1 << (COLUMN_BITS - ROW_BITS)) - 1)
    return torch.stack([first, first + row, first + (positions >> COLUMN_BITS)])


class GridRotary:
    """A rotary embedding of transformers with three axes that takes `positions`, too; mixed into its
    class.
    """

    def forward(self, like: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [n, T, E] of *position_ids*, [n, T] or [3, n, T]."""
        if position_ids.ndim == 2:
            position_ids = axes(position_ids)
        return cast(Any, super()).forward(like, position_ids)  # type: ignore[no-any-return]


class GridBody:
    """The body of a module of transformers whose positions follow grids; mixed into its class."""

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> Any:
        """Compute the forward of the body, with the positions and features of pictures in *input_ids*
        [n, T].

        Raises:
            UsageError: they are asked for a cache, which would need the positions of later tokens.
        """
        body: Any = super()
        if input_ids is None or not bool((input_ids >= PICTURE_TOKENS).any()):
            return body.forward(input_ids=input_ids, **options)
        if options.get("use_cache") or options.get("cache") is not None:
            raise UsageError(
                f"{type(self).__name__} cannot decode behind pictures by its own forward, and "
                "Quintain does not know its layers; docs/pictures.md lists what it knows"
            )
        table: Any = cast(Any, self).get_input_embeddings()
        places = options.pop("position_ids", None)
        if places is None:
            places = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        found = [
            _restarted(table.owner.processor, *row)
            for row in zip(input_ids.tolist(), places.tolist(), strict=True)
        ]
        on_axes = axes(torch.tensor(found, device=input_ids.device))
        # The first of the four is for masks alone: transformers reads where packed rows begin.
        options["position_ids"] = torch.cat([places[None], on_axes])
        hidden, added = table.begin(input_ids)
        if not added:
            return body.forward(inputs_embeds=hidden, **options)
        # transformers finds places of features by this id, which a policy may sample as text, too.
        # There, `hidden` is the embedding of the id and `added` is 0.
        placeholder = cast(Any, self).config.image_token_id
        seen = (input_ids >= PICTURE_TOKENS) | (input_ids == placeholder)
        features = _Features([hidden[seen]], [[more[seen]] for more in added])
        ids = input_ids.masked_fill(seen, placeholder)
        return body.forward(input_ids=ids, mm_encoder_outputs={"image": features}, **options)


class _Features:
    """What transformers' towers return, of all pictures together."""

    def __init__(self, pooler_output: list[Tensor], deepstack_features: list[list[Tensor]]) -> None:
        self.pooler_output = pooler_output
        self.deepstack_features = deepstack_features


def _restarted(processor: PictureProcessor, ids: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return the positions of *ids*, rows that begin wherever a place is 0."""
    begins = [i for i, place in enumerate(places) if place == 0]
    found: list[int] = []
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        found += positions(processor, ids[begin:end])[0]
    return found


class GridStore(KVStore):
    """A `KVStore` that keeps the shifts of each row, which move with its keys and values."""

    def release(self) -> None:
        super().release()
        self._shifts: dict[int, Shifts] = {}

    def copy(self, moves: Sequence[tuple[int, int, int]]) -> None:
        super().copy(moves)
        self._shifts |= {target: self._shifts.get(source, []) for source, target, _ in moves}

    def offset(self, row: int, place: int) -> int:
        """Return what the position of text at *place* of *row* is ahead of it."""
        before = [offset for begin, offset in self._shifts.get(row, []) if begin <= place]
        return before[-1] if before else 0

    def note(self, row: int, place: int, shifts: Shifts) -> None:
        """Let *row* have *shifts* from *place* on, and those that it has up to there."""
        kept = [shift for shift in self._shifts.get(row, []) if shift[0] <= place]
        self._shifts[row] = kept + shifts


class GridForward(LayerForward):
    """A `LayerForward` with the positions of pictures."""

    cache = GridStore
    store: GridStore

    @property
    def _processor(self) -> PictureProcessor:
        return cast(PictureProcessor, cast(Any, self.decoder.embed).owner.processor)

    def angles(
        self,
        rows: Sequence[int],
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        positions_NT: Tensor,
    ) -> tuple[Tensor, Tensor]:
        length = positions_NT.shape[1]
        found = []
        plain = True
        for row, new, start in zip(rows, ids, starts, strict=True):
            offset = self.store.offset(row, start)
            of_row, shifts = positions(self._processor, new, start, offset)
            self.store.note(row, start, shifts)
            plain = plain and not offset and isinstance(of_row, range)
            found.append([*of_row, *[0] * (length - len(new))])
        if plain:
            return super().angles(rows, ids, starts, positions_NT)
        return self.decoder.rotary(torch.tensor(found, device=self.device))

    def positions(self, ids: Tensor, before: int) -> Tensor:
        if not bool((ids >= PICTURE_TOKENS).any()):
            return super().positions(ids, before)
        found = [list(positions(self._processor, row, before)[0]) for row in ids.tolist()]
        return torch.tensor(found, device=self.device)

    def prefix_cache(self, ids: Sequence[int]) -> Any:
        """Return ``None`` for *ids* with pictures: what follows them has to know their shifts."""
        return None if max(ids, default=0) >= PICTURE_TOKENS else super().prefix_cache(ids)

    def steps(self, lengths: Sequence[int], count: int) -> Steps:
        if not any(self._offsets(lengths)):
            return super().steps(lengths, count)
        # Graphs of steps know nothing of shifts.
        self.store.reserve(len(lengths), max(lengths) + count)
        return self.steps_over(lengths, self.attention(lengths))

    def steps_over(self, lengths: Sequence[int], attention: CacheAttention) -> LayerSteps:
        steps = super().steps_over(lengths, attention)
        if any(offsets := self._offsets(lengths)):
            # Positions count from elsewhere, and the memory of a row as much the other way.
            ahead = torch.tensor(offsets, device=self.device)
            steps.positions += ahead
            steps.begins = steps.begins - ahead[:, None]
        return steps

    def _offsets(self, lengths: Sequence[int]) -> list[int]:
        return [self.store.offset(row, length) for row, length in enumerate(lengths)]
