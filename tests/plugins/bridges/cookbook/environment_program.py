"""Training of environments by the trainer of `tinker_cookbook`, which `test_cookbook` runs:
its arguments are the URL of a server and a folder. Its assertions are the test.
"""
# mypy: ignore-errors

import asyncio
import json
import pickle
import sys
from pathlib import Path

from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl import train
from tinker_cookbook.tokenizer_utils import get_tokenizer

from quintain.errors import EnvironmentFault
from quintain_bridges.cookbook import QuintainDatasetBuilder

url, folder = sys.argv[1], Path(sys.argv[2])
MODEL = "Qwen/Qwen3-4B-Instruct-2507"


def builder(environment, **settings):
    about = {"batch_size": 2, "group_size": 2, "n_batches": 1, **settings}
    return QuintainDatasetBuilder(environment=environment, model_name_for_tokenizer=MODEL, **about)


renderer = get_renderer("qwen3_instruct", get_tokenizer(MODEL))


def tokens(text):
    return [
        *renderer.tokenizer.encode(text, add_special_tokens=False),
        *renderer.get_stop_sequences(),
    ]


async def played(environment, *replies, **settings):
    """The steps of the first episode, in which a model gives *replies*."""
    data, _ = await builder(environment, **settings)()
    group = pickle.loads(pickle.dumps(data.get_batch(0)[0]))
    env = (await group.make_envs())[0]
    prompt, stop = await env.initial_observation()
    assert stop == renderer.get_stop_sequences()
    asked = [renderer.tokenizer.decode(prompt.to_ints())]
    steps = []
    for reply in replies:
        steps.append(await env.step(tokens(reply), extra={"stop_reason": "stop"}))
        asked.append(renderer.tokenizer.decode(steps[-1].next_observation.to_ints()))
    await group.cleanup()
    return asked, steps


# one turn: the right answer is worth 1, another one 0
(prompt, _), _ = asyncio.run(played("arithmetic", "?", args={"levels": [1]}))
sum_of = prompt.rsplit("<|im_start|>user\n", 1)[1]
first, second = sum_of.split("=")[0].split("+")
right = int("".join(c for c in first if c.isdigit())) + int(
    "".join(c for c in second if c.isdigit())
)
for answer, reward in ((right, 1.0), (right + 1, 0.0)):
    _, (step,) = asyncio.run(played("arithmetic", f"#### {answer}", args={"levels": [1]}))
    assert step.episode_done
    assert step.reward == reward

# several turns: the next prompt is that of before, the reply and what the environment said
asked, (step,) = asyncio.run(played("guess", "5"))
assert not step.episode_done
assert asked[1].startswith(asked[0] + "5")

# tools: they are in the prompt, and a call is answered
asked, steps = asyncio.run(
    played(
        f"{folder / 'rooms.py'}:Rooms",
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
        "two",
    )
)
assert '"look"' in asked[0]
assert "a lamp and a chair" in asked[1]
assert steps[1].reward == 0.5

# a failure of the environment is an error and no reward
try:
    asyncio.run(played(f"{folder / 'rooms.py'}:Rooms", "raise"))
except EnvironmentFault as fault:
    assert "the disk is full" in str(fault)
else:
    raise AssertionError("a failure was scored")

# the trainer of the cookbook
config = train.Config(
    log_path=str(folder / "log"),
    model_name=MODEL,
    renderer_name="qwen3_instruct",
    recipe_name="quintain",
    dataset_builder=builder("arithmetic", n_batches=2, args={"levels": [1]}),
    learning_rate=1e-3,
    max_tokens=4,
    lora_rank=4,
    base_url=url,
    eval_every=0,
    save_every=0,
)
asyncio.run(train.main(config))
rows = [json.loads(line) for line in (folder / "log" / "metrics.jsonl").read_text().splitlines()]
assert len(rows) >= 2
assert all(0.0 <= row["env/all/reward/total"] <= 1.0 for row in rows[:2])
print("environments trained")
