"""The model source `sight`: a small vision-language model, grown on generated pictures and cached.

It has the shape of LLaVA: a vision tower of SigLIP's kind, a projector, and a language model of
Qwen3's kind. Patches are as large as the places of `quintain_env_pictures.shapes`. Growing has two
parts. First the tower learns alone which shape is in each patch, as a classifier whose head is
thrown away: 16 labels a picture instead of one. Then the language model learns to answer, and the
tower stays as it is. The folder says so, so that it stays in later training, too.

::

    ~/.cache/quintain/models/sight-0123456789abcdef/    under a hash of code and seed
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from quintain.errors import UsageError
from quintain.recipe import ModelRequest
from quintain.store import cache_folder

from .architecture import END_OF_TURN, PAD, build_tokenizer
from .folders import OwnFolder
from .gguf_folder import all_or_nothing
from .packages import locked

if TYPE_CHECKING:
    from PIL import Image
    from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

SIDE, PATCH = 64, 16
"""Pixels of a picture as the tower sees it, and of a patch: 16 patches."""
PATCHES = (SIDE // PATCH) ** 2
HIDDEN, TOWER_LAYERS, LAYERS = 96, 2, 4
CONTEXT = 1024
TOWER_UPDATES, UPDATES, BATCH, RATE = 250, 400, 64, 1e-3
"""Updates of both parts, examples of each, and the learning rate of AdamW."""
PLACEHOLDER = "<image>"
GROWN_FIRST = "the model sight is grown first, once: minutes on a CPU"
WORDS = """
user assistant system Answer with a number How Click Walk Where Say is are there the many long lines line bar bars
reach squares square circle circles triangle triangles area angle degrees has does red green blue yellow purple orange
black white left top right bottom each from to in moves moved wall or
""".split()
"""One token each, with and without a blank before them; others are read byte by byte."""
TEMPLATE = """\
{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{%- if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML, with a placeholder for each picture."""


@dataclass(frozen=True, kw_only=True)
class Sight(OwnFolder):
    """A vision-language model of 0.8 million parameters, grown on first use on shapes that it
    counts.

    Attributes:
        seed: of random weights and of the pictures. It does not follow the seed of a run.
    """

    seed: int = 0

    def folder(self, request: ModelRequest) -> Path:
        return grown_once(self.seed, request.screen.note)

    @classmethod
    def folder_named(cls, name: str) -> Path | None:
        folder = folder_of(0)
        return folder if _is_grown(folder) else None

    def remarks(self, request: ModelRequest) -> Sequence[str]:
        """Say that the model is grown first, unless it is in the cache."""
        return () if _is_grown(folder_of(self.seed)) else [GROWN_FIRST]


def folder_of(seed: int) -> Path:
    """Return where the model of *seed* is cached, once it is grown.

    Raises:
        UsageError: quintain-vision or quintain-env-pictures is not installed.
    """
    try:
        import quintain_env_pictures
        import quintain_vision  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "the model sight needs pictures: pip install 'quintain-starter[vision]'"
        ) from error
    drawing = Path(inspect.getfile(quintain_env_pictures)).parent
    digest = hashlib.sha256(str(seed).encode())
    for source in [Path(__file__), *sorted(drawing.glob("*.py"))]:
        digest.update(source.read_bytes())
    return cache_folder() / "models" / f"sight-{digest.hexdigest()[:16]}"


def _is_grown(folder: Path) -> bool:
    return (folder / "quintain.json").is_file()


def grown_once(seed: int, say: Callable[[str], None]) -> Path:
    """Return the folder of the model that is grown with *seed*: from the cache, or grown now. One
    process grows it, and others wait.

    Raises:
        UsageError: quintain-vision or quintain-env-pictures is not installed.
        StorageError: the cache cannot be written.
    """
    folder = folder_of(seed)
    if not _is_grown(folder):
        with locked(folder.name, say):
            if not _is_grown(folder):
                say(GROWN_FIRST)
                grow(folder, seed, say)
    return folder


def grow(
    folder: Path,
    seed: int,
    say: Callable[[str], None],
    *,
    tower_updates: int = TOWER_UPDATES,
    updates: int = UPDATES,
) -> None:
    """Grow a model and write *folder*, all or nothing, with losses and accuracies in
    ``quintain.json``.

    Raises:
        StorageError: no room, or the folder cannot be written.
    """
    from quintain_vision import freeze

    words = sight_tokenizer()
    module = sight_model(words, seed).train()
    pixels = image_processor()
    began = time.monotonic()
    random = Random(f"sight/{seed}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the head
        tower = teach_tower(module, pixels, random, tower_updates, say)
    # The first gradients of a language model that knows nothing would undo what the tower learned.
    freeze(module)
    answers = teach_answers(module, words, pixels, random, updates, say)
    module.eval()
    report = {
        "seed": seed,
        "parameters": sum(p.numel() for p in module.parameters()),
        "patches_right": tower,
        "loss": answers,
        "seconds": round(time.monotonic() - began),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    with all_or_nothing(folder) as beside:
        write(beside, module, words, pixels)
        text = json.dumps({"sight": report}, indent=2)
        (beside / "quintain.json").write_text(text, encoding="utf-8")


def sight_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that reads `WORDS` whole, with the placeholder of pictures."""
    tokenizer = build_tokenizer([*WORDS, *(f" {word}" for word in WORDS)])
    tokenizer.add_special_tokens({"additional_special_tokens": [PLACEHOLDER]})
    tokenizer.model_max_length = CONTEXT
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def sight_model(words: PreTrainedTokenizerFast, seed: int) -> LlavaForConditionalGeneration:
    """Return the model with random weights, which depend on *seed* and the sizes alone."""
    from transformers import (
        LlavaConfig,
        LlavaForConditionalGeneration,
        Qwen3Config,
        SiglipVisionConfig,
    )

    end, pad = words.convert_tokens_to_ids([END_OF_TURN, PAD])
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=TOWER_LAYERS,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=PATCH,
            vision_use_head=False,
        ),
        text_config=Qwen3Config(
            vocab_size=-(-len(words) // 64) * 64,
            hidden_size=HIDDEN,
            intermediate_size=3 * HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            eos_token_id=end,
            pad_token_id=pad,
            bos_token_id=None,
        ),
        image_token_id=words.convert_tokens_to_ids(PLACEHOLDER),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: Any = LlavaForConditionalGeneration(config)
    module.generation_config.eos_token_id = [end]
    module.generation_config.pad_token_id = pad
    model: LlavaForConditionalGeneration = module.float()
    return model


def image_processor() -> Any:
    """Return what makes a picture the input of the tower: 64 x 64 pixels from -1 to 1."""
    from transformers import SiglipImageProcessorPil

    return SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})


