"""The truth as a server in the shape of vLLM's, for layers that reach their engine over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Self

from aiohttp import web

from quintain import InfrastructureError, LimitReached, Sampled, Sampling
from quintain_gateway import chat
from quintain_gateway.engine_policy import EnginePolicy
from quintain_gateway.errors import ApiError

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

    Attributes:
        base_url: of the API, with ``/v1``.
    """

    def __init__(self, truth: TruthEngine, model: str = "policy") -> None:
        self.truth, self.model = truth, model
        self.base_url = ""
        self._policy = EnginePolicy(truth, Sampling())
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
        turns = []
        for _ in range(request.n):
            conversation = self._policy.conversation(f"request-{next(self._numbers)}")
            conversation.add(request.messages)
            turns.append(await conversation.turn(request))
        whole = chat.response(request, turns, f"{next(self._numbers)}")
        if request.stream:
            return "".join(chat.stream(whole, with_usage=request.stream_usage))
        return whole

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
        if "messages" in body:
            request = chat.request_of(body)
            text = self.truth.tokenizer.render(request.messages, request.tools)
        else:
            text = body["prompt"]
        tokens = self.truth.tokenizer.encode(text)
        return {"tokens": tokens, "count": len(tokens), "max_model_len": self.truth.context}

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
