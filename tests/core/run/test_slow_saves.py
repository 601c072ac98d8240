"""A learner that writes its checkpoints while the run goes on, and cannot finish one of old weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from quintain.interfaces.learner import PARTS
from quintain.learning import Learner
from quintain.store.checkpoint import steps_in
from quintain.store.run_folder import RunFolder

from ...integration.test_run_plan import recipe, run
from ..models.tiny import save_tiny


class SavesSlowly(Learner):
    """Is never done with a save before it is waited for. Once the weights have changed, what it has
    not finished is lost, as with a rank that is lost in the update.
    """

    name = "saves-slowly"
    saves_parts = True
    digests: Mapping[str, str] = {}

    def part_bytes(self) -> int:
        return 0

    def begin_save(self, folder: Path) -> dict[str, Any]:
        (folder / PARTS).mkdir(parents=True)
        (folder / PARTS / "part").write_text("of a rank")
        self._saving = self.version
        return {"rest": 1}

    def end_save(self, *, wait: bool) -> Literal["writing", "complete", "lost"]:
        if self._saving != self.version:
            return "lost"
        return "complete" if wait else "writing"

    def load_parts(self, folder: Path, state: Mapping[str, Any]) -> None:
        pass


@pytest.mark.keeps("sync")
@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("schedule", ["sync", "one_step_off"])
def test_a_checkpoint_is_complete_before_the_weights_change(schedule: str, tmp_path: Path) -> None:
    told = recipe(
        save_tiny(tmp_path / "model", context=256),
        {},
        run={"steps": 3},
        schedule={"use": schedule},
        learner={"use": f"{__name__}:SavesSlowly", "lr": 3e-3},
        evaluation={"every": 0, "test": {"tasks": 0}},
        checkpoint={"every": 1, "keep": 10},
    )
    run(tmp_path / "run", told)
    saved = steps_in(RunFolder(tmp_path / "run", lock=False).checkpoints)
    assert [step for step, _ in saved] == [1, 2, 3]
