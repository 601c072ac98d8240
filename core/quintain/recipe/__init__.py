"""From a recipe to what it names: tables, checks, resolved components.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .check import check_recipe as check_recipe
    from .extends import put as put
    from .memory import MemoryPlan as MemoryPlan
    from .memory import activations as activations
    from .memory import logits_bytes as logits_bytes
    from .memory import memory_of as memory_of
    from .memory import memory_on as memory_on
    from .placement import DeviceRow as DeviceRow
    from .placement import DeviceTask as DeviceTask
    from .placement import placement_of as placement_of
    from .placement import placement_table as placement_table
    from .plan import EvaluationPlan as EvaluationPlan
    from .plan import RunPlan as RunPlan
    from .precision import settled as settled
    from .resolve import EnvironmentSpec as EnvironmentSpec
    from .resolve import engine_kind as engine_kind
    from .resolve import is_model_source as is_model_source
    from .resolve import learner_kind as learner_kind
    from .resolve import names_cluster as names_cluster
    from .resolve import opened_environments as opened_environments
    from .resolve import pinned_recipe as pinned_recipe
    from .resolve import resolve_algorithm as resolve_algorithm
    from .resolve import with_model as with_model
    from .resolve import with_placement as with_placement
    from .rewards import as_expression as as_expression
    from .sources import ModelRequest as ModelRequest
    from .sources import ModelSource as ModelSource
    from .tables import ComponentTable as ComponentTable
    from .tables import EnvironmentTable as EnvironmentTable
    from .tables import Recipe as Recipe
    from .tables import parsed_override as parsed_override

__getattr__, __dir__ = lazy_names(__name__)
