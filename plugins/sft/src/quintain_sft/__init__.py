"""Supervised fine-tuning: `quintain sft` trains a model on demonstrations, on rollouts or on
conversations.

`quintain_sft.sources.source_of` reads the examples, `quintain_sft.tuning.tune` trains on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .base import base_model as base_model
    from .base import base_recipe as base_recipe
    from .base import learner_settings as learner_settings
    from .base import reserved as reserved
    from .demonstrations import demonstrations_of as demonstrations_of
    from .demonstrations import plays as plays
    from .demonstrations import written_demonstrations as written_demonstrations
    from .ending import print_as_json as print_as_json
    from .example import Example as Example
    from .options import training_options as training_options
    from .supervised import encode_conversation as encode_conversation
    from .supervised import end_of_turn as end_of_turn
    from .supervised import supervised_updates as supervised_updates

# The help of commands imports this package, and torch takes seconds.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".base": "base_model base_recipe learner_settings reserved",
        ".demonstrations": "demonstrations_of plays written_demonstrations",
        ".ending": "print_as_json",
        ".example": "Example",
        ".options": "training_options",
        ".supervised": "encode_conversation end_of_turn supervised_updates",
    },
)
