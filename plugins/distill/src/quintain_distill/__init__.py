"""Distillation: on the policy's own samples from a teacher, from itself with a hint, and on stored
rollouts.
"""

from __future__ import annotations

from .advantages import reverse_kl, reverse_kl_of_learner, rows_of, teacher_tokens
from .algorithms import GKD, OPD, OPSD
from .models import ModelScorer, ModelTeacher
from .objectives import divergence
from .own import SelfTeacher
from .server import ServerScorer
from .teacher import Row, Teacher, TeacherScore
from .vocabulary import SharedVocabulary

__all__ = [
    "GKD",
    "OPD",
    "OPSD",
    "ModelScorer",
    "ModelTeacher",
    "Row",
    "SelfTeacher",
    "ServerScorer",
    "SharedVocabulary",
    "Teacher",
    "TeacherScore",
    "divergence",
    "reverse_kl",
    "reverse_kl_of_learner",
    "rows_of",
    "teacher_tokens",
]
