"""Teachers against plain forward passes: models, ensembles, one for each environment, vocabularies
that differ, a server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from quintain import LimitReached
from quintain.errors import InfrastructureError, UsageError
from quintain.models import PICTURE_TOKENS, HFTokenizer, LoadedModel, load_model
from quintain_offline.distill import ModelTeacher, SharedVocabulary, TeacherRow, TeacherScore
from quintain_offline.distill.server import ServerScorer
from quintain_offline.distill.teacher import CACHED

from ....core.models.tiny import byte_tokenizer, save_tiny, tiny_model
from ...engines.openai.http_kit import openai_server

ROWS = [
    TeacherRow((72, 105, 33, 50, 51), (2, 3, 4), "arithmetic"),
    TeacherRow((72, 105, 60), (2,), "arithmetic"),
    TeacherRow((10, 11, 12, 13, 14, 15, 16), (3, 5), "code"),
    TeacherRow((72, 105, 33, 50, 51), (2, 3, 4), "arithmetic", 3),
]
SEEDS = {"one": 1, "two": 2}
CLOSE = {"rtol": 0, "atol": 2e-5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two teachers and a policy."""
    place = tmp_path_factory.mktemp("models")
    return {
        name: str(save_tiny(place / name, seed=seed))
        for name, seed in (*SEEDS.items(), ("policy", 0))
    }


@pytest.fixture(scope="module")
def policy(folders: dict[str, str]) -> LoadedModel:
    return load_model(folders["policy"])


def plain(seed: int, row: TeacherRow, temperature: float = 1.0) -> Tensor:
    """Log-probs of the whole vocabulary at the positions of a row, [n, V]."""
    with torch.no_grad():
        logits = tiny_model(seed=seed)(input_ids=torch.tensor([row.ids])).logits[0]
    return (logits / temperature).log_softmax(-1)[[p - 1 for p in row.positions]]


def own(table: Tensor, row: TeacherRow) -> Tensor:
    return table.gather(1, torch.tensor([[row.ids[p]] for p in row.positions]))[:, 0]


def scored(
    teacher: ModelTeacher, rows: list[TeacherRow] = ROWS, **asked: Any
) -> list[TeacherScore | None]:
    async def run() -> list[TeacherScore | None]:
        async with teacher:
            return await teacher.score(rows, **asked)

    return asyncio.run(run())


def made(policy: LoadedModel, model: Any, **settings: Any) -> ModelTeacher:
    return ModelTeacher(model=model, policy=policy, learner=policy, **settings)


@pytest.mark.more
@pytest.mark.parametrize("budget", [1, 4096])
@pytest.mark.parametrize(("own_temperature", "effective"), [(None, 0.7), (1.3, 1.3)])
def test_a_model_gives_what_a_plain_forward_pass_gives(
    policy: LoadedModel,
    folders: dict[str, str],
    budget: int,
    own_temperature: float | None,
    effective: float,
) -> None:
    """For sampled tokens, the whole vocabulary and the likeliest tokens, at the policy's
    temperature or its own.
    """
    for top in (None, 0, 5):
        teacher = made(policy, folders["one"], temperature=own_temperature, token_budget=budget)
        scores = scored(teacher, temperature=0.7, top=top)
        for row, score in zip(ROWS, scores, strict=True):
            assert score is not None
            expected = plain(1, row, effective)
            torch.testing.assert_close(score.logp, own(expected, row), **CLOSE)
            if top is None:
                assert score.top_logp is None
            elif not top:
                assert score.top_ids is None
                torch.testing.assert_close(score.top_logp, expected, **CLOSE)
            else:
                values, ids = expected.topk(top)
                torch.testing.assert_close(score.top_logp, values, **CLOSE)
                assert score.top_ids is not None
                assert score.top_ids.equal(ids)
                assert score.rest_logp is not None
                rest = expected.scatter(1, ids, -torch.inf).logsumexp(1)
                torch.testing.assert_close(score.rest_logp, rest, **CLOSE)


def test_an_ensemble_averages_probabilities(policy: LoadedModel, folders: dict[str, str]) -> None:
    scores = scored(made(policy, [folders["one"], folders["two"]]), top=0)

    for row, score in zip(ROWS, scores, strict=True):
        assert score is not None
        assert score.top_logp is not None
        mean = (plain(1, row).exp() + plain(2, row).exp()) / 2
        torch.testing.assert_close(score.top_logp.exp(), mean, **CLOSE)


def test_an_ensemble_has_one_number_of_logits(
    tmp_path: Path, policy: LoadedModel, folders: dict[str, str]
) -> None:
    save_tiny(tmp_path / "padded", vocab=264)
    with pytest.raises(UsageError, match="models with 260 and 264 logits"):
        scored(made(policy, [folders["one"], str(tmp_path / "padded")]))


