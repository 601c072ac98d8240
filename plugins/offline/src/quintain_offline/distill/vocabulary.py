"""Which ids mean the same to a policy and to its teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quintain.errors import UsageError
from quintain.models import PICTURE_TOKENS

LEAST_SHARED = 0.5
"""Share of the policy's ids that a teacher must know by the same meaning, at least."""


@dataclass(frozen=True, kw_only=True)
class SharedVocabulary:
    """The ids that mean the same to policy and teacher.

    Attributes:
        teacher: name of the teacher, for errors.
        known: whether each id of the policy is shared, [V of the policy].
        complete: both have exactly the same ids, so that their distributions can be compared over
            the whole vocabulary.
        unseen: returns why the teacher does not see the pictures in ids, empty if it does; ``None``
            for a model of text.
    """

    teacher: str
    known: Tensor
    complete: bool
    unseen: Callable[[Sequence[int]], str] | None = None

    @classmethod
    def of(
        cls, policy: Any, teacher: Any, *, name: str, policy_size: int, teacher_size: int
    ) -> SharedVocabulary:
        """Compare two tokenizers id by id.

        Args:
            policy, teacher: tokenizers with the transformers tokenizer as ``hf``.
            name: of the teacher.
            policy_size, teacher_size: numbers of logits, which may be more than there are ids.

        Raises:
            UsageError: fewer than `LEAST_SHARED` of the policy's ids mean the same.
        """
        vocabulary, of_teacher = policy.hf.get_vocab(), teacher.hf.get_vocab()
        known = torch.zeros(policy_size, dtype=torch.bool)
        same = [
            i for text, i in vocabulary.items() if of_teacher.get(text) == i and i < teacher_size
        ]
        known[torch.tensor(same, dtype=torch.long)] = True
        if len(same) < LEAST_SHARED * len(vocabulary):
            different = next(
                (
                    f"id {i} is {text!r}"
                    for text, i in sorted(vocabulary.items(), key=lambda x: x[1])
                    if of_teacher.get(text) != i
                ),
                "",
            )
            raise UsageError(
                f"teacher {name}: its tokenizer differs from the policy's: {len(same):,} of "
                f"{len(vocabulary):,} ids mean the same ({different} to the policy alone), and "
                "log-probs of other tokens are no log-probs of these; take a teacher with the "
                "policy's tokenizer, or train on its answers: quintain sft"
            )
        complete = vocabulary == of_teacher and policy_size == teacher_size
        unseen = getattr(teacher, "unseen_pictures", None)
        return cls(teacher=name, known=known, complete=complete, unseen=unseen)

    @property
    def ids(self) -> Tensor | None:
        """The shared ids in order; ``None`` where these are all there are."""
        return None if self.complete else self.known.nonzero()[:, 0]

    def check(self, ids: Sequence[int], name: Any = repr) -> None:
        """Refuse tokens that mean something else to the teacher.

        Args:
            name: what to call an id in the error.

        Raises:
            UsageError: an id is not shared, or is of a picture that the teacher does not see as the
                policy does.
        """
        texts = [i for i in ids if i < PICTURE_TOKENS]
        if len(texts) < len(ids):
            why = "its model reads text alone" if self.unseen is None else self.unseen(ids)
            if why:
                raise UsageError(
                    f"teacher {self.teacher}: a rollout holds a picture, and {why}; take a "
                    "vision-language model with the policy's processor"
                )
        row = torch.tensor(texts, dtype=torch.long)
        if self.complete or bool(self.known[row].all()):
            return
        first = int(row[~self.known[row]][0])
        raise UsageError(
            f"teacher {self.teacher}: the token {name([first])!r} (id {first}) of a rollout is not "
            "in its vocabulary under this id, so that it has no log-prob; take a teacher with the "
            "policy's tokenizer, or keep this token out of prompts and replies"
        )
