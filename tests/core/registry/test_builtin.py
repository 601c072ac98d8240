"""What the workspace itself declares: each component loads, has a signature, and is documented."""

from __future__ import annotations

import inspect

import pytest

from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.engine import Engine
from quintain.interfaces.environment import Environment
from quintain.interfaces.pieces import Piece
from quintain.interfaces.reward import Reward
from quintain.interfaces.service import Service
from quintain.registry.binding import signature_of
from quintain.registry.discovery import Component, discover
from quintain.registry.lookup import Registry
from quintain_authoring.devtools.docstrings import doc_of

DISTRIBUTIONS = (
    "quintain",
    "quintain-algorithms",
    "quintain-env-math",
    "quintain-rewards",
    "quintain-engines",
    "quintain-rewards",
)
OURS = [c for c in discover() if c.distribution in DISTRIBUTIONS]
KINDS = {"environment": Environment, "engine": Engine, "service": Service}
INSTANCES = {"reward": (Reward,), "algorithm": (Algorithm, Piece)}


@pytest.mark.parametrize("component", OURS, ids=lambda c: c.id)
def test_component_loads_and_is_what_it_says(component: Component) -> None:
    """Its kind is right, each public parameter has an annotation that means something, and it has a
    docstring.
    """
    registry = Registry([component])
    loaded = registry.load(component.kind, component.name)
    signature = signature_of(loaded)

    if component.kind in KINDS:
        assert issubclass(loaded, KINDS[component.kind])
    if component.kind in INSTANCES:
        assert isinstance(loaded, INSTANCES[component.kind])
    assert not [
        f.name
        for f in signature.fields
        if isinstance(f.type, str) or f.type is inspect.Parameter.empty
    ]
    assert doc_of(loaded)


@pytest.mark.parametrize("component", OURS, ids=lambda c: c.id)
def test_component_is_in_its_manifest(component: Component) -> None:
    """A listing has a line to say of it."""
    entry = Registry([component]).entry(component)

    assert entry is not None
    assert entry.summary.endswith(".")
