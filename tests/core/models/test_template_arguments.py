"""Arguments of the chat template, such as ``enable_thinking``: rendered, saved with the model,
checked by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain import Message
from quintain.errors import UsageError
from quintain.models.load import load_model
from quintain.models.tokenizer import HFTokenizer
from quintain.recipe.tables import Recipe

from .tiny import CHATML, byte_tokenizer, save_tiny

THINKING = (
    CHATML
    + "{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
)
ASKED = [Message("user", "2+2?")]


def test_arguments_are_rendered_and_saved(tmp_path: Path) -> None:
    """A checkpoint, and so `eval` and `chat` of a run, renders as the run did; the fingerprint
    tells them apart.
    """
    tokenizer = HFTokenizer(byte_tokenizer(THINKING))
    name, plain = tokenizer.name, tokenizer.render(ASKED)

    tokenizer.use_template({"enable_thinking": False})
    save_tiny(tmp_path, template=THINKING)
    tokenizer.hf.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu").tokenizer

    assert f"{plain}<think></think>" == tokenizer.render(ASKED) == loaded.render(ASKED)
    assert tokenizer.name != name


def test_a_wrong_name_shows_the_nearest() -> None:
    """Jinja would render an unknown variable as nothing, in silence."""
    tokenizer = HFTokenizer(byte_tokenizer(THINKING))

    with pytest.raises(
        UsageError, match="no variable 'enable_thinkng'; did you mean 'enable_thinking'"
    ):
        tokenizer.use_template({"enable_thinkng": False})


def test_a_template_without_the_variable_renders_as_before() -> None:
    """The defaults of a pretrained model switch thinking off, also for models that have none."""
    tokenizer = HFTokenizer(byte_tokenizer())
    plain = tokenizer.render(ASKED)
    tokenizer.use_template({"enable_thinking": False})

    assert plain == tokenizer.render(ASKED)


def test_a_recipe_has_them() -> None:
    recipe = Recipe.parse(
        'model.template = { enable_thinking = false }\n[[environments]]\nuse = "arithmetic"\n'
    )

    assert recipe.model.template == {"enable_thinking": False}
    assert recipe == Recipe.parse(recipe.to_toml())


def test_the_engine_takes_them(tmp_path: Path) -> None:
    """`quintain eval --engine-arg template={enable_thinking=false}`."""
    from quintain.engine.embedded import EmbeddedEngine

    save_tiny(tmp_path, template=THINKING)
    engine = EmbeddedEngine(str(tmp_path), device="cpu", template={"enable_thinking": False})

    assert engine.tokenizer.render(ASKED).endswith("<think></think>")
