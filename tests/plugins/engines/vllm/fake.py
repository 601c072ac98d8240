"""A process that speaks vLLM's protocol as far as an engine needs it: `python -m
tests.plugins.engines.vllm.fake SHAPE [PORT]`.

It prints its port. A token takes a hundredth of a second; after a post to `/refuse`, weights are
answered with 500.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

FLAGS = {
    "model_config": {"logprobs_mode": "processed_logprobs"},
    "scheduler_config": {"async_scheduling": False},
}


class Server:
    def __init__(self, shape: dict[str, Any]) -> None:
        self.shape, self.version, self.tokens = shape, "0", 0
        self.running = asyncio.Event()
        self.running.set()
        self.refuses = False

    async def info(self, request: web.Request) -> web.Response:
        answers: dict[str, Any] = {
            "/health": {},
            "/server_info": {"vllm_config": FLAGS},
            "/v1/models": {"data": [{"id": "policy", "max_model_len": 128}]},
            "/is_paused": {"is_paused": not self.running.is_set()},
        }
        return web.json_response(answers[request.path])

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text=f'# TYPE x\nvllm:generation_tokens_total{{engine="0"}} {self.tokens}\n'
            'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 2.0\n'
            'vllm:num_requests_waiting{engine="0"} 4.0\nvllm:num_preemptions_total{engine="0"} 7.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
        )

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        count = body["sampling_params"]["max_tokens"]
        for _ in range(count):
            await self.running.wait()
            await asyncio.sleep(0.01)
            self.tokens += 1
        rows = [{"token_id": 5, "logprob": -0.5, "top_logprobs": []} for _ in range(count)]
        spans = [{"version": self.version, "start": 0, "end": count}]
        choice = {
            "token_ids": [5] * count,
            "logprobs": {"content": rows},
            "weight_versions": spans,
            "finish_reason": "length",
        }
        return web.json_response({"choices": [choice]})

    async def chat(self, _: web.Request) -> web.Response:
        await asyncio.sleep(1.0)
        message = {"role": "assistant", "content": "late"}
        return web.json_response(
            {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        )

    async def command(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text() or "{}")
        match request.path:
            case "/pause":
                self.running.clear()
            case "/resume":
                self.running.set()
            case "/refuse":
                self.refuses = True
            case "/update_weights" if self.refuses:
                return web.Response(status=500, text="Worker failed with error ''")
            case "/finish_weight_update":
                self.version = body["weight_version"]
            case "/collective_rpc":
                assert body["method"] == "quintain_shape"
                return web.json_response({"results": [self.shape]})
        return web.json_response({})


async def serve(shape: dict[str, Any], port: int = 0) -> None:
    server, app = Server(shape), web.Application()
    app.router.add_get("/metrics", server.metrics)
    app.router.add_post("/inference/v1/generate", server.generate)
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_get("/{path:.*}", server.info)
    app.router.add_post("/{path:.*}", server.command)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1]), *map(int, sys.argv[2:])))
