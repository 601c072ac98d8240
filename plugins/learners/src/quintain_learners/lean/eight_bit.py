"""AdamW with moments in 8 bits, which also trains weights in bfloat16.

Shapes: n numbers of a parameter, laid flat and cut into blocks of `BLOCK`; B blocks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

BLOCK = 256
"""Numbers that share a scale."""
SMALLEST = 4096
"""Parameters of fewer numbers, such as the weights of norms, keep moments in float32."""
CHUNK = 2**22
"""Numbers that are updated at a time, a multiple of `BLOCK`: some 100 MB of temporaries."""

_SHAPES = {"codes": (-1, BLOCK), "scales": (-1, 1), "values": (-1,)}


@cache
def levels(signed: bool, device: torch.device) -> Tensor:
    """Return the 256 values between -1 (or 0) and 1 that 8 bits stand for, in order.

    The dynamic tree of Dettmers et al. 2022 (arXiv 2110.02861), appendix B: seven decades of ten,
    with fewer values the smaller the decade. There, the lowest signed value is -0.993, so that what
    lies below it, as the negative extreme of each block does, would shrink with each write. Here it
    is -1.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        intervals = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1, intervals + 1, dtype=torch.float64)
        middles = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)).tolist()
        values += middles + ([-x for x in middles] if signed else [])
    values.sort()
    if signed:
        values[0] = -1.0
    return torch.tensor(values, dtype=torch.float32, device=device)


