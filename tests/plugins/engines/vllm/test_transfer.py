"""What goes over the wire, from which thread, and what the canary sees of it; vLLM itself is not
needed.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from quintain.learning import ModuleWeights
from quintain.models import HFTokenizer
from quintain_engines.vllm import CanaryError, transports
from quintain_engines.vllm.base import SyncedEngine, VLLMOutput
from quintain_engines.vllm.canary import canary_ids, forward_log_probs
from quintain_engines.vllm.handover import handed
from quintain_engines.vllm.settings import Settings
from quintain_engines.vllm.transports import File, Memory, Transport

from ....core.models.tiny import byte_tokenizer, tiny_model


def sent_file(transport: File, tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors in the file that *transport* sends, and the aliases."""
    received: list[tuple[dict[str, Any], dict[str, str]]] = []

    class Control:
        async def update_weights(self, info: Mapping[str, Any]) -> None:
            received.append((load_file(info["path"]), info["aliases"]))

    asyncio.run(transport.send(Control(), tensors))
    return received[0]


@pytest.mark.parametrize(
    ("dtype", "wire"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)]
)
def test_matrices_travel_in_the_engines_precision(
    dtype: str, wire: torch.dtype, tmp_path: Path
) -> None:
    """Half the bytes of float32; vectors stay, and tied tensors travel once."""
    transport, matrix = File(str(tmp_path)), torch.randn(8, 4)
    transport.dtype = dtype
    stored, aliases = sent_file(transport, {"embed": matrix, "norm": torch.ones(4), "head": matrix})
    assert {name: tensor.dtype for name, tensor in stored.items()} == {
        "embed": wire,
        "norm": torch.float32,
    }
    assert aliases == {"head": "embed"}
    assert torch.equal(stored["embed"], matrix.to(wire))


class OnGpu(torch.Tensor):
    """A stand-in for a tensor of a GPU: its copies are made when somebody waits for them."""

    is_cuda = True  # type: ignore[assignment]
    waiting: ClassVar[list[tuple[torch.Tensor, torch.Tensor]]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_:
            assert kwargs == {"non_blocking": True}
            cls.waiting.append((args[0], args[1].as_subclass(torch.Tensor)))
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def run(cls) -> None:
        while cls.waiting:
            target, source = cls.waiting.pop()
            target.copy_(source)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, stream = torch.empty, SimpleNamespace(synchronize=OnGpu.run)

    def pinned(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        assert pin_memory
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)


def test_a_file_is_written_when_all_copies_from_the_gpu_have_ended(
    tmp_path: Path, gpu: None
) -> None:
    """They are under way together, into pinned memory."""
    transport, tensors = File(str(tmp_path)), {"a": torch.randn(8, 4), "b": torch.randn(3)}
    transport.dtype = "bfloat16"
    on_gpu = {name: tensor.as_subclass(OnGpu) for name, tensor in tensors.items()}
    stored, _ = sent_file(transport, on_gpu)
    assert torch.equal(stored["a"], tensors["a"].bfloat16())
    assert torch.equal(stored["b"], tensors["b"])


def test_an_engine_of_this_process_reads_weights_that_the_gpu_has_computed(gpu: None) -> None:
    """It reads them in another thread, whose work the device may do first."""
    weight = torch.zeros(3).as_subclass(OnGpu)
    OnGpu.waiting.append((weight.as_subclass(torch.Tensor), torch.ones(3)))
    read: list[list[float]] = []

    class Control:
        async def update_weights(self, info: Mapping[str, Any]) -> None:
            read.append(handed[info["key"]]["a"].tolist())

    control: Any = Control()
    asyncio.run(Memory().send(control, {"a": weight}))
    assert read == [[1, 1, 1]]


class Plain(SyncedEngine):
    """An engine that computes with a module of its own, *spoil* of the learner's, by plain
    forwards.
    """

    name = "plain"

    def __init__(self, module: Any, spoil: Any) -> None:
        self._spoil, self._own = spoil, module
        self.path = "plain"
        tokenizer = HFTokenizer(byte_tokenizer())
        self._configure(
            Settings(), Arrives(), tokenizer=tokenizer, config=module.config, module=module
        )

    async def _generate(self, ids: Sequence[int], fields: Mapping[str, Any]) -> VLLMOutput:
        logps = forward_log_probs(self._spoil(self._own), ids)
        after = (logps[-1] / fields["temperature"]).log_softmax(-1)
        chosen = int(after.argmax())
        return VLLMOutput(
            ids=(chosen,),
            logps=(float(after[chosen]),),
            spans=((str(self.version), 0, 1),),
            finish="length",
            prompt_logps=tuple(logps[range(len(ids) - 1), list(ids[1:])].tolist()),
            asked=float(after[fields["logprob_token_ids"][0]])
            if "logprob_token_ids" in fields
            else None,
        )

    async def _nothing(self, *_args: Any) -> Any:
        return None

    async def _rpc(self, method: str, *_args: Any) -> Any:
        return {}  # reads no weights back

    _start = _stop = _pause = _resume = _reset_prefix_cache = _load_adapter = _wake_up = _nothing

    def _control(self) -> Any:
        return self

    def _can_sleep(self) -> bool:
        return False

    def _fall_asleep(self, level: int) -> None:
        raise NotImplementedError


class Arrives(Transport):
    async def open(self, control: Any) -> None:
        pass

    async def send(self, control: Any, tensors: Mapping[str, Any]) -> None:
        pass

    async def transfer(self, control: Any, tensors: Mapping[str, Any], version: int) -> None:
        pass


def test_input_embeddings_beyond_the_fixed_sequence_are_seen() -> None:
    """Untied, rows of tokens that the fixed sequence does not have change none of its log-probs."""
    module = tiny_model("llama", context=128)
    seen = sorted(set(canary_ids(module.config.vocab_size, 128)))

    def others_differ(model: Any) -> Any:
        spoilt = copy.deepcopy(model)
        with torch.no_grad():
            rows = spoilt.get_input_embeddings().weight
            kept = rows[seen].clone()
            rows += 1.0
            rows[seen] = kept
        return spoilt

    assert module.get_input_embeddings().weight is not module.get_output_embeddings().weight
    asyncio.run(Plain(module, lambda model: model).update(ModuleWeights(module, 3)))
    with pytest.raises(CanaryError, match="weights of version 3 did not arrive"):
        asyncio.run(Plain(module, others_differ).update(ModuleWeights(module, 3)))


def test_files_have_a_part_of_the_weights_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of some bytes, each tensor once: tied ones together, and one that is larger alone."""
    monkeypatch.setattr(transports, "BUCKET", 100)
    tensors = {"a": torch.ones(10), "b": torch.ones(20), "c": torch.ones(50), "d": torch.ones(2)}
    tensors["e"] = tensors["a"]
    files: list[tuple[set[str], dict[str, str]]] = []

    class Control:
        async def update_weights(self, info: Mapping[str, Any]) -> None:
            files.append((set(load_file(info["path"])), info["aliases"]))

    asyncio.run(File(str(tmp_path)).send(Control(), tensors))
    assert files == [({"a"}, {"e": "a"}), ({"b"}, {}), ({"c"}, {}), ({"d"}, {})]
    files.clear()
    lazily = MappingProxyType(tensors)  # no dict: its tensors are made when they are asked for
    asyncio.run(File(str(tmp_path)).send(Control(), lazily))
    assert [names for names, _ in files] == [{"a"}, {"b"}, {"c"}, {"d", "e"}]
    assert not list(tmp_path.iterdir())
