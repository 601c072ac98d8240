from dataclasses import dataclass, field


@dataclass
class EnvironmentConfig:
    type: str | None = None
    import_path: str | None = None
    extra_docker_compose: list = field(default_factory=list)
    kwargs: dict = field(default_factory=dict)
