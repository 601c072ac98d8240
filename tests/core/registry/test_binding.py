"""Binding: a signature is read, a recipe's arguments are checked against it, and all faults are
told at once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, Field

from quintain import Environment, Judge, Judgement, Rollout, Service, Task, need, objective, reward
from quintain.errors import BindingError, PluginError, UsageError
from quintain.interfaces.algorithm import KL, Algorithm
from quintain.interfaces.pieces import Piece
from quintain.registry.binding import MISSING, bind, check_args, signature_of, type_name
from quintain_authoring.devtools.docstrings import doc_of, parameter_docs

if TYPE_CHECKING:
    from decimal import Decimal


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Span:
    low: int
    high: int = 9


class Strict(Service):
    async def grade(self, prompt: Any, reply: str, rubric: str) -> Judgement:
        return Judgement(score=1.0)


class Game(Environment[Task, None]):
    """A game.

    Attributes:
        top: the highest number,
            which counts.
        path, mode: where, and how.
    """

    top: int = 100
    ratio: float = 0.5
    path: Path | None = None
    mode: Literal["easy", "hard"] = "easy"
    levels: tuple[int, ...] = ()
    colour: Colour = Colour.RED
    span: Span = Span(low=1)
    referee: Judge = need("judge")

    def tasks(self, split: str) -> Iterable[Task]:
        return ()


class Client(Service):
    def __init__(
        self, url: str, *, retries: int = 3, headers: Mapping[str, str] | None = None
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries is {retries}")
        if retries > 99:
            raise RuntimeError("out of patience")
        self.url, self.retries, self.headers = url, retries, headers


@reward
def kind(
    rollout: Rollout[Task, None], *, rubric: str, weight: float = 1.0, judge: Judge = need()
) -> float:
    """Kindness.

    Args:
        rubric: what counts as kind.
    """
    return weight


def not_empty(name: str) -> str:
    if not name:
        raise UsageError("the name is empty; give one")
    return name


class Named:
    def __init__(self, name: Annotated[str, AfterValidator(not_empty)] = "") -> None:
        self.name = name


JUDGE = {"judge": Strict()}


def test_signature_of_an_environment() -> None:
    """Fields with type and default; services apart."""
    signature = signature_of(Game)
    fields = {f.name: f for f in signature.fields}

    assert list(fields) == ["top", "ratio", "path", "mode", "levels", "colour", "span"]
    assert fields["top"].type is int
    assert fields["top"].default == 100
    docs = {
        "top": "the highest number, which counts.",
        "path": "where, and how.",
        "mode": "where, and how.",
    }
    described = parameter_docs(Game)  # with what every environment has
    assert {name: described.get(name) for name in fields if name in described} == docs
    assert type_name(fields["mode"].type) == "Literal['easy', 'hard']"
    assert [("referee", "judge", Judge)] == [(s.parameter, s.slot, s.type) for s in signature.needs]


def test_signature_of_a_reward() -> None:
    """The rollout is no configuration."""
    signature = signature_of(kind)

    assert [(f.name, f.required) for f in signature.fields] == [("rubric", True), ("weight", False)]
    assert parameter_docs(kind) == {"rubric": "what counts as kind."}
    assert [s.slot for s in signature.needs] == ["judge"]


def test_signature_of_a_class_and_of_a_piece() -> None:
    """A constructor's parameters; a function's keyword-only ones."""

    def terms(t: Any, *, cap: float = 5.0, state: Any = None) -> Any:
        return t

    piece = Piece(kind="objective", name="terms", function=terms)

    assert [f.name for f in signature_of(Client).fields] == ["url", "retries", "headers"]
    assert (
        ["cap"]
        == [f.name for f in signature_of(piece).fields]
        == [f.name for f in signature_of(terms).fields]
    )
    assert bind(piece, {"cap": 2}).args["cap"] == 2.0
    assert bind(terms, {"cap": 2}).keywords == {"cap": 2.0}


def test_plain_data_becomes_what_the_annotation_says() -> None:
    """An int is a float; a list a tuple; text a path or an enum; a table a dataclass."""
    args = {
        "top": 3,
        "ratio": 1,
        "path": "a/b",
        "levels": [1, 2],
        "colour": "red",
        "span": {"low": 4},
    }

    game = bind(Game, args, JUDGE)

    assert game.top == 3
    assert game.ratio == 1.0
    assert Path("a/b") == game.path
    assert game.levels == (1, 2)
    assert isinstance(game.ratio, float)
    assert game.colour == Colour.RED
    assert Span(low=4) == game.span
    assert game.referee is JUDGE["judge"]


@pytest.mark.parametrize(
    "args, message",
    [
        ({"top": "3"}, "environment 'game': top is '3'; expected int"),
        ({"top": 3.5}, "top is 3.5; expected int"),
        ({"top": True}, "top is True; expected int"),
        ({"ratio": "0.5"}, "ratio is '0.5'; expected float"),
        ({"mode": "medium"}, "expected Literal['easy', 'hard']"),
        ({"levels": [1, "2"]}, "levels.1 is '2'"),
        ({"span": {"low": 1, "high": "x"}}, "span.high is 'x'"),
        ({"tpo": 3}, "environment 'game' has no argument 'tpo'; did you mean 'top'?"),
        (
            {"referee": "me"},
            "'referee' is a service, not an argument; configure it under [services.judge]",
        ),
    ],
)
def test_wrong_arguments(args: dict[str, Any], message: str) -> None:
    """Each fault names the component, the argument, what came and what was expected."""
    with pytest.raises(BindingError) as e:
        bind(Game, args, JUDGE, who="environment 'game'")

    assert message in str(e.value)


def test_a_validator_of_an_annotation_also_judges_the_default() -> None:
    """Its own message stands, without pydantic's."""
    for args in ({}, {"name": ""}):
        with pytest.raises(BindingError) as e:
            check_args(Named, args, who="named")
        assert str(e.value) == "named: the name is empty; give one"
    assert bind(Named, {"name": "x"}).name == "x"