def test_each_environment_has_its_teacher(policy: LoadedModel, folders: dict[str, str]) -> None:
    """A folder that teaches two environments is loaded once."""
    teacher = made(policy, {"code": folders["two"], "*": folders["one"], "chat": folders["two"]})
    scores = scored(teacher)

    for row, score, seed in zip(ROWS, scores, (1, 1, 2, 1), strict=True):
        assert score is not None
        torch.testing.assert_close(score.logp, own(plain(seed, row), row), **CLOSE)
    assert len(teacher._scorers) == 2

    with pytest.raises(UsageError, match="no model for the environment 'arithmetic'"):
        scored(made(policy, {"code": folders["two"]}))


def test_a_row_is_computed_once(policy: LoadedModel, folders: dict[str, str]) -> None:
    """Within a call and in later calls; other tokens, temperatures or numbers of tokens are other
    questions.
    """

    async def run() -> list[tuple[int, int]]:
        counts = []
        async with made(policy, folders["one"]) as teacher:
            for asked in ({}, {}, {"top": 3}, {"temperature": 0.5}):
                await teacher.score(ROWS, **asked)
                counts.append((teacher.computed, teacher.reused))
            teacher.forget()
            await teacher.score(ROWS[:1])
            counts.append((teacher.computed, teacher.reused))
        return counts

    assert asyncio.run(run()) == [(3, 1), (3, 5), (6, 6), (9, 7), (10, 7)]


