"""A teacher behind a server that gives log-probs of prompts: vLLM, by its completions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch

from quintain import LimitReached
from quintain.data import checked_ids, checked_logps
from quintain.errors import InfrastructureError, UsageError
from quintain.models import PICTURE_TOKENS
from quintain_engines.openai import OpenAIEngine

from .teacher import TeacherRow, TeacherScore

UNREADABLE = "\ufffd"
"""In the text of a token that is a part of a character."""


class ServerScorer:
    """Asks ``/completions`` for ``prompt_logprobs``, one request for each row.

    That each id means the same to the server is checked by the text that it gives for each sampled
    token.

    Args:
        url: up to ``/v1``; ``#NAME`` says which of several models is meant.
        tokenizer: of the policy.
    """

    def __init__(self, url: str, tokenizer: Any) -> None:
        base, _, name = url.partition("#")
        self._client = OpenAIEngine(base_url=base, model=name)
        self._tokenizer = tokenizer
        self._slots = asyncio.Semaphore(self._client.concurrency or 64)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    async def score(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        """Return the score of each row; arguments and errors as of `Teacher.score`.

        Raises:
            UsageError: at another temperature than 1, or over the whole vocabulary: the server
                gives neither; one of its ids means something else; or a sequence holds a picture,
                whose tokens a server cannot read.
            InfrastructureError: the server answers no log-probs.
        """
        if temperature != 1:
            raise UsageError(
                f"the teacher {self._client.base_url} gives log-probs at temperature 1, and the "
                f"policy samples at {temperature:g}; set services.teacher.args.temperature = 1.0 "
                "to compare with those"
            )
        if top == 0:
            raise UsageError(
                f"the teacher {self._client.base_url} gives its likeliest tokens, not the whole "
                "vocabulary; set algorithm.args.advantage.top to at most its --max-logprobs (20 by "
                "default)"
            )
        if any(max(row.ids, default=0) >= PICTURE_TOKENS for row in rows):
            raise UsageError(
                f"{self._name} is asked with ids of tokens, and a rollout holds a picture, which has "
                "none there; name the folder of a vision-language model as the teacher"
            )
        return list(await asyncio.gather(*(self._score(row, top) for row in rows)))

    async def _score(self, row: TeacherRow, top: int | None) -> TeacherScore:
        body = {
            "model": self._client.model,
            "prompt": list(row.ids),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": top or 0,
        }
        async with self._slots:
            status, text = await self._client.send("POST", "/completions", None, body)
        if status != 200:
            refusal = self._client.refusal(status, text)
            longest = self._client.longest.get(self._client.model, len(row.ids))
            if len(row.ids) >= longest:
                raise LimitReached("context", f"{len(row.ids)} tokens to score: {refusal}")
            raise refusal
        answer = self._client.read_json(text)
        try:
            tables = _tables(answer)
            if len(tables) != len(row.ids):
                raise ValueError(f"{len(tables)} places for {len(row.ids)} tokens")
            logp: list[object] = []
            texts: list[tuple[int, str | None]] = []
            ids: list[list[int]] = []
            values: list[tuple[float, ...]] = []
            for position in row.positions:
                table, token = tables[position], row.ids[position]
                texts.append((token, table[str(token)].get("decoded_token")))
                logp.append(table[str(token)]["logprob"])
                if top:
                    ranked = sorted(table.items(), key=lambda item: int(item[1]["rank"]))[:top]
                    ids.append([int(token) for token, _ in ranked])
                    values.append(self._checked([entry["logprob"] for _, entry in ranked]))
                    checked_ids(ids[-1], self._tokenizer.vocab_size, self._name)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
            raise InfrastructureError(
                f"the teacher {self._client.base_url} gave no log-probs of the prompt ({e}); does "
                "it know prompt_logprobs, as vLLM does?"
            ) from e
        for token, there in texts:
            self._check(token, there)
        return TeacherScore(
            logp=torch.tensor(self._checked(logp), dtype=torch.float64),
            top_logp=torch.tensor(values, dtype=torch.float64) if top else None,
            top_ids=torch.tensor(ids) if top else None,
        )

    def _checked(self, values: Sequence[object]) -> tuple[float, ...]:
        """Return *values* as log-probs; of numbers that are none, NaN would count as no teacher."""
        return checked_logps(values, len(values), self._name)

    @property
    def _name(self) -> str:
        return f"the teacher {self._client.base_url}"

    def _check(self, token: int, there: str | None) -> None:
        """Compare the text of an id here and *there*, where a token is a text of its own.

        Raises:
            UsageError: they differ.
        """
        here = self._tokenizer.decode([token])
        if there is not None and not isinstance(there, str):
            raise InfrastructureError(f"{self._name} gave the text {there!r:.60} for id {token}")
        if there is None or UNREADABLE in there or UNREADABLE in here:
            return
        if there.strip() != here.strip():
            raise UsageError(
                f"the teacher {self._client.base_url} reads id {token} as {there!r}, and the "
                f"policy as {here!r}: their tokenizers differ; serve a model with the policy's"
            )


def _tables(answer: Any) -> Sequence[Mapping[str, Any]]:
    """Return the log-probs of each place: of the choice in vLLM's completions."""
    found = answer["choices"][0].get("prompt_logprobs") or answer["prompt_logprobs"]
    return [table or {} for table in found]
