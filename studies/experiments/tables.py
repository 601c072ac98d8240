"""Exact policies in float64, sampled and then trained by the pieces of `quintain.learning` as a run
would.

A policy is a table of logits [states, vocabulary] made from parameters; a `World` says which state
a token leads to. One state per prompt and tokens that all end is a contextual bandit; states that
are prefixes or positions give sequences. So expectations can be enumerated, and a study needs no
transformer where its claim does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quintain.interfaces.algorithm import Algorithm, GroupStats
from quintain.learning.batch import Batch, Sample
from quintain.learning.loss import weighted_loss
from quintain.learning.loss_inputs import LossInputs
from quintain.learning.pieces.advantages import Step
from quintain.types.transcript import TrainingSequence

from .common import generator

END = -1


@dataclass(frozen=True, kw_only=True)
class World:
    """Which state each token leads to.

    Attributes:
        next: state after a token, `END` where it ends the answer, [S, V].
        start: state at which each prompt begins, [P].
        longest: tokens after which an answer is cut off.
    """

    next: Tensor
    start: Tensor
    longest: int

    @classmethod
    def bandit(cls, prompts: int, actions: int) -> World:
        """One token per answer."""
        ends = torch.full((prompts, actions), END)
        return cls(next=ends, start=torch.arange(prompts), longest=1)


@dataclass(frozen=True, kw_only=True)
class Played:
    """Answers, laid flat. N answers, n tokens.

    Attributes:
        prompt, group: of each answer, [N].
        owner: which answer each token belongs to, in order, [n].
        state, token: where each token was drawn and which it was, [n].
        logp: its log-prob under the sampler, [n].
        rewards: of each answer.
    """

    prompt: Tensor
    group: Tensor
    owner: Tensor
    state: Tensor
    token: Tensor
    logp: Tensor
    rewards: tuple[float, ...] = ()

    @property
    def lengths(self) -> Tensor:
        """Tokens of each answer, [N]."""
        return torch.bincount(self.owner, minlength=len(self.prompt))

    def scored(self, rewards: Sequence[float]) -> Played:
        """Return the same answers with their rewards."""
        return Played(**{**vars(self), "rewards": tuple(map(float, rewards))})

    def only(self, keep: Sequence[int]) -> Played:
        """Some answers, in the order of *keep*."""
        place = torch.full((len(self.prompt),), -1)
        place[list(keep)] = torch.arange(len(keep))
        chosen = place[self.owner] >= 0
        order = place[self.owner[chosen]].argsort(stable=True)
        flat = {name: getattr(self, name)[chosen][order] for name in ("state", "token", "logp")}
        return Played(
            prompt=self.prompt[list(keep)],
            group=self.group[list(keep)],
            owner=place[self.owner[chosen]][order],
            rewards=tuple(self.rewards[i] for i in keep),
            **flat,
        )

    def groups(self) -> dict[int, list[int]]:
        """Samples by group, in order."""
        by_group: dict[int, list[int]] = {}
        for i, number in enumerate(self.group.tolist()):
            by_group.setdefault(number, []).append(i)
        return by_group

    def batch(self, longest: int) -> Batch:
        """As the learner's pieces see it."""
        tokens, logps = self.token.tolist(), self.logp.tolist()
        samples, offset = [], 0
        for i, count in enumerate(self.lengths.tolist()):
            samples.append(
                Sample(
                    sequences=(
                        _sequence(tokens[offset : offset + count], logps[offset : offset + count]),
                    ),
                    outcome=self.rewards[i],
                    group=int(self.group[i]),
                )
            )
            offset += count
        return Batch(samples=tuple(samples), max_tokens=longest)


def _sequence(tokens: list[int], logps: list[float]) -> TrainingSequence:
    return TrainingSequence(
        ids=(0, *tokens),
        mask=(False, *(True for _ in tokens)),
        logps=(0.0, *logps),
        versions=(-1, *(0 for _ in tokens)),
    )


def joined(parts: Sequence[Played]) -> Played:
    """Answers one after another; groups stay apart."""
    owners, groups, answers, numbers = [], [], 0, 0
    for part in parts:
        owners.append(part.owner + answers)
        groups.append(part.group + numbers)
        answers += len(part.prompt)
        numbers += int(part.group.max()) + 1
    flat = {
        name: torch.cat([getattr(p, name) for p in parts])
        for name in ("prompt", "state", "token", "logp")
    }
    rewards = tuple(r for p in parts for r in p.rewards)
    return Played(owner=torch.cat(owners), group=torch.cat(groups), rewards=rewards, **flat)


