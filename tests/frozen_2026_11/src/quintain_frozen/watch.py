"""Hooks of every run."""

import os
from pathlib import Path


def quintain_on_step_end(event) -> None:
    """Write the number of each step into the file that FROZEN_STEPS names."""
    if name := os.environ.get("FROZEN_STEPS"):
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(f"{event.step} {event.metrics['reward.mean'] >= 0}\n")
