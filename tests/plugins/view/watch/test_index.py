"""The list of rollouts: filters, search, order, pages, and files that come while one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintain_view.watch.index import Query, RolloutIndex

from .stored import add_many, make_stored


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stored(tmp_path_factory.mktemp("runs"), steps=2)


@pytest.fixture
def index(folder: Path) -> RolloutIndex:
    index = RolloutIndex(folder)
    index.refresh()
    return index


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, 16),
        ({"result": "right"}, 8),
        ({"result": "wrong"}, 6),
        ({"cause": "infrastructure"}, 2),
        ({"step": 2, "result": "right"}, 4),
        ({"environment": "other"}, 0),
        ({"low": 1.0}, 8),
        ({"high": 0.5}, 6),
        ({"text": "INJECTED"}, 10),
        ({"text": "it is 5"}, 8),
        ({"text": 'x "onerror'}, 0),
        ({"text": '="document'}, 10),
    ],
)
def test_filters_select_rollouts(index: RolloutIndex, query: dict[str, Any], expected: int) -> None:
    """Each filter alone and two together; a search reads prompts and messages in any case."""
    assert len(index.found(Query(**query))) == expected


def test_pages_follow_each_other(index: RolloutIndex) -> None:
    """Pages of a list have each rollout once, in the order that was asked for."""
    query = Query(order="highest")

    pages = [index.page(query, offset, 5) for offset in (0, 5, 10, 15)]

    rows = [row for page in pages for row in page["rows"]]
    assert [page["total"] for page in pages] == [16] * 4
    assert len({(row["step"], row["row"]) for row in rows}) == 16
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    assert rewards == sorted(rewards, reverse=True)
    assert rows[-1]["reward"] is None
    assert rows[0]["reply"] == "The answer is 4"


def test_a_rollout_has_its_branches_and_the_texts_of_its_tokens(index: RolloutIndex) -> None:
    """What the page draws: the tree, and each token with source, log-prob, version, advantage."""
    view = index.view(1, 0)

    assert view is not None
    assert view["branches"] == {
        "": [{"parent": -1, "fork": 0, "tokens": 6}, {"parent": 0, "fork": 3, "tokens": 3}]
    }
    assert view["tokens"][4] == (4, 2, -2.3, 2, 1.0)
    assert view["tokens"][7] == (2, 2, -1.0, 2, 1.0)
    assert view["texts"]["4"] == " 4"
    assert index.view(1, 99) is None
    assert index.view(7, 0) is None


def test_new_and_changed_files_are_read(tmp_path: Path) -> None:
    """A step that comes, one that a resumed run writes anew, and one that is deleted."""
    folder = make_stored(tmp_path, steps=1)
    index = RolloutIndex(folder)
    index.refresh()
    assert index.facets()["total"] == 8

    add_many(folder, 100, per_step=50)
    index.refresh()
    assert index.facets() == {
        "environments": ["arithmetic"],
        "causes": {"infrastructure": 1},
        "results": {"right": 12, "wrong": 95, "failed": 1},
        "steps": [1, 1000, 1001],
        "total": 108,
    }

    (folder / "rollouts" / "step-001000.parquet").unlink()
    index.refresh()
    assert [entry.step for entry in index.found(Query(order="oldest"))][8:] == [1001] * 50
