"""A started vLLM engine over a tiny model, for tests in the environment of `tools/vllm_env.sh`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
import torch

from quintain import Sampling
from quintain.learning import ModuleWeights
from quintain.models import HFTokenizer
from quintain_engines.vllm import VLLMEngine

from ....core.models.tiny import byte_tokenizer, tiny_model

# compiling one function of the sampler takes up to a minute
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
TOKENIZER = HFTokenizer(byte_tokenizer())
Out = TypeVar("Out")


class Running:
    """A started engine over a tiny model, and the event loop that it was started in."""

    def __init__(
        self,
        model: Any,
        kind: Any = VLLMEngine,
        *,
        tokenizer: HFTokenizer = TOKENIZER,
        **options: Any,
    ) -> None:
        self.model, self.loop = model, asyncio.new_event_loop()
        self.engine = kind.sharing(model, tokenizer, slots=16, **options)
        try:
            self.do(self.engine.__aenter__())
        except BaseException:
            self.loop.close()
            raise

    def do(self, coroutine: Coroutine[Any, Any, Out]) -> Out:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 300))

    def sample(self, *calls: tuple[Sequence[int], Sampling]) -> list[Any]:
        async def together() -> list[Any]:
            return await asyncio.gather(
                *(self.engine.sample(ids, sampling) for ids, sampling in calls)
            )

        return self.do(together())

    def close(self) -> None:
        self.do(self.engine.__aexit__())
        self.loop.close()


def prompts(count: int, *, seed: int = 0, group: int = 1) -> list[list[int]]:
    rng = Random(seed)
    distinct = [
        [rng.randrange(256) for _ in range(rng.randint(1, 40))] for _ in range(count // group)
    ]
    return [ids for ids in distinct for _ in range(group)]


def plain_logps(
    model: Any, ids: Sequence[int], reply: Sequence[int], temperature: float = 1.0
) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *reply]])).logits[0, len(ids) - 1 : -1]
    logps = (logits.double() / temperature).log_softmax(-1)
    return list(logps.gather(-1, torch.tensor(reply)[:, None]).squeeze(-1).tolist())


def adapted() -> Any:
    """A tiny model with LoRA adapters of a rank that vLLM rounds up; the test is skipped without
    peft.
    """
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        target_modules="all-linear", task_type="CAUSAL_LM", r=5, lora_alpha=7
    )
    return peft.get_peft_model(tiny_model(hidden=128), settings)


def adapters_arrive(running: Running, ids: list[int], version: int) -> None:
    """Change the adapters of the model and publish them; what is sampled then is exact."""
    with torch.no_grad():
        for name, parameter in running.model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(0, 0.1 * version)
    assert running.do(running.engine.update(ModuleWeights(running.model, version))) == version
    (out,) = running.sample((ids, Sampling(seed=1, max_tokens=12)))
    assert out.versions == (version,) * len(out.ids)
    assert list(out.logps) == pytest.approx(plain_logps(running.model, ids, out.ids), abs=1e-4)
