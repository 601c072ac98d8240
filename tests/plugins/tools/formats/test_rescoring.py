"""Log-probs of conversations with tools are those of the recorded ids; text of tools is context and
never trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from quintain import Rollout, Sampled, Sampling, TokenEngine, ToolCall, ToolSpec
from quintain.learning import ALGORITHMS, Batch, Learner, Sample
from quintain.models import HFTokenizer
from quintain.registry import current
from quintain.types.transcript import TokenSource, TrainingSequence

from ....core.models.tiny import tiny_model, with_exact_norms
from .chat_templates import DIFFERENT, FAMILIES
from .talk import Talk, component, talked, tokenizer_with

LOOK = ToolSpec(
    name="look", parameters={"type": "object", "properties": {"word": {"type": "string"}}}
)
VOCABULARY = 320
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.3}


@cache
def model_in(dtype: torch.dtype) -> Any:
    return with_exact_norms(tiny_model(vocab=VOCABULARY, context=4096, spread=0.3, dtype=dtype))


class Forced(TokenEngine):
    """Samples from a model, except for turns whose text is given: those it scores."""

    def __init__(self, model: Any, tokenizer: HFTokenizer, turns: Sequence[str | None]) -> None:
        self.inner = (
            current().load("engine", "quintain/embedded").sharing(model, tokenizer, slots=1)
        )
        self.tokenizer, self.context, self.turns = tokenizer, self.inner.context, list(turns)

    def register(self) -> AbstractContextManager[None]:
        return self.inner.register()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        text = self.turns.pop(0) if self.turns else None
        if text is None:
            return await self.inner.sample(ids, sampling.replace(max_tokens=10))
        # letters, where an encoding has pairs
        said = [i for c in text for i in self.tokenizer.encode(c)]
        if said[-1] not in self.tokenizer.stop_ids:
            said.append(self.tokenizer.stop_ids[0])
        logps = await self.inner.score([*ids, *said], len(ids))
        zeros = (0,) * len(said)
        return Sampled(
            ids=tuple(said), logps=tuple(logps), versions=zeros, finish="stop", stop=said[-1]
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await self.inner.score(ids, start, temperature)

    async def update(self, weights: Any) -> int:
        return await self.inner.update(weights)


def conversation(name: str, dtype: torch.dtype) -> Rollout:
    """Two questions: one call, two at once, one that cannot be read, thoughts, and turns that the
    model samples.
    """
    form = component(FAMILIES[name].form)
    one, two = (ToolCall(name="look", arguments={"word": word}) for word in ("there", "other"))
    opening, closing = form.THOUGHT
    single = f"{opening}hm{closing}{form.render_calls([one], [LOOK])}"
    turns = [
        single,
        form.render_calls([one, two], [LOOK]),
        None,
        form.render_calls([two], [LOOK])[:-9],
        None,
    ]
    environment = Talk(
        questions=["where?", "and now?"],
        said=["the <|im_end|> other", "there", "[/INST]one", "three"],
    )
    return talked(environment, Forced(model_in(dtype), tokenizer_with(name), turns))


@pytest.mark.keeps("Llama 3.1-torch.float64")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(
            pytest.param(name, torch.float64, marks=[] if name in DIFFERENT else [pytest.mark.slow])
            for name in FAMILIES
        ),
        ("Qwen3", torch.float32),
        ("gpt-oss", torch.bfloat16),
    ],
    ids=str,
)
def test_scoring_the_recorded_ids_again_gives_the_recorded_log_probs(
    name: str, dtype: torch.dtype
) -> None:
    """By the module's own forward pass, over all branches."""
    rollout = conversation(name, dtype)
    rows = rollout.transcripts[""].sequences()
    assert sum(turn.tokens for turn in rollout.turns) == sum(sum(row.mask) for row in rows) > 30
    for row in rows:
        with torch.no_grad():
            logps = model_in(dtype)(torch.tensor([row.ids])).logits[0, :-1].double().log_softmax(-1)
        for i, masked in enumerate(row.mask):
            if masked:
                assert row.logps[i] == pytest.approx(
                    float(logps[i - 1, row.ids[i]]), abs=TOLERANCES[dtype]
                )


def gradient(sequences: Sequence[TrainingSequence]) -> torch.Tensor:
    module = tiny_model(vocab=VOCABULARY, context=4096, spread=0.3, dtype=torch.float64)
    learner = Learner(
        with_exact_norms(module), ALGORITHMS["dr_grpo"], lr=0.0, max_grad_norm=0.0, token_budget=1
    )
    other = TrainingSequence(ids=(1, 2), mask=(False, True), logps=(0.0, -1.0), versions=(-1, 0))
    samples = (
        Sample(sequences=tuple(sequences), outcome=1.0, group=0),
        Sample(sequences=(other,), outcome=0.0, group=0),
    )
    learner.step(Batch(samples=samples, max_tokens=100))
    return torch.cat([p.grad.flatten() for p in learner.module.parameters()])


def otherwise(row: TrainingSequence, sources: Sequence[int]) -> TrainingSequence:
    """*row* with other text of tools, by the *sources* of its tokens."""
    ids = tuple(
        (i + 7) % 256 if s == TokenSource.TOOL else i
        for i, s in zip(row.ids, sources, strict=False)
    )
    return replace(row, ids=ids)


@pytest.mark.keeps("gpt-oss")
@pytest.mark.parametrize("name", ["Qwen3", "Mistral", "gpt-oss"])
def test_text_of_tools_is_context_alone(name: str) -> None:
    """Other text changes the gradient of what was sampled after it, and nothing else: not of what
    came before.
    """
    transcript = conversation(name, torch.float64).transcripts[""]
    sources = [
        transcript.path(i).sources
        for i, branch in enumerate(transcript.branches)
        if TokenSource.MODEL in branch.sources
    ]
    rows = []
    others = []
    before = []
    other_before = []
    for row, own in zip(transcript.sequences(), sources, strict=True):
        if TokenSource.TOOL not in own:
            continue
        rows.append(row)
        others.append(otherwise(row, own))
        first = own.index(TokenSource.TOOL)
        mask = tuple(m and i < first for i, m in enumerate(row.mask))
        if any(mask):
            earlier = replace(row, mask=mask)
            before.append(earlier)
            other_before.append(otherwise(earlier, own))

    assert not torch.equal(gradient(rows), gradient(others))
    if before:
        torch.testing.assert_close(gradient(before), gradient(other_before), rtol=0, atol=1e-12)
        assert not torch.allclose(gradient(before), gradient(rows), rtol=0, atol=1e-6)
    else:
        assert name in ("Mistral", "gpt-oss")  # they branch after each call
