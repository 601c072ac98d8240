import asyncio
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from harbor.models.task.config import NetworkMode

OPTIONS = {"folder", "elsewhere", "user"}


@dataclass
class ExecResult:
    stdout: str | None
    stderr: str | None
    return_code: int


class LocalEnvironment:
    """Commands of this machine. ``folder/log`` has what started and stopped; the text of
    ``folder/fault`` says what fails next.
    """

    disables_network = True

    def __init__(
        self,
        environment_dir,
        environment_name,
        session_id,
        trial_paths,
        task_env_config,
        logger=None,
        network_policy=None,
        **options,
    ):
        self.parse_options(options)
        if network_policy.network_mode is NetworkMode.NO_NETWORK and not self.disables_network:
            raise ValueError("network_mode='no-network' is not supported by open environment.")
        self.name, self.options = session_id, options
        self.folder = Path(options["folder"])
        self.config = task_env_config

    @classmethod
    def parse_options(cls, kwargs=None):
        for name in (kwargs or {}).keys() - OPTIONS:
            raise ValueError(f"Unknown option '{name}'.")

    @classmethod
    def preflight(cls, kwargs=None):
        cls.parse_options(kwargs)

    def fault(self, name):
        file = self.folder / "fault"
        return file.exists() and file.read_text() == name

    def log(self, word):
        with (self.folder / "log").open("a") as file:
            file.write(f"{word} {self.name}\n")

    async def start(self, force_build):
        if self.fault("start"):
            raise RuntimeError("no machine is free")
        self.log(f"start {self.config.memory_mb}")
        if self.fault("slow start"):
            await asyncio.sleep(60)

    async def stop(self, delete):
        self.log("stop")

    async def upload_file(self, source_path, target_path):
        if self.fault("upload"):
            raise ConnectionError("the service closed the connection")
        shutil.copy(source_path, target_path)

    async def download_file(self, source_path, target_path):
        shutil.move(source_path, target_path)
        if self.fault("download"):
            os.truncate(target_path, 40)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        if self.fault("exec"):
            return ExecResult("", "python3: not found", 127)
        if self.fault("hang"):
            await asyncio.sleep(3600)
        words = ["bash", "-c", command]
        if self.options.get("elsewhere"):
            boot = "/proc/sys/kernel/random/boot_id"
            words = ["unshare", "-m", "bash", "-c", f"mount --bind /etc/hostname {boot}; {command}"]
        if self.options.get("user"):
            words = ["setpriv", f"--reuid={self.options['user']}", "--clear-groups", *words]
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return ExecResult(output.decode(), None, process.returncode)


class OpenEnvironment(LocalEnvironment):
    """One that cannot switch the network off."""

    disables_network = False


class PaidEnvironment(LocalEnvironment):
    """One that needs an account."""

    @classmethod
    def preflight(cls, kwargs=None):
        raise SystemExit("paid requires PAID_API_KEY to be set.")


KINDS = {"local": LocalEnvironment, "open": OpenEnvironment, "paid": PaidEnvironment}


class EnvironmentFactory:
    @classmethod
    def registered_names(cls):
        return sorted(KINDS)

    @classmethod
    def get_environment_class(cls, environment_type=None, import_path=None):
        return KINDS[environment_type]

    @classmethod
    def validate_resource_policies(cls, config):
        pass

    @classmethod
    def create_environment_from_config(cls, config, **kwargs):
        return KINDS[config.type](**config.kwargs, **kwargs)
