"""The algorithms of this package: those of `dr_grpo` with credit for steps."""

from __future__ import annotations

from dataclasses import replace

from quintain.learning import ALGORITHMS

from .advantages import tree_process, tree_steps, value_steps

TREE_CREDIT = replace(
    ALGORITHMS["dr_grpo"],
    name="tree_credit",
    summary=(
        "Dr. GRPO on trees of answers: a step is compared with the steps that were drawn beside "
        "it; needs the engine tree."
    ),
    source="Yang et al. 2025 (TreeRPO), arXiv 2506.05183",
    advantage=tree_steps,
    published={"group": 8, "temperature": 1.0},
)

TREE_RL = replace(
    TREE_CREDIT,
    name="tree_rl",
    summary=(
        "As tree_credit, with the credit of TreeRL: against root and parent, over the root of the number "
        "of leaves."
    ),
    source="Hou et al. 2025 (TreeRL), arXiv 2506.11902, section 3.3",
    advantage=tree_process,
)

VALUE_STEPS = replace(
    ALGORITHMS["dr_grpo"],
    name="value_steps",
    summary=(
        "Dr. GRPO with differences of a process value model as the credit of each step of an "
        "answer."
    ),
    source="Setlur et al. 2024 (PAV), arXiv 2410.08146; Wang et al. 2023, arXiv 2312.08935",
    advantage=value_steps,
    services={"value": "value-model"},
    published={"temperature": 1.0},
)
