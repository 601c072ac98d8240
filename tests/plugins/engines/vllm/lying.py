"""A server of vLLM's protocol around a tiny model: it takes weights and samples with them, and what
it tells of its rollouts passes through a function that may lie.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from safetensors.torch import load_file

from quintain import Sampling
from quintain.engine import EmbeddedEngine
from quintain.learning import ModuleWeights
from quintain.models import HFTokenizer
from quintain_engines.vllm.checksums import checksum
from quintain_engines.vllm.handover import shape_of

from ....core.models.tiny import byte_tokenizer

Lie = Callable[[dict[str, Any], int], None]
"""Changes the answer to a rollout, whose number it is given."""


class ModelServer:
    """Honest about its weights and scores.

    Args:
        module: it is changed by weight updates.
    """

    def __init__(self, module: Any, lie: Lie) -> None:
        self.module, self.lie = module, lie
        self.version = "0"
        self.rollouts = 0
        self.engine = EmbeddedEngine.sharing(module, HFTokenizer(byte_tokenizer()))

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._told)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/{path:.*}", self._commanded)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with self.engine:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _told(self, request: web.Request) -> web.Response:
        flags = {
            "model_config": {"logprobs_mode": "processed_logprobs"},
            "scheduler_config": {"async_scheduling": False},
        }
        answers: dict[str, Any] = {
            "/server_info": {"vllm_config": flags},
            "/v1/models": {"data": [{"id": "policy", "max_model_len": self.engine.context}]},
        }
        return web.json_response(answers.get(request.path, {}))

    async def _commanded(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        match request.path:
            case "/update_weights":
                info = body["update_info"]
                tensors = load_file(Path(info["path"]))
                aliases = {name: tensors[stored] for name, stored in info["aliases"].items()}
                self.module.load_state_dict({**tensors, **aliases})
            case "/finish_weight_update":
                self.version = body["weight_version"]
                await self.engine.update(ModuleWeights(self.module, int(self.version)))
            case "/collective_rpc":
                results = {
                    "quintain_shape": lambda: shape_of(self.module.config),
                    "quintain_weights": lambda: {
                        name: (str(tensor.dtype).removeprefix("torch."), checksum(tensor))
                        for name, tensor in self.module.state_dict().items()
                    },
                }
                return web.json_response({"results": [results[body["method"]]()]})
        return web.json_response({})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids, asked = body["token_ids"], body["sampling_params"]
        if asked.get("logprob_token_ids"):
            return web.json_response(self._scored(ids, asked))
        sampled = await self.engine.sample(
            ids,
            Sampling(
                temperature=asked["temperature"],
                max_tokens=asked["max_tokens"],
                seed=asked["seed"],
                stop_ids=tuple(asked["stop_token_ids"]),
            ),
        )
        rows = [
            {"token_id": token, "logprob": logp}
            for token, logp in zip(sampled.ids, sampled.logps, strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": list(sampled.ids),
            "logprobs": {"content": rows},
            "finish_reason": sampled.finish,
            "stop_reason": sampled.stop,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(rows)}],
        }
        answer = {"request_id": f"generate-tokens-{body['request_id']}", "choices": [choice]}
        self.lie(answer, self.rollouts)
        self.rollouts += 1
        return web.json_response(answer)

    @torch.no_grad()
    def _scored(self, ids: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        logits = self.module(torch.tensor([ids])).logits[0] / asked["temperature"]
        logp = logits.log_softmax(-1).tolist()
        places = zip(ids[1:], logp, strict=False)
        wanted, other = asked["logprob_token_ids"]
        first = {
            "token_id": other,
            "logprob": logp[-1][other],
            "top_logprobs": [{"token_id": wanted, "logprob": logp[-1][wanted]}],
        }
        return {
            "prompt_logprobs": [None, *({str(i): {"logprob": row[i]}} for i, row in places)],
            "choices": [
                {
                    "index": 0,
                    "token_ids": [other],
                    "logprobs": {"content": [first]},
                    "finish_reason": "length",
                }
            ],
        }
