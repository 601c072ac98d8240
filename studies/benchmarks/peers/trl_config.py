"""What the configurations of TRL's GRPOTrainer have in common: the settings that make its work
equal to ours.
"""

from __future__ import annotations

from typing import Any

from trl import GRPOConfig


def equal_work(*, device: str, group_size: int, lr: float, **settings: Any) -> GRPOConfig:
    """Dr. GRPO without KL term, weight decay, gradient checkpointing, checkpoints and reports, at a
    constant learning rate; *settings* are further fields.
    """
    return GRPOConfig(
        output_dir="/tmp/quintain-benchmark-trl",
        use_cpu=device == "cpu",
        gradient_checkpointing=False,
        num_generations=group_size,
        temperature=1.0,
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="none",
        learning_rate=lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **settings,
    )
