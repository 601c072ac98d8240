"""The truth as a server in the shape of vLLM's, for layers that reach their engine over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Self

from aiohttp import web

from quintain import InfrastructureError, LimitReached, Sampled, Sampling
from quintain_gateway import chat
from quintain_gateway.errors import ApiError
from quintain_gateway.request import PolicyTurn, Token, TurnRequest

from .truth import TruthEngine

__all__ = ["EngineServer"]

Json = dict[str, Any]


class EngineServer:
    """Serves a truth on this machine, for the time of an ``async with``.

    | path | |
    |---|---|
    | ``/v1/chat/completions`` | each request by itself, with ``return_token_ids`` and ``logprobs`` |
    | ``/v1/completions`` | ids or texts in, ids and log-probs out |
    | ``/inference/v1/generate`` | ids in, ids, log-probs and weight versions out |
    | ``/tokenize``, ``/detokenize`` | texts and messages to ids, ids to text |
    | ``/v1/models``, ``/health`` | |

    Args:
        model: its name.
        prompt: the ids of the prompt of a chat request, whose body it gets; by default those of the
            truth's own tokenizer and template.

    Attributes:
        base_url: of the API, with ``/v1``.
    """

    def __init__(
        self,
        truth: TruthEngine,
        model: str = "policy",
        *,
        prompt: Callable[[Json], list[int]] | None = None,
    ) -> None:
        self.truth, self.model = truth, model
        self._prompt = prompt or self._rendered
        self.base_url = ""
        self._runner: web.AppRunner | None = None
        self._numbers = count(1)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**28)
        posts = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/inference/v1/generate": self._generate,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        for path, handler in posts.items():
            app.router.add_post(path, _answering(handler))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        # A client that goes away cancels its handler, and with it the sampling.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _chat(self, body: Json) -> Json | str:
        request = chat.request_of(body)
        ids = self._prompt(body)
        settings = self._sampling(body | {"max_tokens": request.max_tokens})
        turns = [
            self._turn(ids, await self.truth.sample(ids, settings), request)
            for _ in range(request.n)
        ]
        whole = chat.response(request, turns, f"{next(self._numbers)}")
        if body.get("return_tokens_as_token_ids"):
            for choice, turn in zip(whole["choices"], turns, strict=True):
                rows = (choice["logprobs"] or {"content": []})["content"]
                for row, token in zip(rows, turn.tokens, strict=True):
                    row["token"] = f"token_id:{token.id}"
        if request.stream:
            return "".join(chat.stream(whole, with_usage=request.stream_usage))
        return whole

    def _turn(self, ids: Sequence[int], sampled: Sampled, request: TurnRequest) -> PolicyTurn:
        tokenizer = self.truth.tokenizer
        pairs = zip(sampled.ids, sampled.logps, strict=True)
        text, number = self._text(sampled), next(self._numbers)
        turn = tokenizer.parse(text, request.tools, finish=sampled.finish)
        if any(call.error or not call.name for call in turn.calls) or not request.calls_allowed:
            turn = tokenizer.parse(text, finish=sampled.finish)  # what cannot be read stays text
        calls = (replace(call, id=f"call_{number}_{i}") for i, call in enumerate(turn.calls))
        return PolicyTurn(
            turn=replace(turn, calls=tuple(calls)),
            prompt=len(ids),
            sampled=len(sampled.ids),
            tokens=tuple(Token(id=i, logp=x, text=tokenizer.decode([i])) for i, x in pairs),
            prompt_ids=tuple(ids),
            stop=sampled.stop if isinstance(sampled.stop, str) else "",
            version=sampled.versions[-1] if sampled.versions else None,
        )

    def _rendered(self, body: Json) -> list[int]:
        """Return the prompt of a chat request in the template of the truth."""
        request = chat.request_of(body)
        tokenizer = self.truth.tokenizer
        return tokenizer.encode(tokenizer.render(request.messages, request.tools))

    async def _completions(self, body: Json) -> Json:
        if body.get("stream"):
            raise ApiError(400, "unsupported_parameter", "no streams here")
        prompt = body["prompt"]
        batch = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        choices: list[Json] = []
        for one in prompt if batch else [prompt]:
            ids = self.truth.tokenizer.encode(one) if isinstance(one, str) else list(one)
            for _ in range(body.get("n") or 1):
                sampled = await self.truth.sample(ids, self._sampling(body))
                choices.append({"index": len(choices), **self._completion(ids, sampled)})
        return {"id": f"cmpl-{next(self._numbers)}", "model": self.model, "choices": choices}

    def _completion(self, ids: Sequence[int], sampled: Sampled) -> Json:
        tokens = [f"token_id:{i}" for i in sampled.ids]
        return {
            "text": self._text(sampled),
            "finish_reason": sampled.finish,
            "stop_reason": sampled.stop if isinstance(sampled.stop, str) else None,
            "prompt_token_ids": list(ids),
            "token_ids": list(sampled.ids),
            "logprobs": {"tokens": tokens, "token_logprobs": list(sampled.logps)},
        }

    async def _generate(self, body: Json) -> Json:
        ids = body["token_ids"]
        settings = body.get("sampling_params") or {}
        choices = []
        for index in range(settings.get("n") or 1):
            sampled = await self.truth.sample(ids, self._sampling(settings))
            pairs = zip(sampled.ids, sampled.logps, strict=True)
            rows = [{"token": f"token_id:{i}", "logprob": logp} for i, logp in pairs]
            choices.append(
                {
                    "index": index,
                    "token_ids": list(sampled.ids),
                    "logprobs": {"content": rows},
                    "finish_reason": sampled.finish,
                    "weight_versions": _spans(sampled.versions),
                }
            )
        return {
            "request_id": f"gen-{next(self._numbers)}",
            "prompt_token_ids": list(ids),
            "choices": choices,
        }

    async def _tokenize(self, body: Json) -> Json:
        prompt = self._prompt if "messages" in body else self._encoded
        tokens = prompt(body)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": self.truth.context}

    def _encoded(self, body: Json) -> list[int]:
        return self.truth.tokenizer.encode(body["prompt"])

    async def _detokenize(self, body: Json) -> Json:
        return {"prompt": self.truth.tokenizer.decode(body["tokens"])}

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "max_model_len": self.truth.context}
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    def _sampling(self, settings: Json) -> Sampling:
        stop = settings.get("stop") or []
        temperature = settings.get("temperature")
        return Sampling(
            temperature=1.0 if temperature is None else temperature,
            max_tokens=settings.get("max_tokens"),
            stop=tuple([stop] if isinstance(stop, str) else stop),
        )

    def _text(self, sampled: Sampled) -> str:
        text = self.truth.tokenizer.decode(sampled.ids, special=False)
        cut = isinstance(sampled.stop, str) and sampled.stop in text
        return text[: text.rfind(str(sampled.stop))] if cut else text


def _spans(versions: Sequence[int]) -> list[Json]:
    """Return the versions of a turn as half-open spans of tokens."""
    spans: list[Json] = []
    for place, version in enumerate(versions):
        if not spans or spans[-1]["version"] != version:
            spans.append({"version": version, "start": place, "end": place})
        spans[-1]["end"] = place + 1
    return spans


def _answering(
    handler: Callable[[Json], Awaitable[Json | str]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return a handler of HTTP: JSON in, JSON or a stream of events out, errors as vLLM has them."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            value = await handler(json.loads(await request.read()))
        except ApiError as e:
            return web.json_response(e.body, status=e.status)
        except LimitReached as e:
            return web.json_response({"error": {"message": str(e), "code": 400}}, status=400)
        except InfrastructureError as e:
            return web.json_response({"error": {"message": str(e), "code": 500}}, status=500)
        if isinstance(value, str):
            return web.Response(text=value, content_type="text/event-stream")
        return web.json_response(value)

    return answer
