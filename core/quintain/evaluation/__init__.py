"""Evaluate an engine on an environment without training.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .answer_controls import AnswerControls as AnswerControls
    from .answer_controls import WrongAnswers as WrongAnswers
    from .answers import Statement as Statement
    from .answers import final_answer as final_answer
    from .answers import stated_answer as stated_answer
    from .answers import word_f1 as word_f1
    from .estimates import proportion as proportion
    from .estimates import rank_correlation as rank_correlation
    from .estimates import wilson as wilson
    from .evaluation import Evaluation as Evaluation
    from .evaluation import TaskResult as TaskResult
    from .evaluation import evaluate as evaluate
    from .evaluation import first_tasks as first_tasks
    from .evaluation import frozen_heap as frozen_heap
    from .evaluation import tasks_of as tasks_of
    from .spelling import CHOICES as CHOICES
    from .spelling import respelled as respelled
    from .spelling import same_but_for_case as same_but_for_case
    from .spelling import without_end as without_end

__getattr__, __dir__ = lazy_names(__name__)
