"""Rated replies: which of them train, how, and which weights are served afterwards."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import Environment, Task, reward
from quintain.cli import main
from quintain.engine import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models import LoadedModel, load_model
from quintain.registry.lookup import isolated
from quintain.types.rollout import Rollout
from quintain_gateway.serving import ModelServer
from quintain_gateway.traffic import served_version
from quintain_offline.traffic.records import RatedReply, largest_number, read_traffic, select
from quintain_offline.traffic.rounds import LEAST, Rounds, ServedWeights, worse
from quintain_offline.traffic.training import train

from ....core.models.tiny import save_tiny


def row(n: int, **changes: Any) -> RatedReply:
    about: dict[str, Any] = {
        "id": f"r{n}",
        "choice": 0,
        "owner": f"user{n}",
        "time": float(n),
        "prompt": (5, 6),
        "ids": (7, 8),
        "logps": (-1.0, -1.0),
        "versions": (3, 3),
        "temperature": 1.0,
        "top_p": 1.0,
        "score": 1.0,
        "edit": None,
    }
    return RatedReply(**(about | changes))


def response(n: int, owner: str = "a", replies: int = 1) -> dict[str, Any]:
    reply = {"ids": [7], "logps": [-0.5], "versions": [0], "finish": "stop"}
    about = {"time": 1.0, "temperature": 1.0, "top_p": 1.0, "prompt": [5]}
    return {"id": f"r{n}", "owner": owner, "replies": [reply] * replies, **about}


def rating(n: int, when: float, choice: int = 0, **given: Any) -> dict[str, Any]:
    return {"id": f"r{n}", "choice": choice, "owner": "a", "time": when, **given}


def write(folder: Path, name: str, lines: Iterable[Any]) -> None:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / name).write_text("".join(f"{text}\n" for text in texts))


def test_replies_and_ratings_are_joined_and_the_last_rating_counts(tmp_path: Path) -> None:
    write(tmp_path, "responses.jsonl", [response(1), response(2, replies=2), "damaged"])
    ratings = [
        rating(1, 1.0, label="bad"),
        rating(2, 2.0, choice=1, edit="better"),
        rating(1, 3.0, score=0.75),
        rating(9, 4.0, label="good"),
        rating(2, 5.0, score=7),
    ]
    write(tmp_path, "feedback.jsonl", ratings)
    with open(tmp_path / "feedback.jsonl", "a") as file:
        file.write(json.dumps(rating(2, 6.0, label="good")))  # not ended yet
    found = read_traffic(tmp_path)
    assert [(r.name, r.score, r.edit) for r in found.rated] == [
        ("r2/1", None, "better"),
        ("r1/0", 0.75, None),
    ]
    assert found.replies == 3
    assert found.unreadable == 2
    assert found.unmatched == 1


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--record"):
        read_traffic(tmp_path)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"versions": (1, 3)}, "more than 1 versions old"),
        ({"temperature": 0.0}, "greedy"),
        ({"top_p": 0.9}, "truncated sampling"),
        ({"id": "old"}, "in an earlier round"),
        ({"ids": (), "logps": (), "versions": ()}, "without a token"),
        ({"versions": (4, 4)}, "of weights that were taken back"),
        ({"versions": (3, 4)}, "of weights that were taken back"),
    ],
)
def test_what_ratios_cannot_correct_is_left_out_and_counted(
    changes: dict[str, Any], reason: str
) -> None:
    rows = [row(0, **changes), row(1)]
    chosen = select(rows, lineage=(3, 2, 1, 0), staleness=1, share=1.0, used={"old/0"})
    assert [r.id for r in chosen.rows] == ["r1"]
    assert chosen.left_out == {reason: 1}


def test_an_edited_answer_may_be_of_any_reply() -> None:
    rows = [row(0, score=None, edit="x", versions=(0, 0), temperature=0.0)]
    assert select(rows, lineage=(9,), staleness=1, share=1.0, used=()).rows == tuple(rows)


def test_no_user_has_more_than_his_share() -> None:
    poisoned = [row(n, owner="p", score=0.0) for n in range(60)]
    others = [row(100 + n, owner=f"u{n % 20}") for n in range(40)]
    chosen = select([*poisoned, *others], lineage=(3, 2, 1, 0), staleness=1, share=0.1, used=())
    of_p = [r for r in chosen.rows if r.owner == "p"]
    assert [r.id for r in of_p] == [f"r{n}" for n in range(56, 60)], "the newest"
    assert chosen.left_out == {"over 10% of one user": 56}
    assert len(of_p) / len(chosen.rows) <= 0.1


def test_replies_of_weights_that_were_taken_back_stay_out_after_the_next_weights() -> None:
    """Version 5 was taken back, and 6 was trained from 3: a reply of 3 is one update old."""
    rows = [row(0, versions=(5, 5)), row(1, versions=(3, 3)), row(2, versions=(6, 6))]
    chosen = select(rows, lineage=(6, 3, 0), staleness=1, share=1.0, used=())
    assert [r.id for r in chosen.rows] == ["r1", "r2"]
    assert chosen.left_out == {"of weights that were taken back": 1}


def test_a_user_with_temperatures_of_his_own_has_no_updates_of_his_own() -> None:
    own = [row(n, owner="p", temperature=0.7 + (n + 1) / 1e6) for n in range(6)]
    others = [row(100 + n, owner=f"u{n}", temperature=0.7) for n in range(60)]
    chosen = select([*own, *others], lineage=(3,), staleness=0, share=0.1, used=())
    assert len(chosen.rows) == 60
    assert chosen.left_out == {"at a temperature of few users": 6}
    alone = select(own, lineage=(3,), staleness=0, share=0.1, used=())
    assert len(alone.rows) == 6, "all users there are"


@pytest.mark.parametrize(
    "counts, share, number",
    [
        ([300, *[4] * 20], 0.1, 8),
        ([30000, *[4] * 20], 0.1, 8),
        ([5, 5, 5], 0.1, 5),
        ([100, 2, 2], 0.1, 8),
        ([100, 2], 0.1, 100),
        ([7], 0.1, 7),
        ([9, 1], 1.0, 9),
        ([], 0.1, 1),
    ],
)
def test_nobody_raises_his_number_by_sending_more(
    counts: list[int], share: float, number: int
) -> None:
    assert largest_number(counts, share) == number


def test_a_single_user_is_not_capped() -> None:
    rows = [row(n, owner="a") for n in range(20)]
    assert len(select(rows, lineage=(3, 2, 1, 0), staleness=1, share=0.1, used=()).rows) == 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_tiny(tmp_path_factory.mktemp("tiny"), seed=1))


def trained(folder: Path, rows: list[RatedReply], lr: float = 1e-3) -> tuple[LoadedModel, Any]:
    model = load_model(str(folder))
    _, report = train(model, rows, version=3, lr=lr, batch=64, seed=0)
    return model, report


def logp(model: LoadedModel, ids: tuple[int, ...], after: int) -> float:
    """The summed log-prob of the tokens of *ids* from *after* on."""
    with torch.no_grad():
        logits = model.module(torch.tensor([ids])).logits[0].log_softmax(-1)
    return float(sum(logits[i - 1, ids[i]] for i in range(after, len(ids))))


def test_a_good_reply_gets_likelier_and_a_bad_one_less_likely(folder: Path) -> None:
    before = load_model(str(folder))
    good, bad = (5, 6, 7, 8), (5, 6, 9, 10)
    rows = [row(1, ids=good[2:], score=1.0), row(2, ids=bad[2:], score=0.0)]
    after, report = trained(folder, rows)
    assert logp(after, good, 2) > logp(before, good, 2)
    assert logp(after, bad, 2) < logp(before, bad, 2)
    assert report.mean_score == 0.5
    assert report.scored == 2
    assert report.updates == 1


def test_equal_scores_change_nothing(folder: Path) -> None:
    after, _ = trained(folder, [row(1), row(2, ids=(9, 9))])
    before = load_model(str(folder)).module.state_dict()
    assert all(torch.equal(before[k], v) for k, v in after.module.state_dict().items())


def test_the_ratio_to_the_sampler_is_truncated(folder: Path) -> None:
    """A sampler that gave the tokens far too little counts as one that gave half as much."""
    prox = load_model(str(folder))
    rows = [row(1, ids=(7,), versions=(3,)), row(2, ids=(9,), versions=(3,), score=0.0)]

    def moved(shift: float) -> dict[str, torch.Tensor]:
        shifted = [
            row(
                i,
                ids=r.ids,
                versions=r.versions,
                score=r.score,
                logps=(logp(prox, (5, 6, *r.ids), 2) - shift,),
            )
            for i, r in enumerate(rows)
        ]
        model = load_model(str(folder))
        train(
            model,
            shifted,
            version=3,
            lr=1e-3,
            batch=64,
            seed=0,
            options={"epsilon": 1.0, "max_grad_norm": 0.0},
        )
        return dict(model.module.state_dict())

    cut, far, even = moved(0.6931471805599453), moved(10.0), moved(0.0)
    for name, tensor in cut.items():
        torch.testing.assert_close(far[name], tensor, rtol=0, atol=1e-8)
    assert any(not torch.equal(even[name], tensor) for name, tensor in cut.items())


def test_an_edited_answer_is_imitated(folder: Path) -> None:
    before = load_model(str(folder))
    edit = row(1, score=None, edit="ok")
    after, report = trained(folder, [edit])
    ids = (*edit.prompt, *before.tokenizer.encode("ok"))
    assert logp(after, ids, 2) > logp(before, ids, 2)
    assert report.edited == 1
    assert report.mean_score is None


def test_rounds_accept_reject_and_take_back(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, "base")
    new = ServedWeights(version=rounds.new_version(), model="m1", parent=0)
    rounds.write("accepted", new, trained_from=0, used=["a/0"])
    rounds.write("rejected", rounds.served, used=["b/0"])
    again = Rounds(tmp_path, "base")
    assert again.served == new
    assert again.used == {"a/0", "b/0"}
    assert again.new_version() == 2
    assert served_version(tmp_path) == (1, "m1"), "what a server follows"
    before = again.parent(new)
    assert before is not None
    again.write("taken back", before, taken_back=1)
    assert Rounds(tmp_path, "base").served.model == "base"
    assert served_version(tmp_path) == (0, "base")


def test_a_killed_round_leaves_what_is_served_and_its_folder_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / "models" / "version-1"
    left.mkdir(parents=True)
    (left / "half").touch()
    (tmp_path / "rounds.jsonl").write_text('{"decision": "acc')
    rounds = Rounds(tmp_path, "base")
    assert rounds.served.version == 0
    assert rounds.place(rounds.new_version()) == left
    assert not left.exists()


@pytest.mark.parametrize("now, found", [(0.5, None), (0.2, (0.2, 0.6)), (0.8, None)])
def test_weights_are_worse_by_two_standard_errors(
    now: float, found: tuple[float, float] | None
) -> None:
    def replies(version: int, share: float) -> list[RatedReply]:
        right = round(50 * share)
        return [row(n, versions=(version,), score=float(n < right)) for n in range(50)]

    new, old = ServedWeights(version=1, model="b", parent=0), ServedWeights(version=0, model="a")
    rated = [*replies(1, now), *replies(0, 0.6)]
    assert worse(rated, new, old) == (found and pytest.approx(found))
    assert worse(rated[: LEAST - 1] + rated[50:], new, old) is None, "too few"


@reward
def begins_low(rollout: Rollout) -> float:
    return float(bool(rollout.reply) and rollout.reply[0] < "a")


class Low(Environment[Task, None]):
    reward = begins_low

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"{split} {n}") for n in range(3)]


@pytest.fixture
def plugins() -> Iterator[None]:
    with isolated(keep=["quintain", "quintain-offline"]) as registry:
        registry.add("environment", "low", Low)
        yield


@pytest.mark.usefixtures("plugins")
def test_a_round_of_served_traffic_is_accepted_and_followed(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replies of a real engine are rated by HTTP, trained on, measured and served."""
    import aiohttp

    from quintain import Sampling

    record = tmp_path / "traffic"

    async def serve(follow: bool, requests: int) -> int:
        about = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**6, "models": ["m"]}
        engine = EmbeddedEngine(str(folder), slots=4, reproducible=False)
        sampling = Sampling(max_tokens=4)
        async with (
            engine,
            ModelServer(engine, sampling, record=record, follow=follow, **about) as server,
            aiohttp.ClientSession(headers={"Authorization": "Bearer k"}) as http,
        ):
            for n in range(requests):
                body = {"messages": [{"role": "user", "content": "?"}], "user": f"u{n % 4}"}
                async with http.post(f"{server.base_url}/chat/completions", json=body) as answer:
                    got = await answer.json()
                score = float(n % 2)
                told = {"response_id": got["id"], "score": score}
                async with http.post(f"{server.base_url}/feedback", json=told) as answer:
                    assert answer.status == 200
            return engine.version

    assert asyncio.run(serve(follow=False, requests=8)) == 0
    words = ["traffic", str(record), "--model", str(folder), "--guard", "low", "--least", "8"]
    words += ["--guard-tasks", "2", "--max-tokens", "4", "--json"]
    assert main([*words, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 8
    assert main([*words, "--allowed-fall", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decision"] == "accepted"
    assert told["scored"] == 8
    assert Path(told["model"], "config.json").is_file()
    assert asyncio.run(serve(follow=True, requests=0)) == 1
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["decision"] == "waiting", "each reply trains once"


@pytest.mark.usefixtures("plugins")
def test_a_round_is_refused_when_the_reward_of_the_guard_falls(
    tmp_path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rewards = iter([[0.9, 0.9], [0.8, 0.8]])

    async def measured(*args: Any) -> list[float]:
        return next(rewards)

    monkeypatch.setattr("quintain_offline.traffic.guard.RewardGuard.rewards", measured)
    write(tmp_path, "responses.jsonl", [response(n) for n in range(4)])
    ratings = [rating(n, time.time(), score=n / 3) for n in range(4)]
    write(tmp_path, "feedback.jsonl", ratings)
    words = ["traffic", str(tmp_path), "--model", str(folder), "--guard", "low", "--least", "4"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["decision"] == "rejected"
    assert told["serve"] == 0
    assert not (tmp_path / "models" / "version-1").exists()
    assert served_version(tmp_path) == (0, str(folder))


FAILING = """
from quintain import Environment, Task, reward
from quintain.errors import EnvironmentFault

models = []


@reward
def score(rollout):
    return float(rollout.task.answer == "easy")


class Failing(Environment):
    reward = score

    def __init__(self):
        models.append(self)

    def tasks(self, split):
        for kind in ("easy", "hard", "hard"):
            yield Task(prompt="?", answer=kind)

    async def rollout(self, task, agent):
        if len(models) % 2 == 0 and task.answer == "easy":  # under the new weights alone
            raise EnvironmentFault("a service is away")
        agent.user(task.prompt)
        await agent.turn()
"""


def test_the_guard_compares_the_tasks_that_have_a_reward_on_both_sides(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The easy task fails under the new weights, which are no worse on the others."""
    (tmp_path / "failing.py").write_text(FAILING)
    write(tmp_path, "responses.jsonl", [response(n) for n in range(4)])
    ratings = [rating(n, time.time(), score=n / 3) for n in range(4)]
    write(tmp_path, "feedback.jsonl", ratings)
    words = ["traffic", str(tmp_path), "--model", str(folder), "--least", "4", "--json"]
    guard = ["--guard", f"{tmp_path / 'failing.py'}:Failing", "--max-tokens", "2"]
    assert main([*words, *guard]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["reward_before"], told["reward_after"], told["guard_tasks"]) == (0.0, 0.0, 2)
    assert told["decision"] == "accepted"


@pytest.mark.usefixtures("plugins")
def test_weights_whose_replies_are_rated_lower_are_taken_back(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flood of bad ratings by one user alone takes nothing back."""
    new = ServedWeights(version=1, model="m1", parent=0)
    Rounds(tmp_path, str(folder)).write("accepted", new, trained_from=0)
    words = ["traffic", str(tmp_path), "--model", str(folder), "--guard", "low"]
    words += ["--least", "1000", "--share", "0.1", "--json"]

    def traffic(of_new: list[tuple[str, float]]) -> Any:
        replies = [(0, f"user{n % 20}", float(n % 4 > 0)) for n in range(80)]
        replies += [(1, owner, score) for owner, score in of_new]
        lines = [response(n, owner) for n, (_, owner, _) in enumerate(replies)]
        for line, (version, _, _) in zip(lines, replies, strict=True):
            line["replies"] = [{**line["replies"][0], "versions": [version]}]
        write(tmp_path, "responses.jsonl", lines)
        ratings = [rating(n, float(n), score=score) for n, (_, _, score) in enumerate(replies)]
        write(tmp_path, "feedback.jsonl", ratings)
        assert main(words) == 0
        return json.loads(capsys.readouterr().out)

    good = [(f"user{n % 20}", float(n % 4 > 0)) for n in range(80)]
    assert traffic([*good, *[("poison", 0.0)] * 300])["decision"] == "waiting"
    told = traffic([(owner, 0.25) for owner, _ in good])
    assert told["decision"] == "taken back"
    assert told["serve"] == 0
    assert told["score"] == 0.25
    assert served_version(tmp_path) == (0, str(folder))


def test_a_guard_or_its_absence_has_to_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["traffic", str(tmp_path), "--model", "x"]) != 0
    assert "--no-guard" in capsys.readouterr().err
