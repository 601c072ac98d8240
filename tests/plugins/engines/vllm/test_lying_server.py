"""A server that lies about single tokens of its rollouts, and about nothing else, trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintain.errors import RunError
from quintain.learning import SamplerMismatch
from quintain.models import HFTokenizer
from quintain.store.run_folder import Record
from quintain_engines.vllm import VLLMServer

from ....core.models.tiny import byte_tokenizer, tiny_model
from ....core.run import everything
from ....core.run.everything import played, settings
from ..openai.http_kit import in_thread
from .lying import Lie, ModelServer

pytestmark = pytest.mark.usefixtures("no_curves")


def choice_of(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]


def rows_of(answer: dict[str, Any]) -> Any:
    return choice_of(answer)["logprobs"]["content"]


def replace_id(answer: dict[str, Any], place: int, token: Any) -> None:
    choice_of(answer)["token_ids"][place] = token
    rows_of(answer)[place]["token_id"] = token


def honest(answer: dict[str, Any], number: int) -> None: ...


def every_third_is_4_nats_too_low(answer: dict[str, Any], number: int) -> None:
    for row in rows_of(answer)[::3]:
        row["logprob"] -= 4.0


def one_is_a_quarter_nat_too_low(answer: dict[str, Any], number: int) -> None:
    rows_of(answer)[0]["logprob"] -= 0.25


def one_wrong_id(answer: dict[str, Any], number: int) -> None:
    ids = choice_of(answer)["token_ids"]
    replace_id(answer, len(ids) // 2, (ids[len(ids) // 2] + 100) % 256)


def one_log_prob_is_3(answer: dict[str, Any], number: int) -> None:
    rows_of(answer)[0]["logprob"] = 3.0


def shifted_ids(answer: dict[str, Any], number: int) -> None:
    ids = choice_of(answer)["token_ids"]
    for place in range(0, len(ids), 4):
        replace_id(answer, place, (ids[place] + 1) % 256)


def log_probs_swapped(answer: dict[str, Any], number: int) -> None:
    rows = rows_of(answer)
    values = [row["logprob"] for row in rows]
    for row, value in zip(rows, reversed(values), strict=True):
        row["logprob"] = value


def three_times_as_many(answer: dict[str, Any], number: int) -> None:
    choice = choice_of(answer)
    choice["token_ids"] *= 3
    choice["logprobs"]["content"] = rows_of(answer) * 3
    choice["weight_versions"][0]["end"] *= 3


def one_sample_is_wrong(answer: dict[str, Any], number: int) -> None:
    if number == 7:
        every_third_is_4_nats_too_low(answer, number)


def one_sample_in_three_is_wrong(answer: dict[str, Any], number: int) -> None:
    if number % 3 == 1:
        one_wrong_id(answer, number)


def huge_id(answer: dict[str, Any], number: int) -> None:
    replace_id(answer, 0, 2**40)


def id_outside(answer: dict[str, Any], number: int) -> None:
    replace_id(answer, 0, 4000)


def negative_id(answer: dict[str, Any], number: int) -> None:
    replace_id(answer, 0, -1)


def true_as_id(answer: dict[str, Any], number: int) -> None:
    replace_id(answer, 0, True)


def text_as_id(answer: dict[str, Any], number: int) -> None:
    replace_id(answer, 0, "19")


def fraction_as_id(answer: dict[str, Any], number: int) -> None:
    replace_id(answer, 0, 19.5)


def ids_as_text(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["token_ids"] = "97"


def rows_of_other_ids(answer: dict[str, Any], number: int) -> None:
    for row in rows_of(answer):
        row["token_id"] += 1


def version_1000(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["weight_versions"][0]["version"] = "1000"


def version_minus_5(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["weight_versions"][0]["version"] = "-5"


def version_abc(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["weight_versions"][0]["version"] = "abc"


def versions_of_a_billion(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["weight_versions"][0]["end"] = 10**9


def other_request(answer: dict[str, Any], number: int) -> None:
    answer["request_id"] = "generate-tokens-quintain-1"


def second_choice_first(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["index"] = 1


def infinite(answer: dict[str, Any], number: int) -> None:
    rows_of(answer)[0]["logprob"] = float("-inf")


def false_as_log_prob(answer: dict[str, Any], number: int) -> None:
    rows_of(answer)[0]["logprob"] = False


def stop_without_a_token(answer: dict[str, Any], number: int) -> None:
    choice = choice_of(answer)
    choice |= {"token_ids": [], "finish_reason": "stop", "stop_reason": 257, "weight_versions": []}
    choice["logprobs"]["content"] = []


def stop_that_is_not_the_last(answer: dict[str, Any], number: int) -> None:
    choice_of(answer).update(finish_reason="stop", stop_reason=250)
    replace_id(answer, -1, 97)


def without_log_probs(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["logprobs"] = None


def text_as_log_probs(answer: dict[str, Any], number: int) -> None:
    choice_of(answer)["logprobs"] = {"content": "none"}


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    """A function that trains with a server, and returns the metrics of each step."""

    def run(lie: Lie, **changes: Any) -> list[Record]:
        server = ModelServer(tiny_model(), lie)
        with in_thread(server.up()) as url:
            recipe = settings(
                run__steps=2,
                environments=[{"use": f"{everything.__name__}:Word"}],
                algorithm={"use": "dr_grpo"},
                sampling__max_tokens=12,
                evaluation__every=0,
                engine={"use": "vllm-server", "args": {"url": url, "canary": False}},
                **changes,
            )
            return played(tmp_path / "run", recipe)[0][1:]

    return run


def test_an_honest_server_trains(trained: Any) -> None:
    first, second = trained(honest)
    assert first["grad_norm"] > 0
    assert max(first["mismatch.max"], second["mismatch.max"]) < 1e-3
    assert "mismatch.left_out" not in first | second


@pytest.mark.keeps("every_third_is_4_nats_too_low", "one_wrong_id")
@pytest.mark.parametrize(
    "lie",
    [
        every_third_is_4_nats_too_low,
        one_is_a_quarter_nat_too_low,
        one_wrong_id,
        shifted_ids,
        log_probs_swapped,
        one_sample_in_three_is_wrong,
    ],
    ids=lambda lie: lie.__name__,
)
def test_wrong_tokens_stop_the_run_before_an_update(lie: Lie, trained: Any, tmp_path: Path) -> None:
    with pytest.raises(SamplerMismatch):
        trained(lie)
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert '"step": 1' not in (metrics.read_text() if metrics.exists() else "")


@pytest.mark.more
def test_half_precision_finds_every_third_token(trained: Any) -> None:
    with pytest.raises(SamplerMismatch):
        trained(every_third_is_4_nats_too_low, learner__precision="bf16")


def test_one_wrong_sample_is_left_out_counted_and_named(
    trained: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = trained(one_sample_is_wrong)
    assert first["mismatch.left_out"] == 1.0
    assert first["grad_norm"] > 0
    assert "mismatch.left_out" not in second
    assert "left out of the update, since tokens differ: sample" in caplog.text


@pytest.mark.keeps("one_log_prob_is_3", "versions_of_a_billion", "huge_id")
@pytest.mark.parametrize(
    "lie",
    [
        one_log_prob_is_3, three_times_as_many, huge_id, id_outside, negative_id, true_as_id,
        text_as_id, fraction_as_id, ids_as_text, rows_of_other_ids, version_1000, version_minus_5,
        version_abc, versions_of_a_billion, other_request, second_choice_first, infinite,
        false_as_log_prob, stop_without_a_token, stop_that_is_not_the_last, without_log_probs,
        text_as_log_probs,
    ],
    ids=lambda lie: lie.__name__,
)  # fmt: skip
def test_what_is_no_turn_is_an_infrastructure_failure(lie: Lie, trained: Any) -> None:
    with pytest.raises(RunError, match="all 18 episodes .* infrastructure_error"):
        trained(lie)


def test_the_server_of_these_tests_needs_no_vllm() -> None:
    engine = VLLMServer.sharing(
        tiny_model(), HFTokenizer(byte_tokenizer()), url="http://127.0.0.1:1", canary=False
    )
    assert engine.name == "vllm-server"