def test_all_faults_at_once() -> None:
    """Three mistakes are three lines."""
    with pytest.raises(BindingError) as e:
        bind(Game, {"top": "3", "rato": 1}, {}, who="environment 'game'")

    assert len(str(e.value).splitlines()) == 3


def test_missing_argument_and_service() -> None:
    """What must be given is asked for by name and type; an empty slot shows the lines to add."""
    with pytest.raises(BindingError, match="needs the argument 'url' \\(str\\)"):
        bind(Client, {})
    with pytest.raises(
        BindingError,
        match=r"needs a service 'judge' \(Judge\); add to the recipe: \[services.judge\]",
    ):
        bind(Game, {}, {}, who="environment 'game'")
    with pytest.raises(BindingError, match=r"\[services.judge\] is a int; expected Judge"):
        bind(Game, {}, {"judge": 3})


def test_reward_is_configured_and_its_slots_are_checked() -> None:
    """A reward's services reach it when it scores; that they exist is known before."""
    configured = bind(kind, {"rubric": "polite", "weight": 2}, JUDGE)

    assert dict(configured.config) == {"rubric": "polite", "weight": 2.0}
    assert list(configured.needs) == ["judge"]
    with pytest.raises(BindingError, match="needs a service 'judge'"):
        bind(kind, {"rubric": "polite"}, {})
    assert bind(kind, {"rubric": "polite"}, None)


def test_errors_of_the_component_itself() -> None:
    """A value it refuses is the user's to fix; anything else is the plugin's fault, with the cause
    chained.
    """
    with pytest.raises(BindingError, match="client: retries is -1"):
        bind(Client, {"url": "x", "retries": -1}, who="client")
    with pytest.raises(PluginError, match="RuntimeError: out of patience") as e:
        bind(Client, {"url": "x", "retries": 100}, who="client")
    assert isinstance(e.value.__cause__, RuntimeError)


