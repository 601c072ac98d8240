"""verifiers 0.4.0 as a capture layer for `python -m studies.conformance`.

What is measured is its interception server with the client of training (`TrainClient`), which
renders prompts and calls vLLM's token-in route, as prime-rl uses it: the branches of the trace, each
node's sampled tokens trained once. The renderer is the one for Qwen3, which keeps thoughts here, as
the template of the script does, so that conversations continue. From the root of the repository, in
an environment of its own (`docs/conformance.md`)::

    python -m studies.conformance --layer studies.benchmarks.peers.conformance_verifiers:VerifiersLayer
"""

from __future__ import annotations

import logging
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from renderers import Qwen3RendererConfig
from verifiers.v1.agent import AgentConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.session import RolloutLimits, RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import Sampling

from studies.conformance import Capture, CaptureCase, TrainingSequence, TruthEngine
from studies.conformance.server import EngineServer
from studies.conformance.tokenizer_files import save_tokenizer

logging.getLogger("verifiers").setLevel(logging.ERROR)
_FOLDER = save_tokenizer(Path(tempfile.mkdtemp(prefix="truth-tokenizer-")))


class VerifiersLayer:
    """Interception of verifiers with its renderer client."""

    name = "verifiers"
    version = version("verifiers")
    plays = frozenset[str]()
    dialects = frozenset({"chat"})  # the renderer client refuses the others
    features = frozenset({"stream", "temperature", "prefill", "tool_choice", "budget"})
    columns = frozenset({"ids", "mask", "logps", "replies", "prompts"})

    async def capture(self, truth: TruthEngine, agent: Any, case: CaptureCase) -> Capture:
        async with EngineServer(truth) as engine, InterceptionServer() as interception:
            trace = Trace(
                task=TraceTask(type="Task", data=TaskData(prompt="conformance"), key="0", hash="0"),
                agent=AgentInfo(config=AgentConfig()),
            )
            client = TrainClientConfig(
                base_url=engine.base_url,
                api_key_var="CONFORMANCE_KEY",
                renderer=Qwen3RendererConfig(thinking_retention="all"),
                renderer_model_name=str(_FOLDER),
            )
            context = ModelContext(
                model=engine.model, client=client, sampling=Sampling(temperature=case.temperature)
            )
            limits = RolloutLimits(max_output_tokens=case.budget)
            session = RolloutSession(ctx=context, trace=trace, limits=limits)
            async with interception.acquire(session) as (base_url, key, _):
                await agent(f"{base_url}/v1", key)
        return Capture(sequences=sequences_of(trace))


def sequences_of(trace: Trace) -> list[TrainingSequence]:
    """Return the branches of a trace; a sampled node that several share trains in the first."""
    seen: set[int] = set()
    sequences = []
    for branch in trace.branches:
        if not branch.trainable:
            continue
        mask: list[bool] = []
        for node in branch.nodes:
            first = id(node) not in seen
            seen.add(id(node))
            mask += [m and first for m in node.mask]
        sequences.append(
            TrainingSequence(
                ids=tuple(branch.token_ids),
                mask=tuple(mask),
                logps=tuple(branch.logprobs),
                versions=(),
            )
        )
    return sequences