def write(folder: Path, module: Any, words: PreTrainedTokenizerFast, pixels: Any) -> None:
    """Write weights, tokenizer and processor, as LLaVA has them."""
    from transformers import LlavaProcessor
    from transformers.utils import logging

    logging.disable_progress_bar()
    module.save_pretrained(folder)
    processor = LlavaProcessor(
        pixels,
        words,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        image_token=PLACEHOLDER,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(folder)


def teach_tower(
    module: Any, pixels: Any, random: Random, updates: int, say: Callable[[str], None]
) -> float | None:
    """Teach vision tower and projector which shape is in each patch; return the share of patches
    that are right in the last update.
    """
    from quintain_env_pictures import CELLS, COLOURS, SHAPES, draw_shape, empty

    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    head = nn.Linear(HIDDEN, len(kinds) + 1)
    body = module.model
    parts = [body.vision_tower, body.multi_modal_projector, head]
    optimizer = _optimizer([p for part in parts for p in part.parameters()])
    right = None
    for update in range(updates):
        images, labels = [], []
        for _ in range(BATCH):
            image, row = empty(SIDE), [0] * CELLS**2
            for place in random.sample(range(CELLS**2), 8):
                kind = random.randrange(len(kinds))
                draw_shape(image, random, *kinds[kind], place, (0.55, 0.8))
                row[place] = kind + 1
            images.append(image)
            labels.append(row)
        found = body.get_image_features(
            pixel_values=_pixels(pixels, images), return_dict=True
        ).pooler_output
        scores = head(torch.stack([*found])).flatten(0, 1)
        targets = torch.tensor(labels).flatten()
        # down over the last quarter
        _update(optimizer, cross_entropy(scores, targets), update, 4 * (updates - update) / updates)
        right = float((scores.argmax(-1) == targets).float().mean())
        if (update + 1) % 50 == 0:
            say(f"tower {update + 1}/{updates}: {right:.1%} of patches right")
    return right


def teach_answers(
    module: Any,
    words: PreTrainedTokenizerFast,
    pixels: Any,
    random: Random,
    updates: int,
    say: Callable[[str], None],
) -> float | None:
    """Teach what trains of *module* to answer questions; return the mean loss of the last 50 updates,
    in nats per token.
    """
    from quintain_env_pictures import COLOURS, Counting, digest_of, split_of

    environment = Counting(colours=tuple(COLOURS))
    known: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
    optimizer = _optimizer([p for p in module.parameters() if p.requires_grad])
    losses: list[float] = []
    for update in range(updates):
        images, rows = [], []
        for _ in range(BATCH):
            split = ""
            while split != "train":  # tasks that are held out are not learned here either
                answer = random.choice(environment.answers)
                image, question = environment.draw(random, answer)
                split = split_of(digest_of(image, question))
            images.append(image)
            if (question, answer) not in known:
                known[question, answer] = encoded(words, question, str(answer))
            rows.append(known[question, answer])
        ids, labels, mask = padded(rows, int(words.pad_token_id))
        logits = module(
            input_ids=ids, attention_mask=mask, pixel_values=_pixels(pixels, images)
        ).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        # down over the last quarter
        _update(optimizer, loss, update, 4 * (updates - update) / updates)
        losses.append(float(loss.detach()))
        if (update + 1) % 50 == 0:
            say(f"answers {update + 1}/{updates}: loss {sum(losses[-50:]) / 50:.3f}")
    last = losses[-50:]
    return sum(last) / len(last) if last else None


def encoded(
    words: PreTrainedTokenizerFast, question: str, answer: str
) -> tuple[list[int], list[int]]:
    """Return the ids of a question about a picture, and those of the answer with its end."""
    content = [{"type": "image"}, {"type": "text", "text": f"\n{question}"}]
    text = words.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    prompt = str(text).replace(PLACEHOLDER, PLACEHOLDER * PATCHES)
    return words.encode(prompt), words.encode(answer + END_OF_TURN)


def padded(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, labels (-100 but for answers) and attention mask of *rows*, each rows x length."""
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), length), pad)
    labels = torch.full_like(ids, -100)
    for number, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[number, :end] = torch.tensor(prompt + answer)
        labels[number, len(prompt) : end] = torch.tensor(answer)
    mask = torch.arange(length) < torch.tensor([[len(p) + len(a)] for p, a in rows])
    return ids, labels, mask.long()


def _pixels(processor: Any, images: Sequence[Image.Image]) -> Tensor:
    found: Tensor = processor(list(images), return_tensors="pt").pixel_values
    return found


def _optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)


def _update(optimizer: torch.optim.Optimizer, loss: Tensor, update: int, left: float = 1) -> None:
    """Make one update: the rate rises over 20 updates, and *left*, a share of it below 1, lowers
    it.
    """
    group = optimizer.param_groups[0]
    group["lr"] = RATE * min(1.0, (update + 1) / 20, left)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(group["params"], 1.0)
    optimizer.step()