class Moment:
    """A moment of a parameter of n numbers in 8 bits; of a small parameter in float32.

    Args:
        stored: its tensors: ``codes``, indices of `levels`, [B, BLOCK] uint8, and ``scales``, the
            largest magnitude of each block, [B, 1] float32. Or ``values``, [n] float32.
        signed: whether values may be negative.
    """

    def __init__(self, stored: dict[str, Tensor], *, signed: bool) -> None:
        self.stored, self.signed = stored, signed

    @staticmethod
    def zeros(parameter: Tensor, *, wide: bool | None = None) -> dict[str, Tensor]:
        """Return the tensors of a moment of *parameter* that is 0: in float32 if it is *wide*, by
        default where it is small.
        """
        n, device = parameter.numel(), parameter.device
        if n < SMALLEST if wide is None else wide:
            return {"values": torch.zeros(n, device=device)}
        blocks = -(-n // BLOCK)
        return {
            "codes": torch.zeros(blocks, BLOCK, dtype=torch.uint8, device=device),
            "scales": torch.zeros(blocks, 1, device=device),
        }

    def read(self, part: slice) -> Tensor:
        """Return the values of *part*, which begins at a block, in float32."""
        if "values" in self.stored:
            return self.stored["values"][part]
        blocks = slice(part.start // BLOCK, -(-part.stop // BLOCK))
        codes, scales = self.stored["codes"][blocks], self.stored["scales"][blocks]
        values = levels(self.signed, codes.device)[codes.int()] * scales
        return values.view(-1)[: part.stop - part.start]

    def write(
        self,
        part: slice,
        values: Tensor,
        generator: torch.Generator,
        *,
        before: int = 0,
        after: int = 0,
    ) -> None:
        """Store *values* as *part*, each rounded up or down at random so that its mean is exact.

        To the nearest, the second moment would stand still: it decays by a thousandth a step, and
        neighbouring levels differ by a hundredth.

        Args:
            before, after: numbers beside *values* for which something is drawn as well, since they
                lie elsewhere; *before* is a multiple of `BLOCK`.
        """
        if "values" in self.stored:
            self.stored["values"][part] = values
            return
        blocks = slice(part.start // BLOCK, -(-part.stop // BLOCK))
        rows = blocks.stop - blocks.start
        padded = torch.zeros(rows * BLOCK, device=values.device)
        padded[: len(values)] = values
        scales = padded.view(rows, BLOCK).abs().amax(1, keepdim=True).clamp_(min=1e-38)
        relative = padded.view(rows, BLOCK) / scales
        table = levels(self.signed, values.device)
        above = torch.bucketize(relative, table, out_int32=True).clamp_(1, 255)
        below = table[above - 1]
        share = (relative - below) / (table[above] - below)
        skipped, all_rows = before // BLOCK, -(-(before + len(values) + after) // BLOCK)
        drawn = torch.rand((all_rows, BLOCK), device=share.device, generator=generator)
        drawn = drawn[skipped : skipped + rows]
        codes = above - (drawn >= share).int()
        if not self.signed:
            # An update divides by its root, so what is above 0 stays above it.
            codes = torch.where(relative > 0, codes.clamp(min=1), codes)
        self.stored["codes"][blocks] = codes.to(torch.uint8)
        self.stored["scales"][blocks] = scales


class EightBitAdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with moments in 8 bits.

    Parameters in bfloat16 are rounded up or down at random, so that their mean is the exact one: a
    step far below their precision moves them on average (Zamirai et al. 2020, arXiv 2010.06192).
    What is drawn follows from the number of the step and of the parameter alone.

    Args:
        groups: of parameters, as of `torch.optim.AdamW`.
        settings: lr, and optionally betas, eps and weight_decay.
    """

    def __init__(self, groups: Any, **settings: Any) -> None:
        defaults = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        super().__init__(groups, defaults | settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step of all parameters that have a gradient."""
        loss = None if closure is None else closure()
        index = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                index += 1
                if parameter.grad is not None:
                    self._step_of(parameter, group, index)
        return loss

    def extent(self, parameter: Tensor) -> tuple[int, int]:
        """Return where *parameter* begins in the tensor of which it is a part, and how many numbers
        that has. A subclass whose parameters are parts says so: what is drawn is then that of the
        whole.
        """
        return 0, parameter.numel()

    def zeros(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a moment of *parameter* that is 0."""
        return Moment.zeros(parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        # torch casts states to the type of their parameter.
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            device = parameters[index].device
            self.state[parameters[index]] = {
                name: {
                    key: tensor.to(device, copy=True).reshape(_SHAPES[key])
                    for key, tensor in value.items()
                }
                if isinstance(value, dict)
                else value
                for name, value in saved.items()
            }

    def _step_of(self, parameter: Tensor, group: dict[str, Any], index: int) -> None:
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, "mean": self.zeros(parameter), "square": self.zeros(parameter)}
        state["step"] += 1
        mean, square = Moment(state["mean"], signed=True), Moment(state["square"], signed=False)
        generator = torch.Generator(parameter.device).manual_seed(index * 2**32 + state["step"])
        beta1, beta2 = group["betas"]
        rate = group["lr"] / (1 - beta1 ** state["step"])
        correction = (1 - beta2 ** state["step"]) ** 0.5
        flat, gradient = parameter.view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        begin, whole = self.extent(parameter)
        for start in range(0, whole, CHUNK):
            stop = min(start + CHUNK, whole)
            part = slice(
                min(max(start - begin, 0), len(flat)), min(max(stop - begin, 0), len(flat))
            )
            before = begin + part.start - start if part.start < part.stop else 0
            after = stop - start - before - (part.stop - part.start)
            g = gradient[part].float()
            m = mean.read(part).lerp(g, 1 - beta1)
            v = square.read(part).lerp(g.square(), 1 - beta2)
            values = flat[part].float().mul_(1 - group["lr"] * group["weight_decay"])
            values.addcdiv_(m, (v.sqrt() / correction).add_(group["eps"]), value=-rate)
            if flat.dtype == torch.bfloat16:
                values = rounded_at_random(values, generator, before=before, after=after)
            flat[part] = values.to(flat.dtype)
            mean.write(part, m, generator, before=before, after=after)
            square.write(part, v, generator, before=before, after=after)


def rounded_at_random(
    values: Tensor, generator: torch.Generator, *, before: int = 0, after: int = 0
) -> Tensor:
    """Round float32 *values* [n] to numbers of bfloat16, up or down at random so that the mean is
    exact. *before* and *after* are as of `Moment.write`.
    """
    bits = values.contiguous().view(torch.int32)
    # bfloat16 is the upper half of float32: adding less than one unit of it carries with the
    # probability of the lower half.
    count = before + len(bits) + after
    drawn = torch.randint(
        0, 2**16, (count,), dtype=torch.int32, device=bits.device, generator=generator
    )[before : before + len(bits)]
    return (bits + drawn).bitwise_and_(-(2**16)).view(torch.float32)
