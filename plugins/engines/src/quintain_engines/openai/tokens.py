"""An engine that samples token ids from a server: vLLM, or any other whose completions take and
return ids.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from quintain import Sampled, Sampling, TokenEngine, Weights
from quintain.data import checked_ids, checked_logps
from quintain.errors import InfrastructureError, LimitReached, UsageError
from quintain.registry import takes

from . import protocol
from .client import OpenAIEngine
from .settings import CompletionSettings, RequestSettings

if TYPE_CHECKING:
    from quintain.models import ChatTokenizer

CUT = "\ufffd"
"""In a text for bytes that are no whole character."""


class OpenAITokenEngine(TokenEngine):
    """Completions over HTTP with ids in both directions, so that a rollout has its exact tokens and
    log-probs.

    It needs a server that takes a list of ids as prompt and knows ``return_token_ids`` (vLLM from
    0.10). The weights stay those that the server has loaded: it evaluates and plays opponents, and
    does not train. The recorded log-probs are the server's: start vLLM with ``--logprobs-mode
    processed_logprobs``, or those of a temperature other than 1 are not those of the sampled
    distribution.
    """

    @takes(CompletionSettings)
    def __init__(self, **settings: Any) -> None:
        """Prepare requests with `CompletionSettings`; nothing is asked until the engine is entered.

        Raises:
            UsageError: the URL, the key or the context cannot be used.
        """
        chosen = CompletionSettings(**settings)
        shared = {f.name: getattr(chosen, f.name) for f in fields(RequestSettings)}
        self._client = OpenAIEngine(**shared)
        self._folder = chosen.tokenizer
        self._extra = dict(chosen.extra or {})
        self.context = chosen.context
        self.name = self._client.name

    @property
    def concurrency(self) -> int | None:
        return self._client.concurrency

    async def __aenter__(self) -> Self:
        self.tokenizer = _tokenizer(self._folder)
        self._written = IdsText(self.tokenizer.vocab_size)
        await self._client.__aenter__()
        self.name = self._client.name
        if not self.context:
            self.context = self._client.longest.get(self._client.model, 0)
        if not self.context:
            await self._client.__aexit__()
            raise UsageError(
                f"{self._client.base_url} does not say how long a sequence may be; set the "
                f"engine's context"
            )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        room = self.context - len(ids)
        if room < 1:
            raise LimitReached(
                "context", f"{len(ids)} tokens leave no room in a context of {self.context}"
            )
        limited = sampling.replace(max_tokens=min(room, sampling.max_tokens or room))
        body = protocol.request_body(self._client.model, (), (), limited)
        del body["messages"]
        choice, _ = await self._completion(body, ids, sampling.seed)
        new, logps = self._columns(choice)
        self._compare_text(choice, new)
        finish = choice.get("finish_reason")
        stop = choice.get("stop_reason")
        if finish not in ("stop", "length"):
            raise InfrastructureError(
                f"the server cut the turn off (finish_reason {protocol.shortened(finish)})"
            )
        if not isinstance(stop, (str, int)):
            stop = (
                new[-1] if finish == "stop" and new and new[-1] in self.tokenizer.stop_ids else None
            )
        return Sampled(
            ids=new, logps=logps, versions=(self.version,) * len(new), finish=finish, stop=stop
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        """Return the log-probs of ``ids[start:]`` from ``prompt_logprobs``, an extension of vLLM
        without temperature.

        Raises:
            UsageError: the temperature is not 1.
        """
        if temperature != 1:
            raise UsageError(f"{self.name} scores at temperature 1 only, not at {temperature}")
        _, answer = await self._completion(
            {"model": self._client.model, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0},
            ids,
            None,
        )
        rows = answer.get("prompt_logprobs")
        logps: list[object] | None = None
        with suppress(KeyError, TypeError, IndexError):
            if len(rows) == len(ids):
                logps = [rows[i][str(ids[i])]["logprob"] for i in range(start, len(ids))]
        if logps is None:
            raise InfrastructureError(
                f"{self.name} gave no log-probs of the prompt; does it know prompt_logprobs?"
            )
        return checked_logps(logps, len(ids) - start, self.name)

    async def update(self, weights: Weights) -> int:
        """Raise a `UsageError`: the server keeps the weights that it was started with."""
        raise UsageError(
            f"{self.name} keeps the weights of its server and cannot train; evaluate with it"
        )

    async def _completion(
        self, body: dict[str, Any], ids: Sequence[int], seed: int | None
    ) -> tuple[Any, Any]:
        """Return the choice of a completion of *ids*, and the whole answer. *seed* draws the waits
        between tries alone.

        Raises:
            InfrastructureError: the answer is no completion, or one of another prompt.
        """
        asked = {**body, "logprobs": 0, "return_token_ids": True, **self._extra}
        # JSON without its closing brace, then the ids, whose text is kept from turn to turn.
        request = b'%b, "prompt": [%b]}' % (json.dumps(asked)[:-1].encode(), self._written(ids))
        status, text = await self._client.send("POST", "/completions", seed, request)
        if status != 200:
            raise self._client.refusal(status, text)
        answer = self._client.read_json(text)
        with suppress(KeyError, IndexError, TypeError, AttributeError):
            choice = protocol.only_choice(answer)
            if isinstance(choice, dict) and not answer.get("error"):
                self._compare_prompt(choice.get("prompt_token_ids"), ids)
                return choice, answer
        raise InfrastructureError(f"not a completion: {protocol.shortened(text)}")

    def _compare_prompt(self, told: Any, ids: Sequence[int]) -> None:
        """Raise an `InfrastructureError` if the prompt that an answer says it continues is another."""
        if told is not None and told != [*ids]:
            raise InfrastructureError(
                f"{self.name} answered another request: its prompt is {protocol.shortened(told)}"
            )

    def _compare_text(self, choice: Mapping[str, Any], ids: Sequence[int]) -> None:
        """Raise an `InfrastructureError` if the text of an answer is not that of its *ids*, with
        special tokens or without.
        """
        told = choice.get("text")
        if not isinstance(told, str) or not told:
            return
        whole = choice.get("finish_reason") == "length"
        own = [self.tokenizer.decode(ids, special=special) for special in (True, False)]
        if not any(_reads(text, told, whole=whole) for text in own):
            raise InfrastructureError(
                f"{self.name} gave the text {protocol.shortened(told)!r} with ids that read "
                f"{protocol.shortened(own[0])!r}"
            )

    def _columns(self, choice: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the ids and log-probs of a choice.

        Raises:
            InfrastructureError: they are absent, of unequal length or out of range.
        """
        ids = logps = None
        with suppress(KeyError, TypeError):
            ids = choice["token_ids"]
            logps = choice["logprobs"]["token_logprobs"]
        if not isinstance(ids, list) or not isinstance(logps, list):
            raise InfrastructureError(
                "the server returned no token ids with log-probs; it must know return_token_ids "
                f"(vLLM from 0.10), and it answered {protocol.shortened(dict(choice))}"
            )
        checked_ids(ids, self.tokenizer.vocab_size, self.name)
        return tuple(ids), checked_logps(logps, len(ids), self.name)


