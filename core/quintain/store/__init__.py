"""The files of runs: run folders, checkpoints, tables of rollouts.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .best import checkpoint_note as checkpoint_note
    from .checkpoint import save_model as save_model
    from .digests import fault_of as fault_of
    from .rollout_table import read_table as read_table
    from .rollout_table import to_parquet as to_parquet
    from .run_folder import RunFolder as RunFolder
    from .run_folder import as_current_run as as_current_run
    from .run_folder import current_run as current_run
    from .run_folder import is_run as is_run
    from .runs import find_run as find_run
    from .runs import free_name as free_name
    from .runs import model_named as model_named
    from .storage import cache_folder as cache_folder
    from .storage import drop_partial_line as drop_partial_line
    from .storage import lock_owner as lock_owner
    from .storage import plain_data as plain_data
    from .storage import steps_in as steps_in
    from .storage import storage_errors as storage_errors
    from .storage import take_lock as take_lock
    from .storage import write_atomically as write_atomically

__getattr__, __dir__ = lazy_names(__name__)
