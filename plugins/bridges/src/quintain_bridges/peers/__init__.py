"""Tasks of libraries that need a virtual environment of their own."""

from __future__ import annotations

from .environment import PeerTask, PeerTasks, score_of_peer
from .process import Peer
from .verifiers_server import VerifiersServer

__all__ = ["Peer", "PeerTask", "PeerTasks", "VerifiersServer", "score_of_peer"]