class IdsText:
    """Writes ids as JSON, 14 times as fast as the module `json` and more: an agent sends its whole context
    with every turn.

    Each id of a vocabulary has one row of bytes, of equal length, in a table: blanks, digits and a
    comma. JSON allows the blanks.
    """

    def __init__(self, vocabulary: int) -> None:
        import numpy as np

        width = len(str(vocabulary))
        rows = "".join(f"{i:{width}}," for i in range(vocabulary)).encode()
        self._rows = np.frombuffer(rows, f"S{width + 1}")
        self._vocabulary = vocabulary

    def __call__(self, ids: Sequence[int]) -> bytes:
        """Return what stands between the brackets of a list with *ids*."""
        import numpy as np

        numbers = np.asarray(ids if isinstance(ids, array) else array("i", ids))
        if not numbers.size:
            return b""
        # a model may have more rows than its tokenizer has ids
        if numbers.max() >= self._vocabulary:
            return json.dumps(list(ids))[1:-1].encode()
        text: bytes = self._rows[numbers].tobytes()[:-1]
        return text


def _reads(own: str, told: str, *, whole: bool) -> bool:
    """Return whether *told* is the text *own*, or unless *whole* its beginning: servers leave out
    what ended a turn, and write the space before a first word and cut characters in several ways.
    """
    own = own.strip()
    told = told.strip()
    if CUT in own or CUT in told:
        own = own.partition(CUT)[0].strip()
        told = told.partition(CUT)[0].strip()
        return own.startswith(told) or told.startswith(own)
    return own == told if whole else own.startswith(told)


def _tokenizer(name: str) -> ChatTokenizer:
    """Return the tokenizer of the folder or Hugging Face id *name*."""
    from quintain.models import HFTokenizer

    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as e:
        raise UsageError(
            "the engine openai-tokens needs transformers: pip install 'quintain[train]'"
        ) from e
    try:
        return HFTokenizer(AutoTokenizer.from_pretrained(name))
    except (OSError, ValueError) as e:
        raise UsageError(
            f"tokenizer {name!r} cannot be loaded: {protocol.shortened(str(e))}"
        ) from e