def test_open_components_take_any_keyword() -> None:
    """`**options` is an invitation."""

    class Open:
        def __init__(self, known: int = 1, **options: Any) -> None:
            self.options = options

    assert bind(Open, {"known": 2, "other": "x"}).options == {"other": "x"}
    assert signature_of(Open).open


def test_annotation_for_type_checkers_alone_is_the_plugins_fault() -> None:
    """What cannot be checked is not passed unchecked."""

    class Hidden:
        def __init__(self, price: Decimal | None = None, plain: int = 1) -> None: ...

    assert bind(Hidden, {"plain": 2})
    assert type_name(signature_of(Hidden).fields[0].type) == "Decimal | None"
    assert type_name(Annotated[tuple[int, ...], Field(min_length=1)]) == "tuple[int, ...]"
    assert type_name(Optional[Annotated[int, Field(gt=0)]]) == "Optional[int]"  # noqa: UP045
    with pytest.raises(PluginError, match="import its names outside"):
        bind(Hidden, {"price": 3})


def test_objects_from_python_pass_where_they_fit() -> None:
    """A live object is checked by its class."""

    class Holder:
        def __init__(self, service: Client) -> None:
            self.service = service

    client = Client("x")
    Holder.__init__.__annotations__["service"] = Client

    assert client is bind(Holder, {"service": client}).service
    with pytest.raises(BindingError, match="expected Client"):
        bind(Holder, {"service": object()})


def test_unannotated_parameters_are_not_checked() -> None:
    """No annotation, no check."""

    class Loose:
        def __init__(self, anything=None) -> None:  # type: ignore[no-untyped-def]
            self.anything = anything

    assert bind(Loose, {"anything": [1, "x"]}).anything == [1, "x"]
    assert signature_of(Loose).fields[0].type is MISSING


def test_algorithms_become_variants() -> None:
    """An algorithm's settings are its fields, and its own checks speak."""
    algorithm = an_algorithm()
    fields = {f.name: f for f in signature_of(algorithm).fields}

    assert {"objective", "epochs", "kl"} <= set(fields)
    assert {"name", "summary", "source"}.isdisjoint(fields)
    assert bind(algorithm, {"epochs": 2}).epochs == 2
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        bind(algorithm, {"epoch": 2})
    with pytest.raises(BindingError):
        bind(algorithm, {"epochs": "2"})


def _clipped(t: Any, *, low: float = 0.2, high: float = 0.2, sides: tuple[str, ...] = ()) -> Any:
    return t


@pytest.mark.parametrize(
    "args, message",
    [
        ({"epochs": 1.5}, "algorithm 'r': epochs is 1.5; expected int"),
        ({"epochs": "3"}, "algorithm 'r': epochs is '3'; expected int"),
        ({"epochs": True}, "algorithm 'r': epochs is True; expected int"),
        ({"ratio_to": "nu"}, "algorithm 'r': ratio_to is 'nu'; expected Literal['mu', 'prox']"),
        ({"kl": {"coefficient": "a"}}, "algorithm 'r', kl: coefficient is 'a'; expected float"),
        ({"kl": {"score_factor": "no"}}, "algorithm 'r', kl: score_factor is 'no'; expected bool"),
        (
            {"kl": {"coeficient": 1}},
            "algorithm 'r', kl has no argument 'coeficient'; did you mean 'coefficient'?",
        ),
        ({"kl": 0.1}, "algorithm 'r': kl is 0.1; expected a table"),
        (
            {"objective": {"low": "x"}},
            "algorithm 'r', objective.clipped: low is 'x'; expected float",
        ),
        (
            {"objective": {"use": 3}},
            "algorithm 'r': objective is {'use': 3}; expected a name, or a table",
        ),
        ({"objective": 3}, "algorithm 'r': objective is 3; expected a name, or a table"),
    ],
)
def test_arguments_of_an_algorithm_are_checked(args: dict[str, Any], message: str) -> None:
    algorithm = an_algorithm().replace(
        objective=Piece(kind="objective", name="clipped", function=_clipped)
    )
    for check in (bind, check_args):
        with pytest.raises(BindingError) as e:
            check(algorithm, args, who="algorithm 'r'")
        assert message in str(e.value)
        assert "\n" not in str(e.value)