def test_the_cache_is_bounded(
    policy: LoadedModel, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By numbers; the oldest answers leave."""
    monkeypatch.setattr("quintain_offline.distill.teacher.CACHED", 6)

    async def run() -> list[int]:
        async with made(policy, folders["one"]) as teacher:
            await teacher.score(ROWS[:3])
            held = [teacher._cached]
            await teacher.score(ROWS[2:3])
            await teacher.score(ROWS[:1])
            return [*held, teacher._cached, teacher.computed]

    assert asyncio.run(run()) == [6, 6, 3]
    assert CACHED == 1 << 24


def test_rows_beyond_the_context_are_refused(policy: LoadedModel, folders: dict[str, str]) -> None:
    with pytest.raises(LimitReached, match="the teacher's context is 512"):
        scored(made(policy, folders["one"]), [TeacherRow((5,) * 513, (1,))])


# ---------------------------------------------------------------- vocabularies
def tokenizer_with(change: Callable[[dict[str, int]], None]) -> HFTokenizer:
    """The tokenizer of bytes with another vocabulary."""
    import json

    fast = byte_tokenizer()
    state = json.loads(fast.backend_tokenizer.to_str())
    change(state["model"]["vocab"])
    from tokenizers import Tokenizer

    changed = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
    )
    changed.chat_template = fast.chat_template
    return HFTokenizer(changed)


def swapped(vocab: dict[str, int]) -> None:
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def shifted(vocab: dict[str, int]) -> None:
    for text, number in list(vocab.items()):
        vocab[text] = (number + 1) % 256


BYTES = HFTokenizer(byte_tokenizer())


def shared(teacher: HFTokenizer, *, teacher_size: int = 260) -> SharedVocabulary:
    return SharedVocabulary.of(BYTES, teacher, name="t", policy_size=260, teacher_size=teacher_size)


def test_one_tokenizer_is_one_vocabulary() -> None:
    assert shared(BYTES).complete
    assert shared(BYTES).ids is None
    padded = shared(BYTES, teacher_size=264)
    assert not padded.complete
    assert padded.ids is not None
    assert padded.ids.tolist() == list(range(260))


def test_ids_of_another_meaning_are_refused_where_they_occur() -> None:
    vocabulary = shared(tokenizer_with(swapped))
    a, b, c = BYTES.encode("abc")

    assert not vocabulary.complete
    assert vocabulary.ids is not None
    assert set(range(260)) - set(vocabulary.ids.tolist()) == {a, b}
    vocabulary.check([c, c])
    with pytest.raises(UsageError, match="the token 'a'"):
        vocabulary.check([c, a], BYTES.decode)


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="4 of 260 ids mean the same"):
        shared(tokenizer_with(shifted))


def test_distributions_leave_out_what_is_not_shared(tmp_path: Path, policy: LoadedModel) -> None:
    """Log-probs stay those over the teacher's whole vocabulary, at the ids that mean the same."""
    tiny_model(seed=1).save_pretrained(tmp_path)
    tokenizer_with(swapped).hf.save_pretrained(tmp_path)
    a, b = BYTES.encode("ab")
    kept = [i for i in range(260) if i not in (a, b)]

    for top in (0, 4):
        scores = scored(made(policy, str(tmp_path)), ROWS[:2], top=top)
        for row, score in zip(ROWS[:2], scores, strict=True):
            assert score is not None
            assert score.top_logp is not None
            assert score.top_ids is not None
            expected = plain(1, row)[:, kept]
            places = torch.arange(len(kept)).expand(len(expected), -1)
            if top:
                expected, places = expected.topk(top)
            torch.testing.assert_close(score.top_logp, expected, **CLOSE)
            assert score.top_ids.equal(torch.tensor(kept)[places])


# ---------------------------------------------------------------- a server
@dataclass
class Answers:
    """What the server of a model answers, in the shape of vLLM's completions."""

    seed: int = 1
    texts: Callable[[int], str] = lambda token: BYTES.decode([token])
    status: int = 200
    drop: bool = False

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        ids, top = body["prompt"], body["prompt_logprobs"]
        table = plain(self.seed, TeacherRow(tuple(ids), tuple(range(1, len(ids)))))
        places: list[Any] = [None]
        for token, row in zip(ids[1:], table, strict=True):
            order = row.argsort(descending=True).tolist()
            told = dict.fromkeys([*order[:top], token])
            places.append(
                {
                    str(i): {
                        "logprob": float(row[i]),
                        "rank": order.index(i) + 1,
                        "decoded_token": self.texts(i),
                    }
                    for i in told
                }
            )
        choice = {"text": "", "prompt_logprobs": None if self.drop else places}
        return web.json_response({"choices": [choice]})

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        async def models(request: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": "big", "max_model_len": 64}]})

        async with openai_server(self.complete, models, "/completions") as url:
            yield url


def asked(
    answers: Answers, policy: LoadedModel, rows: list[TeacherRow] = ROWS, **question: Any
) -> list[TeacherScore | None]:
    async def run() -> list[TeacherScore | None]:
        async with answers.served() as url, made(policy, f"{url}#big") as teacher:
            return await teacher.score(rows, **question)

    return asyncio.run(run())


def test_a_server_gives_the_log_probs_of_prompts(policy: LoadedModel) -> None:
    """Of the tokens that are there, and of its likeliest ones."""
    for top in (None, 5):
        for row, score in zip(ROWS, asked(Answers(), policy, top=top), strict=True):
            assert score is not None
            expected = plain(1, row)
            torch.testing.assert_close(score.logp.float(), own(expected, row), **CLOSE)
            if top:
                assert score.top_logp is not None
                assert score.top_ids is not None
                values, ids = expected.topk(top)
                torch.testing.assert_close(score.top_logp.float(), values, **CLOSE)
                assert score.top_ids.equal(ids)


def test_what_a_server_cannot_give_is_refused(policy: LoadedModel) -> None:
    with pytest.raises(UsageError, match=r"temperature 1, and the policy samples at 0\.7"):
        asked(Answers(), policy, temperature=0.7)
    with pytest.raises(UsageError, match="not the whole vocabulary"):
        asked(Answers(), policy, top=0)
    with pytest.raises(UsageError, match="a server does not give"):
        made(policy, ["http://127.0.0.1:1/v1", "folder"])


def test_pictures_are_refused_by_teachers_of_text(policy: LoadedModel) -> None:
    """A server is asked with ids, of which it knows those of a vocabulary alone."""
    rows = [TeacherRow((5, PICTURE_TOKENS + 1, 6), (2,))]
    with pytest.raises(UsageError, match="a picture, which has none there"):
        asked(Answers(), policy, rows)
    for complete in (True, False):
        vocabulary = shared(BYTES, teacher_size=260 if complete else 259)
        assert vocabulary.complete == complete
        vocabulary.check([5, 6])
        with pytest.raises(UsageError, match="holds a picture, and its model reads text alone"):
            vocabulary.check(rows[0].ids)


def test_a_server_with_another_tokenizer_is_refused(policy: LoadedModel) -> None:
    with pytest.raises(UsageError, match=r"reads id \d+ as 'x'"):
        asked(Answers(texts=lambda token: "x"), policy)


def test_a_server_without_log_probs_is_our_failure(policy: LoadedModel) -> None:
    """So is one that refuses; a row as long as its context is the limit."""
    with pytest.raises(InfrastructureError, match="gave no log-probs of the prompt"):
        asked(Answers(drop=True), policy)
    with pytest.raises(InfrastructureError, match="answered 400"):
        asked(Answers(status=400), policy)
    with pytest.raises(LimitReached, match="64 tokens to score"):
        asked(Answers(status=400), policy, [TeacherRow((5,) * 64, (1,))])


@pytest.mark.parametrize("failing", ["another server", "a model"])
def test_a_teacher_that_cannot_start_closes_what_it_has_opened(
    policy: LoadedModel, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Nobody calls ``__aexit__`` of a teacher whose ``__aenter__`` has failed."""
    open_now: list[ServerScorer] = []

    async def opened(self: ServerScorer) -> ServerScorer:
        if "second" in self._client.base_url:
            raise InfrastructureError("down")
        open_now.append(self)
        return self

    async def closed(self: ServerScorer, *exc: object) -> None:
        open_now.remove(self)

    monkeypatch.setattr(ServerScorer, "__aenter__", opened)
    monkeypatch.setattr(ServerScorer, "__aexit__", closed)
    second = "http://second/v1" if failing == "another server" else "no/such/folder"
    teacher = made(policy, {"arithmetic": "http://first/v1", "*": second})
    with pytest.raises((InfrastructureError, UsageError)):
        scored(teacher)
    assert open_now == []
