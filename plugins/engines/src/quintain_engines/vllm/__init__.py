"""vLLM as an engine: sampled tokens with log-probs and weight versions, and weight updates that a
canary checks.
"""

from .errors import CanaryError, SleepUnsupportedError, UndeliveredError, WeightSyncError
from .local import VLLMEngine
from .server import VLLMServer

__all__ = [
    "CanaryError",
    "SleepUnsupportedError",
    "UndeliveredError",
    "VLLMEngine",
    "VLLMServer",
    "WeightSyncError",
]
