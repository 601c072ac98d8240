"""The arguments and the environment in which vLLM starts."""

from __future__ import annotations

from typing import Any

from quintain.errors import UsageError

from .settings import Settings

BLOCK = 16
"""Tokens per block of keys and values; shorter prompts are not shared."""
CACHE_BYTES = 4 * 2**30
"""Largest memory for keys and values on a CPU by default."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters that vLLM has kernels for."""
VERSIONS = ((0, 32), (0, 34))
"""Of vLLM: from the first up to, not including, the second."""
ENVIRONMENT = {
    # by default it pins this process, learner included, to some cores
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def check_installed() -> None:
    """Raise a `UsageError` unless a supported vLLM is installed, under either of its distributions'
    names.
    """
    try:
        import vllm
    except ImportError as e:
        raise UsageError(
            "the engine vllm needs vLLM: pip install 'quintain-engines[vllm]', or, to try it on a CPU, "
            f"bash tools/vllm_env.sh ({e})"
        ) from e
    parts = vllm.__version__.split(".")[:2]
    if not all(part.isdigit() for part in parts):
        return  # built from a checkout
    low, high = VERSIONS
    if not low <= tuple(map(int, parts)) < high:
        span = " <= vllm < ".join(".".join(map(str, v)) for v in VERSIONS)
        raise UsageError(f"vllm {vllm.__version__} is installed; this engine is written for {span}")


def engine_args(
    settings: Settings,
    *,
    folder: str,
    config: Any,
    module: Any,
    dtype: str,
    context: int,
    backend: str,
) -> dict[str, Any]:
    """Return the fields of ``vllm.EngineArgs`` that both modes set.

    Args:
        folder: of config, tokenizer and, without a *module* or with its adapters, weights.
        module: the learner's, whose weights are transferred before anything is sampled.
        backend: of the weight transfer.
    """
    args: dict[str, Any] = {
        "model": folder,
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": settings.slots,
        "seed": 0,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "block_size": BLOCK,
        "load_format": "dummy" if module is not None and not settings.adapters else "auto",
        "worker_extension_cls": "quintain_engines.vllm.worker.WorkerExtension",
        "weight_transfer_config": {"backend": backend},
        "enable_sleep_mode": settings.sleep_mode,
        # scheduling ahead of a step would give its tokens the version of the next weights
        "async_scheduling": False,
    }
    if hasattr(config, "vision_config"):
        # requests bring the inputs of the vision tower ready made
        args["mm_processor_cache_gb"] = 0
    if settings.gpu_share is not None:
        args["gpu_memory_utilization"] = settings.gpu_share
    if settings.adapters:
        rank = max(adapter.r for adapter in module.peft_config.values())
        args |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": next((r for r in RANKS if r >= rank), rank),
        }
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        args |= {
            "enforce_eager": True,
            "block_size": 2 * BLOCK,
            "kv_cache_memory_bytes": cache_bytes(config, dtype, settings.slots, context),
            # of a prompt in chunks, vLLM sets the seeded generator back, which generators of a CPU
            # refuse
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(context, settings.slots, 8192),
        }
        if hasattr(config, "vision_config"):
            args["skip_mm_profiling"] = True  # it measures the memory of a GPU
    return args


def cache_bytes(config: Any, dtype: str, slots: int, context: int) -> int:
    """Return the memory for the keys and values of *slots* sequences, in bytes, at most
    `CACHE_BYTES`: on a CPU vLLM would take a share of all memory.
    """
    text = config.get_text_config()
    heads = text.num_attention_heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    width = (getattr(text, "head_dim", None) or text.hidden_size // heads) * key_heads
    per_token = 2 * text.num_hidden_layers * width * (4 if dtype in ("float32", "auto") else 2)
    block = 2 * BLOCK
    tokens = (slots + 1) * block * -(-context // block)
    return int(max(64 * 2**20, min(CACHE_BYTES, per_token * tokens)))
