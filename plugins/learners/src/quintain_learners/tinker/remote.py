"""An adapter that trains on a server of Tinker's API, through the SDK.

Shapes: N positions.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quintain.errors import RunError, UsageError
from quintain.models import TokenSequence

__all__ = ["RemoteAdapter", "sdk"]

KEPT_SECONDS = 3600
"""Seconds after which the server may forget an export that was not deleted, the least it takes."""


def sdk() -> Any:
    """Return the module of the SDK.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import tinker
    except ImportError as e:
        raise UsageError(
            "learner tinker needs Tinker's SDK; pip install 'quintain-learners[tinker]'"
        ) from e
    return tinker


def result_of(future: Any) -> Any:
    """Return what *future* of the SDK becomes. A run updates within its event loop, and the SDK
    warns there of each call that waits, so another thread waits.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(future.result).result()


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn what the SDK raises into a `RunError` that says *what* was asked."""
    try:
        yield
    except (sdk().TinkerError, OSError, TimeoutError) as e:
        raise RunError(f"learner tinker: the server failed to {what}: {e}") from e


class RemoteAdapter:
    """A training client, and what it is asked.

    Args:
        base_url: of the server; ``None`` is ``TINKER_BASE_URL``, or Tinker's own.
        base_model: as the server names it; ``None`` is its only one.
        rank: of the adapter.
        seed: of its initial values; ``None`` lets the server draw one.
        parts: ``train_attn`` and ``train_mlp``. The output layer has no adapter.

    Raises:
        UsageError: the SDK is not installed, there is no server or key, or the server has several
            models.
    """

    def __init__(
        self,
        *,
        base_url: str | None,
        base_model: str | None,
        rank: int,
        seed: int | None,
        parts: Mapping[str, bool],
    ) -> None:
        tinker = sdk()
        where = base_url or "TINKER_BASE_URL"
        self._of_adapter = {"rank": rank, "train_unembed": False, **parts}
        try:
            self._service = tinker.ServiceClient(base_url=base_url)
            self._rest = tinker.RestClient(base_url=base_url)
            self.base_model = base_model or self._only_model()
            try:
                self._client = self._created(seed)
            except BaseException:
                self.close("errored")  # or it sends heartbeats as long as this process lives
                raise
        except (tinker.TinkerError, ValueError, OSError) as e:
            if isinstance(e, UsageError):
                raise
            raise UsageError(
                f"learner tinker: no adapter of rank {rank} at {where}: {e}. Set "
                "learner.args.base_url, and TINKER_API_KEY in the environment"
            ) from e
        self._base: Any = None
        self._parts: list[Any] = []
        """Data of the backward passes since the last step."""

    def begin(self) -> None:
        """Forget backward passes that no step followed."""
        self._parts = []

    def logps(self, rows: Sequence[TokenSequence]) -> list[float]:
        """Return the log-probs of the tokens at the positions of *rows*, in their order, [N]."""
        with asking("compute log-probs"):
            return _scored(self._client, rows)

    def base_logps(self, rows: Sequence[TokenSequence]) -> list[float]:
        """Return what `logps` does, of the model without an adapter."""
        with asking("score tokens by its base model"):
            if self._base is None:
                # A new adapter changes nothing. The API's own call for this samples a token behind
                # each text, for which one that fills the context has no room.
                self._base = self._created(seed=0)
            return _scored(self._base, rows)

    def backward(self, rows: Sequence[TokenSequence], gradient_N: Tensor) -> None:
        """Add up a gradient for the next `step`, which sends it: *gradient_N* is that of the loss by
        the log-probs of *rows*. The server's loss is - sum w p, so w is its negative.
        """
        weights = (-gradient_N).tolist()
        for row in rows:
            count = len(row.positions)
            self._parts.append(_datum(row, weights[:count]))
            weights = weights[count:]

    def step(self, **settings: float) -> float:
        """Send the backward passes since the last step, take a step of AdamW with the *settings* of
        ``AdamParams``, and return the norm of the gradient before clipping.

        Raises:
            RunError: the server refused, as for a gradient that is not finite.
        """
        parts, self._parts = self._parts, []
        with asking("take a step"):
            passes = self._client.forward_backward(parts, "cross_entropy")
            result_of(passes)  # a refusal must not be followed by a step
            done = result_of(self._client.optim_step(sdk().types.AdamParams(**settings)))
        return float(done.metrics["grad_norm:mean"])

    def save(self) -> str:
        """Keep adapter and moments on the server and return their path."""
        with asking("save its state"):
            return str(result_of(self._client.save_state(_name())).path)

    def load(self, path: str) -> None:
        """Restore what `save` kept."""
        with asking(f"load {path}"):
            created = self._service.create_training_client_from_state_with_optimizer(path)
            self._client = result_of(created)

    def export(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the adapter's tensors under the names of peft, and its configuration."""
        from safetensors.torch import load

        with asking("export the adapter"):
            saved = self._client.save_weights_external(_name(), ttl_seconds=KEPT_SECONDS)
            path = result_of(saved).path
            urls = result_of(self._rest.get_external_weights_urls(path)).urls
            files = {name: _read(url) for name, url in urls.items()}
            result_of(self._rest.delete_checkpoint_from_tinker_path(path))
        config: dict[str, Any] = json.loads(files["adapter_config.json"])
        return load(files["adapter_model.safetensors"]), config

    def forget(self, path: str) -> bool:
        """Delete what `save` kept; returns whether it was still there."""
        try:
            with asking(f"delete {path}"):
                result_of(self._rest.delete_checkpoint_from_tinker_path(path))
        except RunError as e:
            if isinstance(e.__cause__, sdk().NotFoundError):
                return False
            raise
        return True

    def close(self, status: str = "success") -> None:
        """End the session. What was saved stays."""
        with asking("end the session"):
            result_of(self._service.close(status))

    def _created(self, seed: int | None) -> Any:
        """Return a client of a new adapter."""
        return result_of(
            self._service.create_lora_training_client(
                self.base_model, seed=seed, **self._of_adapter
            )
        )

    def _only_model(self) -> str:
        offered = result_of(self._rest.get_server_capabilities())
        models = [one.model_name for one in offered.supported_models]
        if len(models) != 1:
            raise UsageError(
                f"learner tinker: the server has the models {', '.join(map(str, models))}; set "
                "learner.args.base_model to one of them"
            )
        return str(models[0])


class _Logps(torch.autograd.Function):
    """Log-probs from the server, whose gradient goes to the server.

    *anchor* is a parameter of the local copy. Its gradient of zeros says that a pass has been made:
    where it is none, a new update begins.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, remote: RemoteAdapter, rows: Any) -> Tensor:
        ctx.remote, ctx.rows = remote, rows
        ctx.save_for_backward(anchor)
        return torch.tensor(remote.logps(rows), dtype=anchor.dtype, device=anchor.device)

    @staticmethod
    def backward(ctx: Any, gradient_N: Tensor) -> Any:
        (anchor,) = ctx.saved_tensors
        ctx.remote.backward(ctx.rows, gradient_N)
        return torch.zeros_like(anchor), None, None


def logps_with_gradient(
    anchor: Tensor, remote: RemoteAdapter, rows: Sequence[TokenSequence]
) -> Tensor:
    """Return the log-probs of `RemoteAdapter.logps`, [N], with a gradient that *remote* collects."""
    if torch.is_grad_enabled() and anchor.grad is None:
        remote.begin()
    apply: Callable[..., Tensor] = _Logps.apply
    return apply(anchor, remote, tuple(rows))


def _scored(client: Any, rows: Sequence[TokenSequence]) -> list[float]:
    data = [_datum(row, [0.0] * len(row.positions)) for row in rows]
    outputs = result_of(client.forward(data, "cross_entropy")).loss_fn_outputs
    return [
        float(output["logprobs"].data[position - 1])
        for row, output in zip(rows, outputs, strict=True)
        for position in row.positions
    ]


def _datum(row: TokenSequence, weights: Sequence[float]) -> Any:
    types = sdk().types
    ids = [*row.ids]
    whole = [0.0] * (len(ids) - 1)
    for position, weight in zip(row.positions, weights, strict=True):
        whole[position - 1] = weight
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": whole},
    )


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=600) as answer:
        content: bytes = answer.read()
        return content


def _name() -> str:
    return f"quintain-{secrets.token_hex(8)}"
