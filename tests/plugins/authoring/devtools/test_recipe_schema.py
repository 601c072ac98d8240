"""`quintain schema`: what it accepts and rejects, and that an editor's checker reads it."""

from __future__ import annotations

import json
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from quintain.cli import main
from quintain.recipe import Recipe
from quintain_authoring.devtools.schema import NAMED, recipe_schema

from ....docs.pages import PAGES, ROOT, Page

BUNDLED = sorted((ROOT / "core" / "quintain" / "recipes").glob("*.toml"))
SCHEMA = recipe_schema()
BASE = 'environments = [{ use = "arithmetic" }]\n'

MISTAKES = {
    "unknown section": "[trainer]\nlr = 1",
    "unknown key": "[learner]\nwarmup = 5",
    "text for a number": '[batch]\ngroup_size = "eight"',
    "fraction for a count": "[batch]\ngroup_size = 8.5",
    "below the range": "[run]\nsteps = 0",
    "above the range": "[stop]\naccuracy = 2",
    "word that the key does not take": '[rollouts]\nkeep = "some"',
    "count that the key does not take": "[evaluation]\ntasks = 0",
    "no precision": '[learner]\nprecision = "half"',
    "one of two betas": "[learner]\nbetas = [0.9]",
    "unknown key of a limit": "[[environments]]\nuse = 'gsm8k'\nlimits = { steps = 3 }",
    "environment without a name": "[[environments]]\nweight = 2.0",
    "no environment": "[run]\nsteps = 5",
    "empty list of environments": "environments = []",
    "table for a text": "[run]\nname = { a = 1 }",
}


def errors(text: str) -> list[str]:
    return [
        e.message for e in jsonschema.Draft202012Validator(SCHEMA).iter_errors(tomllib.loads(text))
    ]


def test_it_is_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints it, and it keeps to its dialect."""
    assert main(["schema"]) == 0

    assert json.loads(json.dumps(SCHEMA)) == json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", BUNDLED, ids=lambda p: p.stem)
def test_bundled_recipes_validate(path: Path) -> None:
    """As they are written, and with all defaults written out."""
    assert errors(path.read_text()) == []
    assert errors(Recipe.load(path).to_toml()) == []


def test_recipes_of_the_pages_validate() -> None:
    """Whole recipes of the documentation, each a file of its own."""
    blocks = [b.text for path in PAGES for b in Page(path=path).blocks if b.language == "toml"]
    recipes = [text for text in blocks if tomllib.loads(text).keys() & {"environments", "extends"}]

    assert len(recipes) >= 10
    assert {text: [] for text in recipes} == {text: errors(text) for text in recipes}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_do_not(text: str) -> None:
    """Each is an error of the schema, as it is one of the program."""
    whole = text if "environment" in text or text.startswith("[run]\nsteps = 5") else BASE + text

    assert errors(whole)
    with pytest.raises(Exception, match=r"recipe|environment"):
        Recipe.parse(whole)


def test_words_next_to_numbers() -> None:
    """Keys whose validators are Python take the same words as the program."""
    for line in (
        'evaluation.tasks = "all"', 'rollouts.keep = "none"',
        'model.lora.target_modules = "all-linear"',
        'model.lora.target_modules = ["q_proj"]', 'run.max_sample_mismatch = "none"',
        "evaluation.test.tasks = 0",
    ):  # fmt: skip
        assert errors(f"{line}\n{BASE}") == [], line
        Recipe.parse(f"{line}\n{BASE}")


def test_every_key_has_a_type_and_a_meaning() -> None:
    """No key accepts just anything, and an editor has a text to show."""

    def keys(table: dict[str, Any], at: str = "") -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, value in table.get("properties", {}).items():
            inner = value.get("items", value.get("additionalProperties") or value)
            tables = (
                keys(inner, f"{at}{name}.")
                if isinstance(inner, dict) and "properties" in inner
                else {}
            )
            found |= tables or {f"{at}{name}": value}
        return found

    found = keys(SCHEMA)

    assert NAMED.keys() <= found.keys()
    assert len(found) >= 60
    assert [
        name for name, value in found.items() if not value.keys() & {"type", "enum", "anyOf"}
    ] == []
    assert [name for name, value in found.items() if not value.get("description")] == []
    assert "arithmetic" in found["environments.use"]["anyOf"][0]["enum"]


def test_taplo_reads_it(tmp_path: Path) -> None:
    """The checker behind editors accepts a good recipe and names the key of a bad one."""
    (taplo,) = (f.locate() for f in metadata.files("taplo") or () if f.name == "taplo")
    (tmp_path / "recipe.schema.json").write_text(json.dumps(SCHEMA))

    def check(text: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "recipe.toml"
        file.write_text(f"#:schema ./recipe.schema.json\n{BASE}{text}\n")
        return subprocess.run(
            [str(taplo), "check", str(file)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert check("[learner]\nwarmup_steps = 5").returncode == 0
    bad = check("[learner]\nwarmup = 5")
    assert bad.returncode == 1
    assert "'warmup' was unexpected" in bad.stderr