@torch.no_grad()
def play(
    world: World, logits: Tensor, prompts: Sequence[int], group_size: int, draw: torch.Generator
) -> Played:
    """*group_size* answers to each of *prompts*, drawn from the table; a prompt's answers are a
    group.
    """
    logp = logits.log_softmax(-1)
    sums = logp.exp().cumsum(-1)
    prompt = torch.as_tensor(list(prompts)).repeat_interleave(group_size)
    count = len(prompt)
    state = world.start[prompt]
    places: list[Tensor] = []
    columns: dict[str, list[Tensor]] = {"owner": [], "state": [], "token": [], "logp": []}
    for position in range(world.longest):
        live = (state != END).nonzero().squeeze(1)
        if not len(live):
            break
        here = state[live]
        point = torch.rand(len(live), 1, dtype=sums.dtype, generator=draw) * sums[here, -1:]
        token = (
            torch.searchsorted(sums[here], point, right=True)
            .squeeze(1)
            .clamp(max=logits.shape[1] - 1)
        )
        for name, value in (
            ("owner", live),
            ("state", here),
            ("token", token),
            ("logp", logp[here, token]),
        ):
            columns[name].append(value)
        places.append(live * world.longest + position)
        state[live] = world.next[here, token]
    order = torch.cat(places).argsort()
    flat = {name: torch.cat(values)[order] for name, values in columns.items()}
    return Played(
        prompt=prompt,
        group=torch.arange(len(prompts)).repeat_interleave(group_size)[:count],
        **flat,
    )


Table = Callable[[], Tensor]


def learn(
    algorithm: Algorithm,
    table: Table,
    optimizer: torch.optim.Optimizer,
    played: Played,
    longest: int,
) -> dict[str, float]:
    """One step of *algorithm* on answers: all its epochs and minibatches, as
    `quintain.learning.learner.Learner.step` does.

    Args:
        table: makes the logits from the parameters that *optimizer* holds.

    Returns:
        shares of clipped tokens and the mean weight of the correction, over the updates.
    """
    batch = played.batch(longest)
    indices = (played.state, played.token)
    with torch.no_grad():
        parameter = table().log_softmax(-1)
        prox = parameter[indices]
        probs = parameter.exp()
    statistics = {
        "mu_logp": played.logp,
        "prox_logp": prox,
        "square": probs.square().sum(-1)[played.state],
    }
    step = Step(batch=batch, rewards=played.rewards, statistics=statistics)
    values = algorithm.advantage(step)
    advantage = torch.as_tensor(values, dtype=torch.float64)
    if len(advantage) != len(played.owner) or not isinstance(values, Tensor):
        advantage = advantage[played.owner]
    metrics: dict[str, list[float]] = {}
    for _ in range(algorithm.epochs):
        for part in batch.minibatches(algorithm.minibatches, range(len(batch.groups))):
            optimizer.zero_grad()
            loss, shares = _loss(algorithm, table, played, prox, advantage, batch, part)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for name, value in shares.items():
                metrics.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in metrics.items()}


def _loss(
    algorithm: Algorithm,
    table: Table,
    played: Played,
    prox: Tensor,
    advantage: Tensor,
    batch: Batch,
    part: Sequence[int],
) -> tuple[Tensor, dict[str, float]]:
    """Return the weighted sum over the answers of one minibatch."""
    weight_S = torch.zeros(len(batch.samples), dtype=torch.float64)
    weight_S[list(part)] = torch.tensor(
        algorithm.aggregation(batch.only(part)), dtype=torch.float64
    )
    number = torch.full((len(batch.samples),), -1)
    number[list(part)] = torch.arange(len(part))
    chosen = number[played.owner] >= 0
    order = number[played.owner[chosen]].argsort(stable=True)

    def pick(x: Tensor) -> Tensor:
        return x[chosen][order]

    logp_SV = table().log_softmax(-1)
    logp = logp_SV[pick(played.state), pick(played.token)]
    groups = {g: k for k, g in enumerate(dict.fromkeys(int(played.group[i]) for i in part))}
    terms = LossInputs(
        logp=logp,
        mu_logp=pick(played.logp),
        prox_logp=pick(prox),
        advantage=pick(advantage),
        entropy=-(logp_SV.exp() * logp_SV).sum(-1).detach()[pick(played.state)],
        sample=number[pick(played.owner)],
        group=torch.tensor([groups[int(played.group[i])] for i in part]),
        ratio_to=algorithm.ratio_to,
    )
    weighted = weighted_loss(algorithm, terms, pick(weight_S[played.owner]))
    shares = {name: float(value.double().mean()) for name, value in weighted.diagnostics.items()}
    return weighted.loss, {**shares, "correction": float(weighted.correction.mean())}


