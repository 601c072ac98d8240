"""Policy-gradient training of a language model, written out as one loop.

    python examples/loop.py                     # about a minute on a CPU
    python examples/loop.py --steps 5 --seed 1

A small model learns to carry in sums, as in `quintain train arithmetic`: same tokens, rewards and
weights, bit for bit. The command adds recipes, checkpoints, records and plugins.

The policy is the language model. It gives an answer y to a task x with the probability pi(y | x),
the product of the probabilities of its tokens y_1, y_2, ... The reward R(x, y) is a number. Training
raises the mean reward J. Its gradient is a mean over answers that the policy has sampled itself:

    grad J = E[ A * grad log pi(y | x) ]     with the advantage  A = R(x, y) - b(x)

Answers with A > 0 become likelier, answers with A < 0 become less likely. The baseline b(x) makes
the estimate less noisy. It leaves the mean as it is, as long as it does not depend on y.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from quintain import Sampling
from quintain.engine import EmbeddedEngine
from quintain.evaluation import evaluate
from quintain.learning import ALGORITHMS, Learner
from quintain.models import load_model
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain.tasks import Mixture
from quintain.types import AnyGroup
from quintain_env_math import Arithmetic
from quintain_starter import arithmetic_starter

TASKS = 64
"""Tasks of a step."""
GROUP_SIZE = 4
"""G, the number of answers that are sampled to each task."""
SAMPLING = Sampling(temperature=0.7, max_tokens=48)
"""The temperature divides the logits, so it is a part of the policy: pi is the model at 0.7. An
answer is cut at 48 tokens, and 48 also divides the loss."""
HELD_OUT = 200
"""Tasks that never train, by which accuracy is measured."""


async def train(folder: Path, steps: int, seed: int) -> None:
    """Train the model in *folder* for a number of *steps*."""
    environment = Arithmetic(levels=(1, 2, 3), reworded=0.6)
    # The tasks of the split `train`, without end, in an order that the seed shuffles.
    tasks = Mixture([environment], seed=seed)
    model = load_model(folder)
    # The learner changes the weights theta. Dr. GRPO is the algorithm whose loss it computes. Its
    # advantage is computed by hand below. Without `advantages` the learner computes it.
    learner = Learner(model.module, ALGORITHMS["dr_grpo"], lr=6e-5, warmup_steps=5)
    # The engine samples. It reads the tensors that the learner changes, so there is one copy of
    # theta. Its slots are the answers that it continues together, one token in each forward pass.
    engine = EmbeddedEngine.sharing(model.module, model.tokenizer, slots=TASKS * GROUP_SIZE)
    async with engine:
        await print_accuracy("before training", environment, engine, seed)
        for step in range(1, steps + 1):
            # 1. Tasks. G rollouts are requested for each. The index numbers the groups of all steps.
            # The visit counts how often the task came before, so that it gets new answers now.
            requests = []
            for pick in tasks.pick(TASKS):
                request = RolloutRequest(
                    environment=environment,
                    task=pick.task,
                    group_size=GROUP_SIZE,
                    index=pick.index,
                    visit=pick.visit,
                )
                requests.append(request)

            # 2. Rollouts. The environment shows each task to the policy. The engine samples the
            # token y_t from pi(. | x, y_1 ... y_t-1), until the answer ends. A rollout keeps the ids
            # of these tokens, so no text is ever tokenized again. Its random numbers follow from
            # the seed, its task, the visit and its place in the group.
            # 3. Rewards. As a rollout ends, the environment's reward functions score it:
            # R = outcome + shaping, which is `rollout.total`.
            context = RolloutContext(engine=engine, sampling=SAMPLING, run_seed=seed, step=step)
            groups = await run_groups(requests, context)

            # 4. Batch. A rollout that failed through no fault of the policy has no reward: it is
            # not valid and is left out. A single rollout has no other to be compared with.
            groups = [group for group in groups if len(group.valid) >= 2]
            # Each valid rollout becomes a sample: its token ids, and a mask that is true at the
            # tokens that the policy sampled. Only these train. The tokens of the prompt do not.
            batch = learner.batch(
                groups, temperature=SAMPLING.temperature, max_tokens=SAMPLING.max_tokens
            )

            # 5. Advantages. The baseline b(x) is the mean reward of the group: A_i = R_i - mean(R).
            # So an answer is compared with other answers to the same task. The mean contains R_i,
            # which makes the expected gradient (G - 1) / G times as long. The direction stays where
            # every group has G valid rollouts.
            advantages = [0.0] * len(batch.samples)
            for indices in batch.groups:
                baseline = fmean(batch.samples[i].total for i in indices)
                for i in indices:
                    advantages[i] = batch.samples[i].total - baseline

            # 6. Update. For each trained token, r is its probability under the weights that change,
            # divided by that under the weights before this update. With S samples the loss is
            #     L = - 1 / (S * max_tokens) * sum over the tokens of min(r A, clip(r, 0.8, 1.2) A)
            # A batch with several updates needs the clip. This one has a single update, so r = 1,
            # and over the tokens of an answer y the gradients add up to A * grad log pi(y | x).
            # The divisor is constant. By its own length, a long answer's tokens would weigh less.
            # The learner scales a gradient longer than 1 down to 1, and takes one step of AdamW.
            metrics = learner.step(batch, advantages=advantages)

            # 7. Weights. The engine takes the new theta: it forgets the keys and values of prompts
            # that the old theta gave, and marks what it samples with the version of the new one.
            await engine.update(learner.weights())
            report(step, groups, metrics)
        await print_accuracy("after training", environment, engine, seed)


def report(step: int, groups: Sequence[AnyGroup], metrics: Mapping[str, float]) -> None:
    """Print a line about a step: means over its rollouts, and what the learner measured."""
    rollouts = [rollout for group in groups for rollout in group.valid]
    right = fmean(rollout.outcome.total for rollout in rollouts if rollout.outcome)
    reward = fmean(rollout.total for rollout in rollouts)
    tokens = fmean(rollout.tokens for rollout in rollouts)
    print(
        f"step {step:2}  right {right:.1%}  reward {reward:.3f}  tokens {tokens:.1f}"
        f"  entropy {metrics.get('entropy', 0):.3f}  gradient {metrics.get('grad_norm', 0):.3f}",
        flush=True,
    )


async def print_accuracy(
    when: str, environment: Arithmetic, engine: EmbeddedEngine, seed: int
) -> None:
    """Print the share of right answers to tasks that never train, with its 95 % interval."""
    evaluation = await evaluate(
        environment, engine, split="dev", tasks=HELD_OUT, sampling=SAMPLING, seed=seed
    )
    print(f"{when}: {evaluation.accuracy} of {HELD_OUT} tasks right", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small model on sums.")
    parser.add_argument("--model", type=Path, default=arithmetic_starter(), help="its folder")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(train(options.model, options.steps, options.seed))
