"""AdamW in 8 bits and in host memory, against torch's own in float64."""

from __future__ import annotations

import io
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quintain_learners.lean import EightBitAdamW, HostAdamW, host
from quintain_learners.lean.eight_bit import BLOCK, Moment, levels, rounded_at_random

from ....lanes import examples

KINDS: dict[str, Any] = {"8bit": EightBitAdamW, "host": HostAdamW}


def weight(dtype: torch.dtype, *shape: int) -> nn.Parameter:
    """Return a parameter of fixed values in *dtype*."""
    generator = torch.Generator().manual_seed(3)
    return nn.Parameter(torch.randn(shape, generator=generator).to(dtype))


def gradient(step: int, *shape: int) -> Tensor:
    """Return the gradient of a step: a direction that stays, and noise."""
    generator = torch.Generator().manual_seed(100 + step)
    return 0.5 + torch.randn(shape, generator=generator)


def moved(kind: Any, dtype: torch.dtype, *, steps: int, lr: float, size: int = 64) -> Tensor:
    """Return by how much *kind* moves a weight [size, 128] in *steps*."""
    parameter = weight(dtype, size, 128)
    start = parameter.detach().double().clone()
    optimizer = kind([{"params": [parameter], "weight_decay": 0.0}], lr=lr)
    for step in range(steps):
        parameter.grad = gradient(step, size, 128).to(parameter.dtype)
        optimizer.step()
    return parameter.detach().double() - start


def exact(*, steps: int, lr: float, size: int = 64) -> Tensor:
    """Return the same of AdamW in float64."""
    return moved(torch.optim.AdamW, torch.float64, steps=steps, lr=lr, size=size)


def test_host_memory_keeps_the_steps_that_bfloat16_rounds_away() -> None:
    """The float32 weights on the host are those of AdamW; the device has them rounded."""
    parameter = weight(torch.bfloat16, 64, 128)
    plain = nn.Parameter(parameter.detach().float())
    on_host = HostAdamW([{"params": [parameter], "weight_decay": 0.1}], lr=1e-6)
    adamw = torch.optim.AdamW([{"params": [plain], "weight_decay": 0.1}], lr=1e-6, fused=True)
    for step in range(5):
        for p in (parameter, plain):
            p.grad = gradient(step, 64, 128).bfloat16().to(p.dtype)
        on_host.step()
        adamw.step()
    [[master]] = on_host.state_dict()["masters"]
    assert torch.equal(master, plain.detach())
    assert torch.equal(parameter.detach(), plain.detach().bfloat16())