def test_pieces_of_an_algorithm_take_plain_data() -> None:
    algorithm = an_algorithm().replace(
        objective=Piece(kind="objective", name="clipped", function=_clipped)
    )
    bound = bind(
        algorithm,
        {"objective": {"low": 1, "sides": ["a"]}, "kl": {"where": "loss", "estimator": "k2"}},
    )
    assert bound.objective.args == {"low": 1.0, "sides": ("a",)}
    assert bound.kl.estimator == "k2"
    assert {f.name: f.default for f in signature_of(bound.objective).fields}["low"] == 1.0


def test_a_check_makes_nothing() -> None:
    check_args(Client, {"url": "x", "retries": 100})
    check_args(Game, {})
    with pytest.raises(BindingError, match="top is 'x'"):
        check_args(Game, {"top": "x"}, who="environment 'game'")


def an_algorithm() -> Algorithm:
    pieces: dict[str, Any] = {
        k: Piece(kind=k, name="none", function=len)
        for k in ("advantage", "correction", "aggregation", "group_filter")
    }
    return Algorithm(
        name="r",
        summary="s",
        source="",
        objective=Piece(kind="objective", name="o", function=len),
        kl=KL(),
        **pieces,
    )


def test_documentation_sections() -> None:
    """Google-style sections are read, several names to a line, text over several lines."""
    doc = """Title.

    Args:
        a: one
            line more.
        b, `c`: two: with colon.

    Raises:
        d: not a parameter.
    """

    assert parameter_docs(doc) == {
        "a": "one line more.",
        "b": "two: with colon.",
        "c": "two: with colon.",
    }


@pytest.mark.parametrize(
    "annotation, text",
    [
        (int, "int"),
        (int | None, "int | None"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Sequence[Game], "Sequence[Game]"),
        (dict[str, Path], "dict[str, Path]"),
        (MISSING, "any"),
        ("Later", "Later"),
    ],
)
def test_type_names(annotation: Any, text: str) -> None:
    """Types are shown as a person writes them."""
    assert text == type_name(annotation)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from([f.name for f in signature_of(Game).fields]), PLAIN)
def test_any_plain_value_fits_or_is_refused(name: str, value: Any) -> None:
    """Whatever a recipe says, binding gives the right types or a BindingError that names the
    argument.
    """
    try:
        game = bind(Game, {name: value}, JUDGE)
    except BindingError as e:
        assert name in str(e)
        return

    assert isinstance(game.top, int)
    assert not isinstance(game.top, bool)
    assert isinstance(game.ratio, float)
    assert isinstance(game.levels, tuple)
    assert game.mode in ("easy", "hard")


def test_decorated_piece_binds() -> None:
    """`@objective` functions are components."""

    @objective(name="binding_test_piece")
    def piece(t: Any, *, cap: float = 5.0) -> Any:
        """Capped."""
        return t

    assert "Capped." == doc_of(piece) == doc_of(piece.configure(cap=1.0))
    assert dict(bind(piece, {"cap": 1}).args) == {"cap": 1.0}


def test_private_parameters_are_not_configuration() -> None:
    """A leading underscore keeps a parameter out of recipes."""

    class Private:
        def __init__(self, size: int = 1, _live: object = None) -> None: ...

    assert [f.name for f in signature_of(Private).fields] == ["size"]
    with pytest.raises(BindingError, match="no argument '_live'"):
        bind(Private, {"_live": 1})
