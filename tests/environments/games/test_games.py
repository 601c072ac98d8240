"""The rules of the multi-turn worlds: what is a move, what it changes, and what it is worth."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from quintain import Message, Reply, Rollout, Sampling, Task
from quintain.engine import EmbeddedEngine
from quintain.errors import UsageError
from quintain.testing import rollout
from quintain_authoring import ScriptedEngine, run_episode
from quintain_env_games import Customer, Duel, Frozen, Guess, Maze, Opponent, Returns, Tools
from quintain_env_games.calculator import calculate
from quintain_env_games.customers import brief
from quintain_env_games.duel import best, legal, moved, view
from quintain_env_games.guess import Guesses, Secret, guess_of, imbalance, turns_saved
from quintain_env_games.maze import Labyrinth, after, move_of
from quintain_env_games.returns import booking_of
from quintain_env_games.splits import problems, split_of
from quintain_env_games.tools import Store, call
from quintain_starter.source import untrained

from ...core.models.tiny import save_tiny

SMALL = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64}


# ---- guess ---------------------------------------------------------------------------------------

SECRET = Secret(prompt="", answer=7, low=1, high=15, tries=4)


@pytest.mark.parametrize(
    ("reply", "guess"),
    [
        ("7", 7),
        ("12-19: 15.", 15),
        ("3.5", None),
        ("1.5 or 2", 2),
        ("", None),
        ("-4", 4),
        ("9" * 12, None),
        ("a1b2", 2),
    ],
)
def test_the_guess_is_the_last_whole_number(reply: str, guess: int | None) -> None:
    assert guess == guess_of(reply)


@pytest.mark.parametrize(
    ("replies", "guesses", "outcome"),
    [
        (["8", "4", "6", "7"], (8, 4, 6, 7), 1),
        (["8", "4", "6", "5"], (8, 4, 6, 5), 0),
        (["what?", "7"], (None, 7), 1),
        (["8", "8", "8", "8", "7"], (8, 8, 8, 8), 0),
    ],
)
def test_hints_and_tries(
    replies: list[str], guesses: tuple[int | None, ...], outcome: float
) -> None:
    """A wrong guess gets a hint, text without a number a request; after the last try nothing
    counts.
    """
    played = run_episode(Guess(), SECRET, replies)
    assert guesses == played.result.guesses
    assert outcome == played.outcome.total
    hints = {
        8: "lower: 1 to 7",
        4: "higher: 5 to 7",
        6: "higher: 7 to 7",
        None: "Say a number: 1 to 15",
    }
    said = [m.content for m in played.messages if m.role == "user"][1:]
    assert [hints[g] for g in guesses[:-1]] == said
    terse = run_episode(Guess(remind=False), SECRET, replies)
    said = [m.content for m in terse.messages if m.role == "user"][1:]
    assert [hints[g].partition(":")[0] for g in guesses[:-1]] == said


def test_halving_finds_every_number_in_time() -> None:
    environment = Guess()
    for low, high in [(1, 15), (10, 25), (3, 3), (20, 50)]:
        for answer in range(low, high + 1):
            task = Secret(
                prompt="", answer=answer, low=low, high=high, tries=(high - low + 1).bit_length()
            )
            assert run_episode(
                environment, task, played_by(environment, "oracle", task)
            ).result.found


def test_each_turn_is_scored_by_how_well_it_halves() -> None:
    """Of 15 numbers 8 halves, then of 7 numbers 1 excludes one of four; what the hints exclude gets
    the least.
    """
    guesses = Guesses(found=True, guesses=(8, 1, 9, None, 7))
    task = Secret(prompt="", answer=7, low=1, high=15, tries=5)
    played: Rollout[Secret, Guesses] = rollout(task, "8", "1", "9", "?", "7", result=guesses)
    assert pytest.approx((0.0, -0.15, -0.2, -0.2, -0.2 * 2 / 3)) == imbalance.score(played).turns
    assert turns_saved.score(played).total == 0
    early: Rollout[Secret, Guesses] = rollout(SECRET, "7", result=Guesses(found=True, guesses=(7,)))
    assert turns_saved.score(early).total == 0.75


# ---- maze ----------------------------------------------------------------------------------------

ROOMS = Labyrinth(
    prompt="?", width=2, open=("S", "S", "NE", "NW"), start=(0, 0), goal=(1, 0), moves=4
)
"""Down, right, up: the straight way is a wall."""


@pytest.mark.parametrize(
    ("reply", "move"),
    [
        ("S", "S"),
        ("go west", "W"),
        ("N, then E.", "E"),
        ("NE", ""),
        ("", ""),
        ("so south-east", "E"),
    ],
)
def test_the_move_is_the_last_direction(reply: str, move: str) -> None:
    assert move == move_of(reply)


@pytest.mark.parametrize(
    ("replies", "cells", "bumps"),
    [
        (["S", "E", "N"], ((0, 0), (0, 1), (1, 1), (1, 0)), 0),
        (["E", "S", "E", "N"], ((0, 0), (0, 0), (0, 1), (1, 1), (1, 0)), 1),
        (["E", "?", "S", "E", "N"], ((0, 0), (0, 0), (0, 0), (0, 1), (1, 1)), 2),
    ],
)
def test_walls_and_words_cost_a_move(
    replies: list[str], cells: tuple[tuple[int, int], ...], bumps: int
) -> None:
    played = run_episode(Maze(), ROOMS, replies)
    assert cells == played.result.cells
    assert bumps == played.result.bumps
    assert played.outcome.total == float(cells[-1] == ROOMS.goal)
    distance = {(0, 0): 3, (0, 1): 2, (1, 1): 1, (1, 0): 0}
    assert played.shaping.total == pytest.approx(0.5 * (1 - distance[cells[-1]] / 3))
    assert len(played.shaping.turns) == len(cells) - 1


def test_mazes_are_whole_and_walls_have_two_sides() -> None:
    """Every cell is reached, every way leads back, and the view tells what is open."""
    for width in (2, 4, 7):
        for task in islice(Maze(width=width).tasks("train"), 20):
            assert len(task.distances()) == width * width
            for cell in task.distances():
                for way in task.ways(cell):
                    back = {"N": "S", "E": "W", "S": "N", "W": "E"}[way]
                    assert back in task.ways(after(cell, way))
            assert task.view(task.start) in task.prompt
            assert task.moves == task.level + 2


# ---- duel ----------------------------------------------------------------------------------------


def duel(
    replies: Any, *, second: Any = "", rival: str = "self", piles: tuple[int, int] = (3, 5)
) -> Any:
    environment = Duel(opponent=Opponent())
    task = next(t for t in environment.tasks("dev"))
    task = type(task)(prompt=view(piles), piles=piles, rival=rival)
    return run_episode(
        environment, task, ScriptedEngine(replies=replies, players={"second": second})
    )


@pytest.mark.parametrize(
    ("reply", "piles"),
    [
        ("B 3", (3, 3)),
        ("I leave A 0", (0, 5)),
        ("A 1, no: B 2", (3, 2)),
        ("A 3", None),
        ("B 6", None),
        ("C 1", None),
        ("a 1", None),
        ("", None),
        ("A -1", None),
    ],
)
def test_a_move_makes_one_pile_smaller(reply: str, piles: tuple[int, int] | None) -> None:
    assert piles == moved((3, 5), reply)


def test_self_play_scores_both_sides() -> None:
    """The winner gets 1, the other 0; both are recorded, each with its own conversation."""
    played = duel(["B 3", "A 0"], second=["A 0", "?"], piles=(3, 5))
    assert played.result.piles == ((3, 5), (3, 3), (0, 3))
    assert played.result.winner == 1, "A 0 again is not legal"
    assert played.result.illegal is True, "A 0 again is not legal"
    assert played.outcome.of_player("") == 0.0
    assert played.outcome.of_player("second") == 1.0
    assert {"", "second"} == set(played.transcripts)

    won = duel(["B 3", "B 0"], second="A 0")
    assert won.result.winner == 0
    assert won.result.illegal is False
    assert won.outcome.of_player("") == 1.0
    assert won.outcome.of_player("second") == 0.0


def test_an_illegal_move_loses_for_either_side() -> None:
    """It is a scored loss: the other side of self-play has won, and no error masks the game."""
    first, second = duel("pass"), duel("B 3", second="pass")
    assert [first.outcome.of_player(p) for p in ("", "second")] == [0.0, 1.0]
    assert [second.outcome.of_player(p) for p in ("", "second")] == [1.0, 0.0]
    assert first.valid
    assert second.valid
    assert first.result.illegal
    assert second.result.illegal


def test_the_engine_is_no_part_of_the_policy() -> None:
    """Against the engine only one side is recorded and scored; a script that never errs punishes a
    mistake.
    """
    played = duel(["B 4", "A 0"], rival="engine")
    assert {""} == set(played.transcripts)
    assert not played.outcome.players
    assert played.result.piles[:3] == ((3, 5), (3, 4), (3, 3))
    assert played.outcome.total == 0


def test_equal_piles_win_against_every_answer() -> None:
    """The best move is proved by search: from different piles it leaves only positions that
    lose.
    """
    losing: dict[tuple[int, int], bool] = {(0, 0): True}
    for total in range(1, 17):
        for a in range(total + 1):
            piles = (a, total - a)
            losing[piles] = not any(losing[moved(piles, m) or (0, 0)] for m in legal(piles))
    for piles, loses in losing.items():
        assert loses == (piles[0] == piles[1])
        if not loses:
            assert losing[moved(piles, best(piles)) or (-1, -1)]
        if piles != (0, 0):
            assert best(piles) in legal(piles)


def test_tasks_name_the_rival_by_split() -> None:
    """Held-out games are against the engine, whatever `train` is; piles in the other order are no
    new ones.
    """
    for rival in ("self", "engine"):
        environment = Duel(rival=rival, opponent=None)
        assert {rival} == {t.rival for t in islice(environment.tasks("train"), 20)}
        assert {"engine"} == {t.rival for t in environment.tasks("dev")}
    piles = {
        s: {tuple(sorted(t.piles)) for t in islice(environment.tasks(s), 500)}
        for s in ("train", "dev", "test")
    }
    assert not piles["train"] & piles["dev"]
    assert not piles["dev"] & piles["test"]
    assert not piles["train"] & piles["test"]


def test_skill_is_the_share_of_perfect_moves() -> None:
    async def moves(skill: float, piles: tuple[int, int] = (3, 9)) -> list[str]:
        opponent, messages = Opponent(skill=skill), [Message("user", view(piles))]
        return [
            (await opponent.reply(messages, (), Sampling(seed=seed))).text for seed in range(200)
        ]

    assert {"B 3"} == set(asyncio.run(moves(1.0)))
    some = asyncio.run(moves(0.5))
    assert some == asyncio.run(moves(0.5))
    assert 0.4 < some.count("B 3") / 200 < 0.7
    assert all(move in legal((3, 9)) for move in some)
    lost = asyncio.run(moves(1.0, (3, 3)))
    assert set(legal((3, 3))) == set(lost), "where every move loses, any is made"
    with pytest.raises(UsageError, match="a share"):
        Opponent(skill=2)


@pytest.mark.more
def test_a_checkpoint_plays_the_second_side(tmp_path: Path) -> None:
    """The frozen model samples what its own engine samples, is not recorded, and refuses new
    weights.
    """
    folder = save_tiny(tmp_path, context=256)

    async def game() -> Any:
        async with Frozen(model=str(folder)) as frozen:
            engine = EmbeddedEngine(folder, slots=4)
            async with engine:
                ids = frozen.tokenizer.encode("A 3, B 5")
                sampling = Sampling(max_tokens=8, seed=3)
                one, other = await frozen.sample(ids, sampling), await engine.sample(ids, sampling)
            with pytest.raises(UsageError, match="keeps its weights"):
                await frozen.update(None)  # type: ignore[arg-type]
            return one, other

    one, other = asyncio.run(game())
    assert one.ids == other.ids
    with pytest.raises(UsageError, match="at least 1"):
        Frozen(model="x", slots=0)


# ---- returns -------------------------------------------------------------------------------------


def asked(*questions: str, wish: str = "exchange", colour: str = "red") -> list[str]:
    async def answers() -> list[str]:
        messages = [Message("system", brief(417, wish, colour)), Message("user", "Hello?")]
        customer, replies = Customer(), []
        for question in (None, *questions):
            if question is not None:
                messages.append(Message("user", question))
            reply = (await customer.reply(messages, (), Sampling())).text
            messages.append(Message("assistant", reply))
            replies.append(reply)
        return replies

    return asyncio.run(answers())


def test_the_customer_says_only_what_is_asked() -> None:
    assert asked("Which order?", "Refund or exchange?", "Which colour?") == [
        "Hello.",
        "417",
        "exchange",
        "red",
    ]
    assert asked("Order, wish and colour?") == ["Hello.", "417"], "one thing at a time"
    assert asked("Borders?", "What color?", wish="refund", colour="") == [
        "Hello.",
        "Sorry?",
        "none",
    ]


@pytest.mark.parametrize(
    "reply",
    ["do refund 417", "DO refund", "DO refund 417.", "I DO refund 417", "DO exchange 1 RED"],
)
def test_only_a_whole_reply_is_an_action(reply: str) -> None:
    assert booking_of(reply) is None


def test_the_books_are_compared_with_the_wish() -> None:
    """A right booking after any number of questions scores; a wrong colour, or none in time, does
    not.
    """
    environment = Returns(customer=Customer())
    task = next(t for t in environment.tasks("dev") if t.colour)
    right = f"DO exchange {task.order} {task.colour}"
    assert run_episode(environment, task, ["Order?", "Order?", "Colour?", right]).outcome.total == 1
    assert run_episode(environment, task, f"DO exchange {task.order}").outcome.total == 0
    assert run_episode(environment, task, f"DO refund {task.order}").outcome.total == 0
    late = run_episode(environment, task, [*["Order?"] * 5, right])
    assert late.result.booking is None
    assert late.outcome.total == 0


def test_the_policy_never_sees_what_the_customer_was_told() -> None:
    environment = Returns(customer=Customer())
    for task in islice(environment.tasks("dev"), 20):
        played = run_episode(environment, task, "Hm?")
        seen = " ".join(m.content for m in played.messages if m.role != "assistant")
        assert str(task.order) not in seen
        assert {""} == set(played.transcripts)


# ---- tools ---------------------------------------------------------------------------------------


def test_tools_change_the_stock_or_say_why_not() -> None:
    store = Store({"nuts": 5})
    assert [store.put("nuts", 4), store.take("nuts", 3), store.count("nuts")] == ["ok", "ok", "6"]
    errors = [
        store.take("nuts", 7),
        store.put("nuts", 0),
        store.put("nuts", 994),
        store.put("oil", 1),
        store.count("oil"),
    ]
    assert all(e.startswith("error: ") for e in errors)
    assert store.stock == {"nuts": 6}
    assert store.calls == 8
    assert store.errors == 5


@pytest.mark.parametrize(
    ("text", "value"), [("2*3", 6), ("2+3*4-1", 13), (" 7 ", 7), ("1-2-3", -4)]
)
def test_the_calculator(text: str, value: int) -> None:
    assert value == calculate(text)


@pytest.mark.parametrize(
    "text",
    ["", "2**9", "-1", "2+", "9**9**9", "__import__('os')", "1" * 10, "1*" * 40 + "1", "2\n+"],
)
def test_the_calculator_refuses_all_else(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        calculate(text)


def test_orders_need_one_to_four_calls_and_hide_the_stock() -> None:
    tasks = list(islice(Tools().tasks("train"), 300))
    assert {1, 2, 3, 4} == {t.level for t in tasks}
    for task in tasks:
        assert task.stock != task.answer
        assert all(0 <= n <= 999 for n in task.answer.values())


def test_the_stock_is_compared_with_the_order() -> None:
    """Other calls than those of the reference score, too; an item too many does not."""
    environment = Tools()
    task = next(t for t in environment.tasks("dev") if t.level == 1)
    (step,) = task.steps
    other = "take" if step.kind == "put" else "put"
    more = [
        call(step.kind, item=step.good, count=step.count + 1),
        call(other, item=step.good, count=1),
    ]
    assert run_episode(environment, task, [Reply(calls=tuple(more)), "done"]).outcome.total == 1
    assert run_episode(environment, task, [Reply(calls=tuple(more[:1])), "done"]).outcome.total == 0
    wrong = run_episode(
        environment, task, [Reply(calls=(call("put", item=step.good, count="many"),)), "done"]
    )
    assert wrong.valid
    assert wrong.outcome.total == 0
    assert wrong.result.calls == 0


# ---- all -----------------------------------------------------------------------------------------

WORLDS: list[Any] = [
    Guess(),
    Maze(),
    Duel(opponent=Opponent()),
    Returns(customer=Customer()),
    Tools(),
]


@pytest.mark.parametrize("environment", WORLDS, ids=lambda e: type(e).__name__)
def test_only_tokens_of_the_policy_train(environment: Any) -> None:
    """What trains are the turns of a player, each with the token that ends it; hints, answers and
    results do not.
    """
    for task in islice(environment.tasks("train"), 4):
        engine = ScriptedEngine(replies=played_by(environment, "oracle", task))
        played = run_episode(environment, task, engine)
        assert played.outcome.total == 1, played.messages
        for player, transcript in played.transcripts.items():
            turns = [t.text for t in played.turns if t.player == player]
            (sequence,) = transcript.sequences()
            trained = [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m]
            assert "".join(f"{text}<|im_end|>" for text in turns) == engine.tokenizer.decode(
                trained
            )


@pytest.mark.parametrize("environment", WORLDS, ids=lambda e: type(e).__name__)
def test_recorded_log_probs_are_those_of_the_ids(environment: Any) -> None:
    """Scoring the ids of a transcript again gives the log-probs that were recorded when each turn
    was sampled.
    """
    model = untrained(0, **SMALL)

    async def check() -> int:
        from quintain.evaluation import evaluate

        count = 0
        async with EmbeddedEngine.sharing(model.module, model.tokenizer, slots=16) as engine:
            tasks = list(islice(environment.tasks("train"), 8))
            sampling = Sampling(temperature=1.0, max_tokens=6)
            evaluation = await evaluate(
                environment, engine, tasks=tasks, sampling=sampling, samples=2
            )
            for played in evaluation.rollouts:
                assert played.valid, played.termination
                for transcript in played.transcripts.values():
                    for s in transcript.sequences():
                        again = await engine.score(s.ids, 1)
                        pairs = [
                            (a, b)
                            for a, b, m in zip(again, s.logps[1:], s.mask[1:], strict=True)
                            if m
                        ]
                        assert pairs
                        assert all(a == pytest.approx(b, abs=1e-4) for a, b in pairs)
                        count += len(pairs)
        return count

    assert asyncio.run(check()) > 50


@pytest.mark.more
@pytest.mark.parametrize("environment", WORLDS, ids=lambda e: type(e).__name__)
def test_demonstrations_slip_as_often_as_asked(environment: Any) -> None:
    """Without slips a demonstration is right, except in the maze, where it still takes the shortest
    way.
    """
    kind = type(environment)
    services = {
        k: getattr(environment, k) for k in ("opponent", "customer") if hasattr(environment, k)
    }

    def right(slips: float) -> float:
        tasks = list(islice(kind(slips=slips, **services).tasks("train"), 40))
        rollouts = [
            run_episode(e := kind(slips=slips, **services), t, played_by(e, "demonstrator", t))
            for t in tasks
        ]
        return sum(r.outcome.total for r in rollouts) / len(rollouts)

    assert right(0.0) == 1
    assert right(1.0) < 0.6


def played_by(
    environment: Any, control: str, task: Task
) -> Callable[[Sequence[Message]], str | Reply]:
    """The control as a script over the byte tokenizer, whose template shows a tool's result as a
    user's message.
    """

    def reply(messages: Sequence[Message]) -> str | Reply:
        seen: list[Message] = []
        for m in messages:
            if m.content.startswith("<tool_response>"):
                content = m.content.removeprefix("<tool_response>\n").removesuffix(
                    "\n</tool_response>"
                )
                seen.append(Message("tool", content, name=seen[-1].calls[-1].name))
            elif "<tool_call>" in m.content and m.role == "assistant":
                body = json.loads(m.content.split("<tool_call>\n")[1].split("\n</tool_call>")[0])
                seen.append(
                    Message("assistant", "", calls=(call(body["name"], **body["arguments"]),))
                )
            else:
                seen.append(m)
        answer: str | Reply = getattr(environment, control)(task, seen)
        return answer

    return reply


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Guess, {"least": 0}),
        (Guess, {"top": 5}),
        (Guess, {"slips": 2}),
        (Maze, {"width": 1}),
        (Maze, {"loops": -1}),
        (Duel, {"top": 1, "opponent": None}),
        (Returns, {"questions": 0, "customer": None}),
        (Returns, {"top": 9, "customer": None}),
        (Returns, {"refunds": 2, "customer": None}),
        (Tools, {"steps": (6,)}),
        (Tools, {"plain": 2}),
    ],
)
def test_wrong_fields_are_named(kind: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        kind(**fields)


def test_a_small_domain_ends_and_splits_have_no_problem_in_common() -> None:
    """A finite split yields what there is; the content alone says which split a problem belongs
    to.
    """

    def drawn(split: str, seed: int) -> list[int]:
        return list(
            islice(problems(lambda rng: rng.randrange(50), split=split, size=40, seed=seed), 300)
        )

    dev, test = drawn("dev", 0), drawn("test", 1)
    assert len(dev) == len(set(dev)) < 40
    assert set(dev) == set(drawn("dev", 5))
    assert not set(dev) & set(test)
    assert not set(drawn("train", 2)) & set(dev + test)
    assert {split_of(repr(n)) for n in dev} == {"dev"}
