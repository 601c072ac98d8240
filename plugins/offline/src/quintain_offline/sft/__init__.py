"""Supervised fine-tuning: `quintain sft` trains a model on demonstrations, on rollouts or on
conversations.

`quintain_offline.sft.sources.source_of` reads the examples, `quintain_offline.sft.tuning.tune` trains on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .base import base_model as base_model
    from .demonstrations import demonstrations_of as demonstrations_of
    from .demonstrations import plays as plays
    from .demonstrations import written_demonstrations as written_demonstrations
    from .example import Example as Example
    from .options import TrainingOptions as TrainingOptions
    from .options import show_update as show_update
    from .options import training_options as training_options
    from .place import save as save
    from .report import TuningReport as TuningReport
    from .sources import ExampleSource as ExampleSource
    from .sources import Selection as Selection
    from .sources import fit_rows as fit_rows
    from .sources import source_of as source_of
    from .supervised import WARMUP as WARMUP
    from .supervised import EpochUpdate as EpochUpdate
    from .supervised import by_epoch as by_epoch
    from .supervised import encode_conversation as encode_conversation
    from .supervised import end_of_turn as end_of_turn
    from .supervised import losses_of as losses_of
    from .supervised import orders as orders

# The help of commands imports this package, and torch takes seconds.
__getattr__, __dir__ = lazy_names(__name__)
