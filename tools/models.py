"""Write the tables of docs/models.md from measurements over `tests/core/models/architectures.py`. A
test repeats them.

python tools/models.py
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from quintain.engine.decoding import (
    BatchForward,
    DecodingForward,
    LayerForward,
    ModuleForward,
)
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models.forward import Forward
from quintain.models.load import LoadedModel, load_model
from quintain.models.prefix_layout import TokenSequence
from quintain.types.sampling import Sampling

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
sys.path.insert(0, str(ROOT))

from tests.core.models.architectures import ARCHITECTURES, VOCABULARY, architecture  # noqa: E402 -- needs the path above

BOUND = 1e-4
"""Nats by which no log-prob of a supported architecture may differ from the module's own
forward.
"""

ENGINES: Mapping[type[DecodingForward], str] = {
    LayerForward: "own layers",
    ModuleForward: "module",
    BatchForward: "fixed batches",
}
PROMPTS = [
    [(7 * i + 3 * j) % (VOCABULARY - 2) for j in range(n)]
    for i, n in enumerate((14, 3, 9, 2, 20, 6))
]
"""Ids of different lengths, shorter and longer than the windows of the table; three of them fill
the engine's slots.
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One architecture as it loads, samples and trains.

    Attributes:
        name, module: of the table, and of transformers.
        attention, engine, layout: the choices made for it.
        engine_error, learner_error: largest difference in nats of a log-prob from that of the
            module's own forward.
        refusal: the sentence with which the engine or the learner refuses it, else empty.
    """

    name: str
    module: str
    attention: str = ""
    engine: str = ""
    layout: str = ""
    engine_error: float = 0.0
    learner_error: float = 0.0
    refusal: str = ""


def measure(name: str) -> Measured:
    """Save the model of the table, load it as a run does, and compare engine and learner with its
    own forward.
    """
    with tempfile.TemporaryDirectory() as folder:
        architecture(name).save_pretrained(folder)
        # Fewer words than embeddings: some families add special tokens.
        tokenizer = Tokenizer(
            models.WordLevel({f"w{i}": i for i in range(VOCABULARY // 2)}, unk_token="w0")
        )
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        loaded = load_model(folder)
    module: Any = loaded.module
    try:
        engine = EmbeddedEngine.sharing(module, loaded.tokenizer, slots=3)
        forward = Forward(module)
    except UsageError as error:
        return Measured(name=name, module=type(module).__name__, refusal=str(error))
    return Measured(
        name=name,
        module=type(module).__name__,
        attention=module.config._attn_implementation,
        engine=ENGINES[type(engine._forward)],
        layout=forward.layout,
        engine_error=_engine_error(engine, loaded),
        learner_error=_learner_error(forward, loaded),
    )


def _engine_error(engine: EmbeddedEngine, loaded: LoadedModel) -> float:
    async def sampled() -> Sequence[Any]:
        samplings = (Sampling(seed=i, max_tokens=4 + 2 * i) for i in range(len(PROMPTS)))
        return await asyncio.gather(*map(engine.sample, PROMPTS, samplings))

    errors = [
        (torch.tensor(out.logps) - _plain(loaded, [*prompt, *out.ids])[len(prompt) - 1 :])
        .abs()
        .max()
        for prompt, out in zip(PROMPTS, asyncio.run(sampled()), strict=True)
    ]
    return float(max(errors))


@torch.no_grad()
def _learner_error(forward: Forward, loaded: LoadedModel) -> float:
    # The first group shares a prefix; all rows are in one micro-batch.
    rows = [[*PROMPTS[0], 5, 9], [*PROMPTS[0], 7], *PROMPTS[1:]]
    sequences = [TokenSequence(ids, range(1, len(ids))) for ids in rows]
    logp = forward.statistics([sequences[:2], *([sequence] for sequence in sequences[2:])]).logp
    return float((logp - torch.cat([_plain(loaded, ids) for ids in rows])).abs().max())


@torch.no_grad()
def _plain(loaded: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    module: Any = loaded.module
    log_probs = (
        module(input_ids=torch.tensor([ids]), use_cache=False)
        .logits[0, :-1]
        .float()
        .log_softmax(-1)
    )
    return log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def tables(measured: Sequence[Measured]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each table of the page."""
    good = [row for row in measured if not row.refusal]
    lines = [
        "| architecture | class | attention | engine | layout | engine error | learner error |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in good:
        errors = f"{_rounded(row.engine_error)} | {_rounded(row.learner_error)}"
        lines.append(
            f"| `{row.name}` | `{row.module}` | {row.attention} | {row.engine} | {row.layout} | "
            f"{errors} |"
        )
    yield "supported", "\n".join(lines)
    lines = ["| architecture | error |", "|---|---|"]
    lines += [
        f"| `{row.name}` | {row.refusal.partition('; ')[0]} |" for row in measured if row.refusal
    ]
    yield "refused", "\n".join(lines)


def _rounded(error: float) -> str:
    """Return the next power of ten: digits would depend on the machine."""
    return "0" if error == 0 else f"1e{ceil(log10(error))}"


def render(page: str, measured: Sequence[Measured]) -> str:
    """Return *page* with its tables rewritten."""
    for name, table in tables(measured):
        start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        page = re.sub(
            f"{start}.*?{end}", lambda _, text=f"{start}{table}\n{end}": text, page, flags=re.DOTALL
        )
    return page


if __name__ == "__main__":
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable()
    rows = [measure(name) for name in ARCHITECTURES]
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
