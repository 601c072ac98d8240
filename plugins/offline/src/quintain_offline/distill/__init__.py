"""Distillation: on the policy's own samples from a teacher, from itself with a hint, and on stored
rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .advantages import reverse_kl as reverse_kl
    from .advantages import reverse_kl_of_learner as reverse_kl_of_learner
    from .advantages import rows_of as rows_of
    from .advantages import teacher_tokens as teacher_tokens
    from .algorithms import GKD as GKD
    from .algorithms import OPD as OPD
    from .algorithms import OPSD as OPSD
    from .models import ModelScorer as ModelScorer
    from .models import ModelTeacher as ModelTeacher
    from .objectives import divergence as divergence
    from .own import SelfTeacher as SelfTeacher
    from .server import ServerScorer as ServerScorer
    from .teacher import Teacher as Teacher
    from .teacher import TeacherRow as TeacherRow
    from .teacher import TeacherScore as TeacherScore
    from .vocabulary import SharedVocabulary as SharedVocabulary

# The help of commands imports this package, and torch takes seconds.
__getattr__, __dir__ = lazy_names(__name__)
