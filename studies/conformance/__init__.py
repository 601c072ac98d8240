"""Cases of agents, against which a capture layer is compared with the log of a scripted engine::

from studies.conformance import CASES, GatewayLayer, run_cases

for result in run_cases([*CASES.values()], GatewayLayer()):
    print(result.case, result.dialect, result.outcome)
"""

from __future__ import annotations

from .case import FEATURES, CaptureCase
from .cases import CASES
from .comparison import COLUMNS, TokenDifference, TrainingSequence, compared
from .layer import Capture, CaptureLayer, GatewayLayer, ServeLayer
from .suite import Result, run_case, run_cases
from .truth import SampledTurn, TruthEngine

__all__ = [
    "CASES",
    "COLUMNS",
    "FEATURES",
    "Capture",
    "CaptureCase",
    "CaptureLayer",
    "GatewayLayer",
    "Result",
    "SampledTurn",
    "ServeLayer",
    "TokenDifference",
    "TrainingSequence",
    "TruthEngine",
    "compared",
    "run_case",
    "run_cases",
]
