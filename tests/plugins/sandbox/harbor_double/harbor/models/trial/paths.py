from dataclasses import dataclass
from pathlib import Path


@dataclass
class TrialPaths:
    trial_dir: Path

    def mkdir(self):
        self.trial_dir.mkdir(parents=True)
