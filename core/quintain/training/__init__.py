"""A training run: recipe, loop, run folder, metrics.

The names below are what plugins may import from here; each module is imported when one of its names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from ..interfaces.environment import yielded as yielded
    from ..models.tool_calls import parse as parse
    from ..rollouts.chat.bridge import Conversation as Conversation
    from ..rollouts.chat.bridge import stops as stops
    from ..rollouts.chat.thinking_budget import cut_where_stopped as cut_where_stopped
    from ..rollouts.runner import RolloutContext as RolloutContext
    from ..rollouts.runner import RolloutRequest as RolloutRequest
    from ..rollouts.runner import run_groups as run_groups
    from ..services.manager import BY_OPTION as BY_OPTION
    from ..services.manager import Choice as Choice
    from ..services.manager import opened as opened
    from ..types.rollout import SCORE_TOLERANCE as SCORE_TOLERANCE
    from ..types.rollout import reaches as reaches
    from ..types.sampling import derived_seed as derived_seed
    from ..types.task import messages_of as messages_of
    from .build import embedded_engine as embedded_engine
    from .build import learner_options as learner_options
    from .build import run_training as run_training
    from .build import seed_everything as seed_everything
    from .check import check_recipe as check_recipe
    from .checkpoint import save_model as save_model
    from .hooks import Hooks as Hooks
    from .interrupts import run_stoppable as run_stoppable
    from .interrupts import stop_on_signal as stop_on_signal
    from .metrics import TRAINING as TRAINING
    from .metrics import alert_intervals as alert_intervals
    from .metrics import distinct as distinct
    from .metrics import failures_in as failures_in
    from .metrics import success_of as success_of
    from .metrics import times as times
    from .recipe.load import BUNDLED as BUNDLED
    from .recipe.load import bundled as bundled
    from .recipe.load import label as label
    from .recipe.tables import EnvironmentTable as EnvironmentTable
    from .recipe.tables import Recipe as Recipe
    from .recipe.tables import override as override
    from .resolve import chosen as chosen
    from .resolve import is_model_source as is_model_source
    from .resolve import opened_environments as opened_environments
    from .resolve import pinned as pinned
    from .resolve import resolve_algorithm as resolve_algorithm
    from .resolve import resolve_environment_table as resolve_environment_table
    from .run import Run as Run
    from .run_folder import RunFolder as RunFolder
    from .runs import find_run as find_run
    from .runs import free_name as free_name
    from .runs import model_named as model_named
    from .schedule import EpisodeOrder as EpisodeOrder
    from .schedule import Schedule as Schedule
    from .screen import Screen as Screen
    from .screen import clock as clock
    from .screen import for_terminal as for_terminal
    from .screen import printable as printable
    from .screen import program as program
    from .sources import ModelRequest as ModelRequest
    from .sources import ModelSource as ModelSource
    from .sources import model_source as model_source
    from .storage import lock_owner as lock_owner
    from .storage import plain as plain
    from .storage import steps_in as steps_in
    from .storage import storing as storing
    from .storage import take_lock as take_lock
    from .storage import write_atomically as write_atomically
    from .tasks import WINDOW as WINDOW
    from .tasks import Curriculum as Curriculum
    from .tasks import Pick as Pick
    from .tasks import TaskReader as TaskReader
    from .tasks import TaskStream as TaskStream
    from .tasks import shuffled as shuffled

__getattr__, __dir__ = lazy_names(__name__)