class Stream:
    """A stand-in for the stream of a device: copies are made no earlier than somebody waits for
    them, or the device is asked for its weights.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.done = self.most = 0

        def begin(lane: host.Lane, source: Tensor, target: Tensor) -> SimpleNamespace:
            self.waiting.append((source, target))
            self.most = max(self.most, len(self.waiting) - self.done)
            return SimpleNamespace(synchronize=partial(self.run, len(self.waiting)))

        monkeypatch.setattr(host.Lane, "begin", begin)
        monkeypatch.setattr(
            host.Lane, "pinned", lambda lane, size: torch.empty(size, dtype=torch.uint8)
        )
        monkeypatch.setattr(host, "on_gpu", lambda tensors: True)

    @torch.no_grad()
    def run(self, count: int) -> None:
        for source, target in self.waiting[self.done : count]:
            target.copy_(source)
        self.done = max(self.done, count)


@pytest.mark.parametrize("piece", [256, 2**26], ids=["pieces", "wholes"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_copies_under_way_change_no_number(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, piece: int
) -> None:
    """Buffers that are used again too early, or read too early, would. Sizes are of many pieces, of
    one, and of a rest; one parameter has no gradient.
    """
    shapes = [(70, 9), (3,), (128,), (5, 5), (64, 2)]

    def trained(*, at_once: bool) -> list[Tensor]:
        parameters = [weight(dtype, *shape) for shape in shapes]
        optimizer = HostAdamW([{"params": parameters[:3]}, {"params": parameters[3:]}], lr=1e-2)
        for step in range(3):
            for parameter, shape in zip(parameters, shapes, strict=True):
                parameter.grad = gradient(step, *shape).to(dtype)
            parameters[1].grad = None
            optimizer.step()
            if not at_once:
                assert stream.most > 1, "copies of several pieces are under way"
                stream.run(len(stream.waiting))
        return [p.detach() for p in parameters]

    expected = trained(at_once=True)
    stream = Stream(monkeypatch)
    monkeypatch.setattr(host, "PIECE", piece)
    for actual, wanted in zip(trained(at_once=False), expected, strict=True):
        assert torch.equal(actual, wanted)


def test_moments_in_8_bits_move_weights_as_adamw_does() -> None:
    """In float32 weights, the way after 50 steps is within 3 % of that of float64."""
    expected = exact(steps=50, lr=1e-3)
    actual = moved(EightBitAdamW, torch.float32, steps=50, lr=1e-3)
    assert float((actual - expected).norm() / expected.norm()) < 0.03


def test_rounding_at_random_moves_bfloat16_by_the_exact_mean() -> None:
    """At a learning rate of 1e-5 steps are below the precision of bfloat16, whose plain rounding
    does not move it. The mean over 262,144 numbers, whose noise is 0.6 %, is within 3 %.
    """
    expected = exact(steps=50, lr=1e-5, size=2048).mean()
    actual = moved(EightBitAdamW, torch.bfloat16, steps=50, lr=1e-5, size=2048).mean()
    plain = moved(torch.optim.AdamW, torch.bfloat16, steps=50, lr=1e-5, size=2048).mean()
    assert float(actual / expected) == pytest.approx(1.0, abs=0.03)
    assert abs(float(plain / expected)) < 0.5


def test_a_second_moment_decays_though_levels_are_coarse() -> None:
    """After a large gradient and 1,000 small ones the stored second moment has decayed by
    0.999^1000, within 5 %.
    """
    parameter = weight(torch.float32, 64, 128)
    optimizer = EightBitAdamW([{"params": [parameter]}], lr=0.0)
    for step in range(1001):
        parameter.grad = torch.full_like(parameter, 1.0 if step == 0 else 1e-6)
        optimizer.step()
    square = Moment(optimizer.state[parameter]["square"], signed=False).read(slice(0, 8192))
    assert float(square.mean()) == pytest.approx(1e-3 * 0.999**1000, rel=0.05)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_extreme_of_a_block_keeps_its_size_in_both_directions(sign: float) -> None:
    """With a constant gradient the first moment of the largest number is that of AdamW."""
    parameter = weight(torch.float32, 64, 128)
    optimizer = EightBitAdamW([{"params": [parameter]}], lr=0.0, betas=(0.9, 0.999))
    for _ in range(200):
        gradient = torch.full_like(parameter, 0.01)
        gradient[:, 0] = sign
        parameter.grad = gradient
        optimizer.step()
    mean = Moment(optimizer.state[parameter]["mean"], signed=True).read(slice(0, 8192))
    assert float(mean.view(64, 128)[0, 0]) == pytest.approx(sign, rel=1e-6)


@examples(200)
@given(
    values=st.lists(st.floats(min_value=-1e4, max_value=1e4, width=32), min_size=1, max_size=700),
    signed=st.booleans(),
)
def test_a_stored_moment_is_one_of_the_two_nearest_levels(
    values: list[float], signed: bool
) -> None:
    """Each value comes back as a level beside it, 0 as 0, and what is above 0 stays above 0."""
    exact_values = torch.tensor(values if signed else [abs(x) for x in values])
    moment = Moment(Moment.zeros(torch.empty(8192)), signed=signed)
    part = slice(0, len(values))
    moment.write(part, exact_values, torch.Generator().manual_seed(1))
    stored = moment.read(part)
    table = levels(signed, torch.device("cpu"))
    for block in range(0, len(values), BLOCK):
        of_block = exact_values[block : block + BLOCK]
        scale = of_block.abs().max().clamp(min=1e-38)
        for value, back in zip(
            of_block / scale, stored[block : block + BLOCK] / scale, strict=True
        ):
            above = int(torch.searchsorted(table, value))
            nearest = table[[max(above - 1, 0), min(above, 255)]]
            assert float((nearest - back).abs().min()) < 1e-5
    if not signed:
        assert bool((stored[exact_values > 1e-30] > 0).all())
    assert bool((stored[exact_values == 0].abs() < 1e-12 * (1 + exact_values.abs().max())).all())


def test_bfloat16_is_reached_up_and_down_with_the_right_mean() -> None:
    """A number between two of bfloat16 becomes either, on average itself; one of bfloat16 stays."""
    generator = torch.Generator().manual_seed(2)
    between = torch.full((100_000,), 1.0 + 2**-7 * 0.3)
    rounded = rounded_at_random(between, generator)
    assert set(rounded.tolist()) == {1.0, 1.0 + 2**-7}
    assert float(rounded.mean()) == pytest.approx(float(between[0]), abs=5e-5)
    exact_values = weight(torch.bfloat16, 1000).detach().float()
    assert torch.equal(rounded_at_random(exact_values, generator), exact_values)


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_optimizer_continues_bit_for_bit(name: str) -> None:
    """Three steps, saved and loaded in new objects, and three more equal six."""

    def steps(parameter: nn.Parameter, optimizer: Any, begin: int) -> None:
        for step in range(begin, begin + 3):
            parameter.grad = gradient(step, 64, 128).bfloat16()
            optimizer.step()

    def made(values: Tensor) -> tuple[nn.Parameter, Any]:
        parameter = nn.Parameter(values.clone())
        return parameter, KINDS[name]([{"params": [parameter], "weight_decay": 0.0}], lr=1e-3)

    torch.manual_seed(0)
    parameter, optimizer = made(weight(torch.bfloat16, 64, 128).detach())
    steps(parameter, optimizer, 0)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, file)
    halfway = parameter.detach().clone()
    steps(parameter, optimizer, 3)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    resumed, again = made(halfway)
    again.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"])
    steps(resumed, again, 3)
    assert torch.equal(resumed, parameter)


@pytest.mark.parametrize("name", KINDS)
def test_a_learning_rate_may_change_between_steps(name: str) -> None:
    """A rate of 0 moves nothing, and the rate that is read back is the number that was set."""
    parameter = weight(torch.float32, 64, 128)
    optimizer = KINDS[name]([{"params": [parameter], "weight_decay": 0.0}], lr=1e-3)
    before = parameter.detach().clone()
    parameter.grad = gradient(0, 64, 128)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert torch.equal(parameter, before)
    assert optimizer.param_groups[0]["lr"] == 0.0
    optimizer.param_groups[0]["lr"] = 1e-3
    optimizer.step()
    assert not torch.equal(parameter, before)


def test_states_take_the_bytes_that_the_page_says() -> None:
    """8-bit moments take 2 bytes a number and the scales."""
    parameter = weight(torch.bfloat16, 256, 256)
    optimizer = EightBitAdamW([{"params": [parameter]}], lr=1e-3)
    parameter.grad = gradient(0, 256, 256).bfloat16()
    optimizer.step()
    state = optimizer.state[parameter]
    tensors = [*state["mean"].values(), *state["square"].values()]
    taken = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert 2 * 256 * 256 <= taken < 2.05 * 256 * 256