def accepted(algorithm: Algorithm, played: Played) -> Played | None:
    """Return the answers of the groups that the algorithm accepts; ``None`` where there is no such
    group.
    """
    keep = [
        i
        for indices in played.groups().values()
        if not algorithm.group_filter(_group_stats([played.rewards[i] for i in indices]))
        for i in indices
    ]
    return played.only(keep) if keep else None


def _group_stats(rewards: Sequence[float]) -> GroupStats:
    return GroupStats(outcomes=tuple(rewards), totals=tuple(rewards), requested=len(rewards))


@dataclass
class Pupil:
    """A linear softmax policy over actions, and the teacher who says which are right.

    Prompts are feature vectors; logits are features times weights. Prompts share the weights, so
    what is learnt on one helps or hurts others, and there are held-out prompts. The pupil begins as
    the teacher seen through noise.

    Attributes:
        train, test: features, [P, D].
        right_train, right_test: whether an action is right, [P, K].
        weights: [D, K], trained.
    """

    train: Tensor
    test: Tensor
    right_train: Tensor
    right_test: Tensor
    weights: Tensor

    @classmethod
    def born(
        cls,
        seed: int,
        *,
        prompts: int = 64,
        features: int = 16,
        actions: int = 32,
        right: int = 3,
        skill: float = 0.35,
        sharpness: float = 2.0,
        hidden: int = 0,
    ) -> Pupil:
        """Draw a task and a beginner.

        Args:
            right: how many actions are right for each prompt: the teacher's best.
            skill: correlation of the pupil's weights with the teacher's.
            sharpness: standard deviation of the beginner's logits.
            hidden: features that the teacher sees and the pupil does not, so that no pupil is right
                everywhere.
        """
        draw = generator(seed, 77)
        size = features + hidden
        teacher = torch.randn(size, actions, dtype=torch.float64, generator=draw)
        noise = torch.randn(features, actions, dtype=torch.float64, generator=draw)
        weights = (
            (skill * teacher[:features] + (1 - skill**2) ** 0.5 * noise) * sharpness / features**0.5
        )
        sets = []
        for _ in range(2):
            x = torch.randn(prompts, size, dtype=torch.float64, generator=draw)
            best = (x @ teacher).topk(right, dim=-1).indices
            answers = torch.zeros(prompts, actions, dtype=torch.bool).scatter_(1, best, True)
            sets.append((x[:, :features], answers))
        return cls(sets[0][0], sets[1][0], sets[0][1], sets[1][1], weights.requires_grad_())

    def table(self) -> Tensor:
        """Logits of the training prompts, [P, K]."""
        return self.train @ self.weights

    @property
    def world(self) -> World:
        """Of the training prompts."""
        return World.bandit(*self.right_train.shape)

    def scored(self, played: Played) -> Played:
        """1 for a right action."""
        return played.scored(self.right_train[played.prompt, played.token].double().tolist())

    @torch.no_grad()
    def success(self, held_out: bool = True) -> Tensor:
        """Exact chance of a right answer on each prompt, [P]."""
        x, right = (self.test, self.right_test) if held_out else (self.train, self.right_train)
        return ((x @ self.weights).softmax(-1) * right).sum(-1)

    def passes(self, k: int, held_out: bool = True) -> float:
        """Exact pass@k, mean over prompts."""
        return float((1 - (1 - self.success(held_out)) ** k).mean())

    @torch.no_grad()
    def entropy(self, held_out: bool = True) -> float:
        """Mean over prompts, nats."""
        logp = ((self.test if held_out else self.train) @ self.weights).log_softmax(-1)
        return float(-(logp.exp() * logp).sum(-1).mean())
