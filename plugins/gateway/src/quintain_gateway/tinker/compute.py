"""The numbers: log-probs and gradients of batches, and samples, of an adapter on the one base.

Shapes: N positions, D hidden size, V vocabulary, K ids per position.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quintain import Sampling
from quintain.engine import EmbeddedEngine
from quintain.errors import LimitReached
from quintain.models import Forward, TokenSequence, digest_of, load_model, statistics
from quintain.types import derived_seed

from ..errors import invalid, unsupported
from .adapters import Adapter, Bank
from .head import adapted_logps
from .losses import check, loss_of
from .requests import Datum, ForwardBackward, TensorData, ids_of, reading
from .together import Together, rows_in_step

__all__ = ["Compute", "SampleRequest", "sample_request_of"]

TOKENS = 2048
"""Tokens of one forward pass."""
MOST_SAMPLES, MOST_TOP = 1024, 64


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """What a client asks of a sampler.

    Attributes:
        count: number of continuations.
        prompt_logps: whether to score the prompt, of which only the last *last* tokens if given.
        top_prompt, top_sampled: number of likeliest tokens to return per position.
    """

    ids: list[int]
    count: int
    sampling: Sampling
    prompt_logps: bool = False
    last: int | None = None
    top_prompt: int = 0
    top_sampled: int = 0


class Compute:
    """One base, on which adapters take turns, but for samples that are decoded together; used by one
    thread.

    Args:
        slots: samples decoded at once.
        together: decode samples of several requests together, where that keeps the bits of each.

    Attributes:
        bank: makes adapters.
        base: digest of the weights of the base.
        context: tokens of the longest sequence.

    Raises:
        UsageError: the model cannot be loaded, trained or sampled from.
    """

    def __init__(
        self, path: str, *, slots: int, dtype: str = "float32", together: bool = True
    ) -> None:
        loaded = load_model(path, dtype=dtype)
        self.path = loaded.path
        self.architecture = type(loaded.module).__name__
        self.base = digest_of(loaded.module)
        self.tokenizer = loaded.tokenizer
        self.bank = Bank(loaded.module)
        self._forward = Forward(loaded.module)
        # It reads the maps of this module, adapters included, and forgets all it cached when no
        # request is left, so that a reply depends on its request alone.
        self._engine = EmbeddedEngine.sharing(
            loaded.module, loaded.tokenizer, slots=slots, reproducible=True, merge=False
        )
        self.context = self._engine.context
        self.vocabulary = self._engine.tokenizer.vocab_size
        self._loop = asyncio.new_event_loop()
        # A GPU's kernels, and models whose own forward decodes, take one request at a time.
        layers = self._engine.path.startswith("LayerForward") and self._forward.device.type == "cpu"
        self._together: Together | None = None
        step = rows_in_step(loaded.module, self.bank, slots) if together and layers else 0
        if step:
            about = {"rows": slots, "step": step, "context": self.context, "words": self.vocabulary}
            self._together = Together(loaded.module, self.bank, **about)
        self._begun: dict[str, tuple[Adapter | None, SampleRequest]] = {}

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.__aexit__(None, None, None))
        self._loop.close()

    def forward_backward(self, adapter: Adapter, request: ForwardBackward) -> dict[str, Any]:
        """Return the log-probs of all target tokens and the sum of the losses, and add the
        gradient of that sum to those of *adapter*, unless the request is for the forward pass
        alone. A request that fails adds nothing.

        Raises:
            ApiError: 400, a datum is wrong, or the loss or the gradient is not finite.
        """
        self.check(request)
        before = [(p, p.grad) for p in adapter.parameters()]
        for parameter, _ in before:
            parameter.grad = None
        self.bank.use(adapter)
        for parameter in adapter.parameters():
            parameter.requires_grad_(not request.forward_only)
        try:
            outputs, total = self._passes(request)
            if not math.isfinite(total):
                raise invalid(
                    f"the loss is {total}: a ratio of probabilities or an input is not finite"
                )
            for parameter, gradient in before:
                if gradient is not None:
                    parameter.grad = (
                        gradient if parameter.grad is None else gradient + parameter.grad
                    )
            _check_gradient(adapter)
        except BaseException:
            for parameter, gradient in before:
                parameter.grad = gradient
            raise
        kind = "ArrayRecord"
        return {
            "loss_fn_output_type": kind,
            "loss_fn_outputs": outputs,
            "metrics": {"loss:sum": total},
        }

    def check(self, request: ForwardBackward) -> None:
        """Check all of *request* that is wrong whatever the weights are.

        Raises:
            ApiError: 400.
        """
        if not request.data:
            raise invalid("there is no datum", "data")
        for number, datum in enumerate(request.data):
            check(request.loss, datum.inputs, request.config)
            self._check_ids(datum.ids, f"datum {number}")
            shape = datum.inputs["target_tokens"].shape
            wide = len(shape) == 2 and request.loss == "cross_entropy"
            if not (shape[:1] == (len(datum.ids),) and (len(shape) == 1 or wide)):
                raise invalid(
                    f"datum {number}: target_tokens have shape {list(shape)}, model_input has "
                    f"{len(datum.ids)} tokens"
                )
            for name, tensor in datum.inputs.items():
                if tensor.shape != shape:
                    raise invalid(
                        f"datum {number}: {name} has shape {list(tensor.shape)}, target_tokens "
                        f"{list(shape)}"
                    )
            targets = datum.inputs["target_tokens"].values
            if any(not (0 <= t < self.vocabulary and t == int(t)) for t in targets):
                raise invalid(
                    f"datum {number}: a target token is no id of 0 .. {self.vocabulary - 1}"
                )

    def sample(self, adapter: Adapter | None, request: SampleRequest) -> dict[str, Any]:
        """Return continuations with their log-probs, and those of the prompt if asked for.

        Raises:
            ApiError: 400, the prompt leaves no room, or something is not served.
        """
        self.begin("", adapter, request)
        while not (ended := self.advance()):
            pass
        ((_, result),) = ended
        if isinstance(result, Exception):
            raise result
        return result

    def fits(self, request: SampleRequest) -> bool:
        """Return whether `begin` may be called for *request* now, which others are decoded beside."""
        if not self._begun:
            return True
        return self._together is not None and self._together.fits(self._requests(request))

    def begin(self, name: str, adapter: Adapter | None, request: SampleRequest) -> None:
        """Begin to sample; the answer has *name*.

        Raises:
            ApiError: 400, the prompt leaves no room, or something is not served.
        """
        self._check_ids(request.ids, "the prompt")
        requests = self._requests(request)
        if self._together is not None:
            self._together.begin(name, adapter, requests)
        self._begun[name] = adapter, request

    def advance(self) -> list[tuple[str, dict[str, Any] | Exception]]:
        """Decode for a short time; returns the answers that are complete, with their names. What
        fails as a whole fails all that have begun.
        """
        begun = {**self._begun}
        try:
            if self._together is None:
                ended: list[Any] = []
                for name, (adapter, request) in begun.items():
                    self.bank.use(adapter)
                    ended.append((name, self._loop.run_until_complete(self._sampled(request))))
            else:
                ended = self._together.step()
                self._together.drop([name for name, _ in ended])
            for name, _ in ended:
                del self._begun[name]
            return [(name, self._answer(*begun[name], sampled)) for name, sampled in ended]
        except Exception as error:  # noqa: BLE001 -- whatever it is, the clients are told
            self._begun.clear()
            if self._together is not None:
                self._together.drop(begun)
            return [(name, error) for name in begun]

    def _answer(
        self, adapter: Adapter | None, request: SampleRequest, sampled: list[Any] | str
    ) -> dict[str, Any] | Exception:
        if isinstance(sampled, str):
            return RuntimeError(sampled)
        self.bank.use(adapter)
        result: dict[str, Any] = {"type": "sample", "sequences": []}
        for reply in sampled:
            sequence = {
                "stop_reason": "stop" if reply.finish == "stop" else "length",
                "tokens": [*reply.ids],
                "logprobs": [*reply.logps],
            }
            if request.top_sampled:
                whole = [*request.ids, *reply.ids]
                _, top = self._scored(whole, len(request.ids), request.top_sampled)
                sequence["topk_logprobs"] = top
            result["sequences"].append(sequence)
        if request.prompt_logps or request.top_prompt:
            first = max(1, len(request.ids) - (request.last or len(request.ids)))
            logps, top = self._scored(request.ids, first, request.top_prompt)
            empty: list[Any] = [None] * first
            if request.prompt_logps:
                result["prompt_logprobs"] = [*empty, *logps]
            if request.top_prompt:
                result["topk_prompt_logprobs"] = [*empty, *top]
        return result

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        if not ids:
            raise invalid(f"{what} is empty")
        if len(ids) > self.context:
            raise invalid(f"{what} has {len(ids)} tokens; the context has {self.context}")
        if any(not 0 <= i < self.vocabulary for i in ids):
            raise invalid(f"{what} has a token outside of 0 .. {self.vocabulary - 1}")

    def _passes(self, request: ForwardBackward) -> tuple[list[dict[str, Any]], float]:
        outputs: list[dict[str, Any]] = []
        total = 0.0
        with torch.set_grad_enabled(not request.forward_only):
            for data in _batches(request.data):
                losses = []
                logps = self._logps(data)
                for datum, logp in zip(data, logps, strict=True):
                    inputs = {
                        name: _as_tensor(tensor, logp)
                        for name, tensor in datum.inputs.items()
                        if name != "target_tokens"
                    }
                    losses.append(loss_of(request.loss, logp, inputs, request.config))
                    cells = logp.detach().flatten().tolist()
                    record = {"data": cells, "dtype": "float32", "shape": [*logp.shape]}
                    outputs.append({"logprobs": record})
                summed = torch.stack(losses)
                total += float(summed.detach().double().sum())
                if not request.forward_only and math.isfinite(total):
                    torch.autograd.backward(summed.sum())
        return outputs, total

    def _logps(self, data: Sequence[Datum]) -> list[Tensor]:
        """Return of each datum the log-probs of its target tokens, [N] or [N, K]."""
        rows = [TokenSequence([*d.ids, 0], range(1, len(d.ids) + 1)) for d in data]
        hidden = self._forward.hidden([[row] for row in rows])
        shapes = [d.inputs["target_tokens"].shape for d in data]
        width = shapes[0][1] if len(shapes[0]) == 2 else 1
        cells = [cell for d in data for cell in d.inputs["target_tokens"].values]
        asked = torch.tensor(cells, device=hidden.device, dtype=torch.long).view(-1, width)
        head = self.bank.head
        factors = self.bank.head_factors
        if factors is not None:
            mapped = self._forward.logit_map
            logp: Any = adapted_logps(hidden, head, factors, head.scale, asked, mapped)
        else:
            more = asked[:, 1:] if width > 1 else None
            found = self._statistics(hidden, head.weight, asked[:, 0], asked_NK=more)
            logp = found.logp[:, None]
            if found.asked_logp is not None:
                logp = torch.cat([logp, found.asked_logp], dim=1)
        parts = logp.split([shape[0] for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _statistics(self, hidden: Tensor, weight: Tensor, target: Tensor, **options: Any) -> Any:
        return statistics(
            hidden,
            weight,
            target,
            bias_V=self.bank.head.bias,
            logit_map=self._forward.logit_map,
            **options,
        )

    @torch.no_grad()
    def _scored(self, ids: Sequence[int], first: int, top: int) -> tuple[list[float], list[Any]]:
        """Return the log-probs of ``ids[first:]``, and the *top* likeliest tokens in their places."""
        if first >= len(ids):
            return [], []
        hidden = self._forward.hidden([[TokenSequence(ids, range(first, len(ids)))]])
        target = torch.tensor(ids[first:], device=hidden.device)
        found = self._statistics(hidden, self.bank.head_weight(), target, top=top)
        likeliest: list[Any] = []
        if top:
            pairs = zip(found.top_ids.tolist(), found.top_logp.tolist(), strict=True)
            likeliest = [[[i, p] for i, p in zip(*row, strict=True)] for row in pairs]
        return found.logp.tolist(), likeliest

    def _requests(self, request: SampleRequest) -> list[Any]:
        async def made() -> list[Any]:  # each has a future, of a loop that runs
            return [self._engine.request(request.ids, s) for s in _samplings(request)]

        try:
            return self._loop.run_until_complete(made())
        except LimitReached as e:
            raise invalid(str(e)) from e

    async def _sampled(self, request: SampleRequest) -> list[Any]:
        try:
            samples = (self._engine.sample(request.ids, s) for s in _samplings(request))
            return await asyncio.gather(*samples)
        except LimitReached as e:
            raise invalid(str(e)) from e


def _samplings(request: SampleRequest) -> list[Sampling]:
    seed = request.sampling.seed or 0
    seeds = (derived_seed("tinker-sample", seed, number) for number in range(request.count))
    return [request.sampling.replace(seed=one) for one in seeds]


def sample_request_of(body: Mapping[str, Any], name: str, words: int) -> SampleRequest:
    """Return the ``SampleRequest`` in *body*; *name*, that of the request, is its seed where it has
    none, so that a request that runs again gives the same reply.

    Raises:
        ApiError: 400, a setting is wrong or not served.
    """
    with reading():
        return _sample_request_of(body, name, words)


def _sample_request_of(body: Mapping[str, Any], name: str, words: int) -> SampleRequest:
    for field in ("target_prompt_logprobs", "prompt_alt_tokens_k"):
        if body.get(field):
            raise unsupported(field, f"{field} is not served; ask for topk_prompt_logprobs")
    if body.get("record_stability_info"):
        raise unsupported(
            "record_stability_info", "it is for stable_reinforce, which is not served"
        )
    count = int(body.get("num_samples", 1))
    top = [int(body.get(f"topk_{part}_logprobs") or 0) for part in ("prompt", "sample")]
    if not 1 <= count <= MOST_SAMPLES:
        raise invalid(f"num_samples is {count}; expected 1 to {MOST_SAMPLES}", "num_samples")
    if not all(0 <= k <= MOST_TOP for k in top):
        raise invalid(f"top-k log-probs are for 0 to {MOST_TOP} tokens, not {max(top)}")
    last = body.get("prompt_logprobs_last_n")
    if last is not None and int(last) < 0:
        raise invalid(f"prompt_logprobs_last_n is {last}; expected 0 or more")
    return SampleRequest(
        ids=ids_of(body["prompt"]),
        count=count,
        sampling=_sampling_of(body["sampling_params"], derived_seed("tinker", name), words),
        prompt_logps=bool(body.get("prompt_logprobs")),
        last=None if last is None else int(last),
        top_prompt=top[0],
        top_sampled=top[1],
    )


def _sampling_of(params: Mapping[str, Any], seed: int, words: int) -> Sampling:
    stop = params.get("stop")
    if isinstance(stop, list) and not stop:
        raise unsupported(
            "stop", "stop = [] is not served: the model's own end always ends a reply"
        )
    stops = [stop] if isinstance(stop, str) else list(stop or ())
    if any(s == "" or type(s) not in (str, int) for s in stops):
        raise invalid("stop has neither texts nor ids of tokens", "stop")
    given, most = params.get("seed"), params.get("max_tokens")
    top_k = int(params.get("top_k", -1))
    try:
        return Sampling(
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=0 if top_k < 0 or top_k >= words else top_k,
            max_tokens=None if most is None else int(most),
            stop=tuple(s for s in stops if isinstance(s, str)),
            stop_ids=tuple(s for s in stops if not isinstance(s, str)),
            seed=seed if given is None else int(given),
        )
    except ValueError as e:
        raise invalid(str(e), "sampling_params") from e


def _check_gradient(adapter: Adapter) -> None:
    """Refuse what would make every weight NaN in the next step."""
    gradients = [p.grad for p in adapter.parameters() if p.grad is not None]
    if gradients and not math.isfinite(float(torch.nn.utils.get_total_norm(gradients))):
        raise invalid(
            "the gradient is not finite: a ratio of probabilities or an input is too large"
        )


def _batches(data: Sequence[Datum]) -> Iterator[list[Datum]]:
    """Yield *data* in order, as many as fit a pass and have targets of one width."""
    batch: list[Datum] = []
    for datum in data:
        width = datum.inputs["target_tokens"].shape[1:]
        tokens = sum(len(d.ids) for d in [*batch, datum])
        if batch and (tokens > TOKENS or batch[0].inputs["target_tokens"].shape[1:] != width):
            yield batch
            batch = []
        batch.append(datum)
    if batch:
        yield batch


def _as_tensor(given: TensorData, like: Tensor) -> Tensor:
    return torch.tensor(given.values, dtype=like.dtype, device=like.device).view(given.shape)
