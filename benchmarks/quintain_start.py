"""Grows the model that both sides of `benchmarks.time_to_accuracy` start from, or finds it in the cache; says where."""

from __future__ import annotations

import json
import sys

import torch

from quintain.training.nursery import grown
from quintain.training.recipe.tables import Recipe
from quintain.training.resolve import cast_table
from quintain.training.screen import Screen

from .common import Door


def main() -> None:
    door = Door()
    torch.set_num_threads(int(sys.argv[1]))
    environment, environment_args, start_args = sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
    recipe = Recipe.of(
        {
            "environments": [{"use": environment, "args": environment_args}],
            "model": {"start": {"args": start_args}},
        }
    )
    folder = grown([cast_table(table) for table in recipe.environments], recipe, Screen())
    door.say(folder=str(folder.resolve()))


if __name__ == "__main__":
    main()
