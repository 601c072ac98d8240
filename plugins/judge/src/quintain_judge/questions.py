"""What a judge is asked: about one criterion, a reference, a pair, and the order of several
replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter

from quintain import Message
from quintain.errors import UsageError
from quintain.models import PICTURE

from .prompts import Prompt, listed
from .verdicts import Form, Ranking, SingleLabel

TEXTS = {
    "criterion": ("prompt", "reply", "reference"),
    "reference": ("question", "reference", "answer"),
    "pair": ("prompt", "A", "B"),
}
"""The texts that a template of each kind may show, between delimiters."""
_WORDS = {"criterion": ("criterion",), "reference": (), "pair": ("criteria",)}
_NEEDED = {
    "criterion": {"criterion", "reply"},
    "reference": {"reference", "answer"},
    "pair": {"criteria", "A", "B"},
}


@dataclass(kw_only=True)
class QuestionSettings:
    """What is asked, and how often: settings of a judge service.

    Attributes:
        votes: samples per judge and question (self-consistency); above 1 with a *temperature* above
            0.
        swap: ask about pairs, rankings and references a second time with the labels in the other
            order.
        templates: the user's message by kind of question (``criterion``, ``reference``, ``pair``),
            with fields in braces for the texts; delimiters, rules and the form of the verdict are
            added to it.
    """

    votes: int = 1
    swap: bool = True
    templates: dict[str, str] = field(default_factory=dict)


def checked_templates(templates: Mapping[str, str]) -> None:
    """Refuse a template in which a text that is judged is missing, or shown without its delimiters.

    Raises:
        UsageError: another kind, a field that is unknown, missing or there twice, or a format of a
            field.
    """
    for kind, template in templates.items():
        if kind not in TEXTS:
            raise UsageError(f"judge: templates.{kind}: expected one of {', '.join(TEXTS)}")
        try:
            fields = [
                (name, spec, how)
                for _, name, spec, how in Formatter().parse(template)
                if name is not None
            ]
        except ValueError as e:
            raise UsageError(
                f"judge: templates.{kind} cannot be read ({e}); write {{{{ for a brace"
            ) from e
        names = [name for name, _, _ in fields]
        allowed = (*TEXTS[kind], *_WORDS[kind])
        for name, spec, how in fields:
            if name not in allowed or spec or how or names.count(name) > 1:
                raise UsageError(
                    f"judge: templates.{kind} has the field {{{name}}}; expected each of "
                    f"{', '.join(f'{{{a}}}' for a in allowed)} at most once, without a format"
                )
        if missing := sorted(_NEEDED[kind] - set(names)):
            raise UsageError(
                f"judge: templates.{kind} lacks {', '.join(f'{{{name}}}' for name in missing)}: "
                "the judge would not see what it judges. Delimiters, rules and the form of the "
                "verdict are added around the template"
            )


def criterion_prompt(
    prompt: str | Sequence[Message],
    reply: str,
    criterion: str,
    form: Form,
    *,
    reference: str = "",
    template: str = "",
) -> Prompt:
    """Return how far *reply* meets *criterion*; the judge sees *reference* as one example of a good
    reply, where given.
    """
    example = " A reference shows one good reply; others may be as good." if reference else ""
    return Prompt(
        instruction="You judge how far a reply meets one criterion. Judge this criterion and "
        "nothing else."
        f"{example}\nCriterion: {criterion}",
        texts=(
            ("prompt", text_of(prompt)),
            ("reply", reply),
            *((("reference", reference),) if reference else ()),
        ),
        form=form,
        template=template,
        words={"criterion": criterion},
    )


def reference_prompt(
    question: str | Sequence[Message],
    answer: str,
    reference: str,
    *,
    yes: str,
    no: str,
    template: str = "",
) -> Prompt:
    """Return whether *answer* states what *reference* states: the label *yes* or *no*."""
    return Prompt(
        instruction="You compare an answer with the reference answer of a question. It is right "
        "only if it "
        "states the same thing; another form is fine, a wrong or missing value is not.",
        texts=(("question", text_of(question)), ("reference", reference), ("answer", answer)),
        form=SingleLabel(("A", "B"), f"{yes} if the answer is right, {no} if it is wrong"),
        template=template,
    )


def pair_prompt(
    prompt: str | Sequence[Message],
    first: str,
    second: str,
    criteria: Sequence[str],
    *,
    template: str = "",
) -> Prompt:
    """Return what a judge is asked about two replies, A and B."""
    return Prompt(
        instruction=(
            f"You compare two replies, A and B, to one prompt by these "
            f"criteria:\n{listed(criteria)}"
        ),
        texts=(("prompt", text_of(prompt)), ("A", first), ("B", second)),
        form=SingleLabel(("A", "B", "tie"), "the better reply"),
        template=template,
        words={"criteria": listed(criteria)},
    )


def ranking_prompt(
    prompt: str | Sequence[Message], replies: Mapping[str, str], criteria: Sequence[str]
) -> Prompt:
    """Return the order of *replies*, which are given by label, by *criteria*."""
    return Prompt(
        instruction=f"You rank several replies to one prompt by these criteria:\n{listed(criteria)}",
        texts=(
            ("prompt", text_of(prompt)),
            *((f"reply {label}", reply) for label, reply in replies.items()),
        ),
        form=Ranking(tuple(replies)),
    )


def text_of(prompt: str | Sequence[Message]) -> str:
    """Return a prompt as one text; the roles of several messages are named. Turns of an assistant
    in it have no pictures.
    """
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return prompt[0].content
    contents = [
        m.content.replace(PICTURE, "") if m.role == "assistant" else m.content for m in prompt
    ]
    return "\n\n".join(
        f"({message.role}) {content}" for message, content in zip(prompt, contents, strict=True)
    )
