"""Tree search: samplers that branch or search over the steps of an answer, value models of partial
answers, and advantages from trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .advantages import tree_process as tree_process
    from .advantages import tree_steps as tree_steps
    from .advantages import value_steps as value_steps
    from .algorithms import TREE_CREDIT as TREE_CREDIT
    from .algorithms import TREE_RL as TREE_RL
    from .algorithms import VALUE_STEPS as VALUE_STEPS
    from .beam import BeamEngine as BeamEngine
    from .engine import SearchEngine as SearchEngine
    from .fitting import ScoredRow as ScoredRow
    from .fitting import ValueReport as ValueReport
    from .fitting import fit_value as fit_value
    from .fitting import rows_of as rows_of
    from .mcts import MCTSEngine as MCTSEngine
    from .partial import Partial as Partial
    from .steps import StepRule as StepRule
    from .tree import TreeEngine as TreeEngine
    from .value import ValueModel as ValueModel

# The help of commands imports this package, and torch takes seconds.
__getattr__, __dir__ = lazy_names(__name__)
