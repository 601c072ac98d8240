import enum
from dataclasses import dataclass


class NetworkMode(enum.StrEnum):
    NO_NETWORK = "no-network"
    PUBLIC = "public"


@dataclass
class NetworkPolicy:
    network_mode: NetworkMode = NetworkMode.PUBLIC


@dataclass
class EnvironmentConfig:
    docker_image: str | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    storage_mb: int | None = None
    workdir: str | None = None
