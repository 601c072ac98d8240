"""The algorithms of this plugin, with the defaults of their papers."""

from __future__ import annotations

from quintain import KL, Algorithm
from quintain.learning import advantages, aggregation, corrections, group_filter, objectives

from .gae import gae
from .natural import natural
from .vine import vine

PPO = Algorithm(
    name="ppo",
    summary="A critic and GAE, clipped ratio 0.2, 4 epochs, k1 to the reference in the reward (0.05).",
    source=(
        "Schulman et al. 2017, arXiv 1707.06347; Stiennon et al. 2020, arXiv 2009.01325, appendix "
        "B.1"
    ),
    advantage=gae.configure(whiten=True),
    objective=objectives.ppo_clip,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum.configure(samples=1),
    # TRL has the same; InstructGPT takes 0.02
    kl=KL(where="reward", estimator="k1", coefficient=0.05),
    epochs=4,  # InstructGPT makes one pass in 8 minibatches
    services={"critic": "critic"},
    published={"group": 1, "temperature": 1.0},
)

TRPO = Algorithm(
    name="trpo",
    summary="A natural-gradient step inside a KL of 0.01, by conjugate gradients and a line "
    "search; up to 0.5B "
    "parameters.",
    source="Schulman et al. 2015, arXiv 1502.05477",
    # a Monte Carlo return, as in the paper; the baseline keeps it unbiased
    advantage=advantages.leave_one_out,
    objective=objectives.importance,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum,
    optimizer_step=natural,
    published={"temperature": 1.0},
)

VINEPPO = Algorithm(
    name="vineppo",
    summary=(
        "PPO whose values are means over fresh continuations from inside the answer, in place of a "
        "critic's."
    ),
    source="Kazemnejad et al. 2024, arXiv 2410.01679",
    advantage=vine,
    objective=objectives.ppo_clip,
    correction=corrections.uncorrected,
    aggregation=aggregation.token,
    group_filter=group_filter.minimum.configure(samples=1),
    kl=KL(where="loss", estimator="k3", coefficient=1e-4),
    epochs=2,
    published={"group": 8, "minibatches": 8, "temperature": 0.6},
)
