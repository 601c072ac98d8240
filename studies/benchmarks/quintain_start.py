"""Train the model that both sides of `time_to_accuracy` start from, or find it in the
cache; print where.
"""

from __future__ import annotations

import json
import sys

import torch

from quintain.console import Screen
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain_starter.source import DefaultModel

from .common import Door


def main() -> None:
    door = Door()
    torch.set_num_threads(int(sys.argv[1]))
    environment = sys.argv[2]
    environment_args = json.loads(sys.argv[3])
    start_args = json.loads(sys.argv[4])
    recipe = Recipe.of(
        {
            "environments": [{"use": environment, "args": environment_args}],
            "model": {"start": {"args": start_args}},
        }
    )
    source = ModelSource.of(recipe)
    assert isinstance(source, DefaultModel)
    folder = source.train_once(ModelRequest.of(recipe, Screen()))
    door.say(folder=str(folder.resolve()))


if __name__ == "__main__":
    main()
