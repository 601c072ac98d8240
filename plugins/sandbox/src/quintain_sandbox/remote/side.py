"""The other side of the service `remote`: makes environments of the library harbor and runs
commands in them, as lines of JSON ask. It runs in an interpreter that has harbor (Python 3.12 or
newer) and not Quintain, hence imports nothing of it.
"""

import asyncio
import contextlib
import json
import logging
import os
import shlex
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import EnvironmentConfig as Choice
from harbor.models.trial.paths import TrialPaths

STOP_SECONDS = 120.0
"""That a sandbox may take to go away."""
SERVICES = {"docker", "podman"}
"""Whose containers lose the network by a file of compose; harbor would start a second container
beside each.
"""
ALONE = {"services": {"main": {"network_mode": "none"}}}


class NotToBeHad(Exception):
    """The settings ask for what cannot be had; no try helps."""


class Side:
    """The environments of one trainer, by the names that it gave them."""

    def __init__(self, settings, folder):
        self._settings, self._folder = settings, Path(folder)
        self._environments, self._commands = {}, {}

    async def check(self):
        """Read the settings as harbor does, and look for credentials. Connects to nothing."""
        choice, _ = self._choice(None)
        kind = EnvironmentFactory.get_environment_class(choice.type, choice.import_path)
        kind.preflight(choice.kwargs)
        EnvironmentFactory.validate_resource_policies(choice)
        return {"harbor": version("harbor"), "class": kind.__name__}

    def _choice(self, memory_mb):
        s = self._settings
        names = EnvironmentFactory.registered_names()
        named = {"import_path": s["type"]} if ":" in s["type"] else {"type": s["type"]}
        if "type" in named and s["type"] not in names:
            raise NotToBeHad(f"remote.type is {s['type']!r}; harbor has {', '.join(names)}")
        compose = []
        if s["type"] in SERVICES and not s["network"]:
            file = self._folder / "no-network.yaml"
            file.write_text(json.dumps(ALONE))
            compose = [file]
        choice = Choice(**named, extra_docker_compose=compose, kwargs=s["options"])
        public = s["network"] or bool(compose)
        mode = NetworkMode.PUBLIC if public else NetworkMode.NO_NETWORK
        config = EnvironmentConfig(
            docker_image=s["image"],
            memory_mb=memory_mb,
            cpus=s["cpus"],
            storage_mb=s["storage_mb"],
            workdir="/",
        )
        return choice, (config, NetworkPolicy(network_mode=mode))

    async def start(self, name, memory_mb, limit):
        """Start the environment *name*."""
        choice, (config, policy) = self._choice(memory_mb)
        folder = self._folder / name
        (folder / "environment").mkdir(parents=True)
        paths = TrialPaths(trial_dir=folder / "trial")
        paths.mkdir()
        try:
            environment = EnvironmentFactory.create_environment_from_config(
                choice,
                environment_dir=folder / "environment",
                environment_name="quintain",
                session_id=name,
                trial_paths=paths,
                task_env_config=config,
                network_policy=policy,
            )
        except (ValueError, RuntimeError, ImportError, SystemExit) as e:
            raise NotToBeHad(f"harbor refuses remote.type = {self._settings['type']!r}: {e}") from e
        self._environments[name] = environment
        try:
            async with asyncio.timeout(limit):
                await environment.start(force_build=False)
        except BaseException:
            await self.stop(name)
            raise
        return {}

    async def run(self, name, source, job, result, seconds):
        """Run the program of the file *job*; what became of it is written to *result*."""
        environment = self._environments[name]
        there = f"/tmp/quintain-{name}"
        self._commands[name] = asyncio.current_task()
        try:
            await environment.upload_file(job, f"{there}.job")
            words = ["python3", "-I", "-c", source, f"{there}.job", f"{there}.result"]
            command = shlex.join(words)
            done = await environment.exec(
                command, cwd="/", timeout_sec=int(seconds) + 1, user="root"
            )
            if done.return_code:
                said = (done.stderr or "") + (done.stdout or "")
                return {"status": done.return_code, "said": said[-1000:]}
            await environment.download_file(f"{there}.result", result)
        finally:
            del self._commands[name]
        return {"status": 0, "said": ""}

    async def stop(self, name):
        """End the environment *name* and what runs in it; nothing happens if there is none."""
        environment = self._environments.pop(name, None)
        command = self._commands.get(name)
        if command is not None and command is not asyncio.current_task():
            command.cancel()
            await asyncio.wait([command])
        if environment is not None:
            async with asyncio.timeout(STOP_SECONDS):
                await environment.stop(delete=True)
        return {}

    async def close(self):
        """End all environments; the messages of those that did not end."""
        ends = [self.stop(name) for name in tuple(self._environments)]
        ended = await asyncio.gather(*ends, return_exceptions=True)
        return [told(e)["error"] for e in ended if isinstance(e, BaseException)]


def told(error):
    """Return what an exception says, as an answer."""
    said = " ".join(str(error).split()) or "no message"
    refused = isinstance(error, NotToBeHad)
    return {"error": said if refused else f"{type(error).__name__}: {said}", "refused": refused}


async def answered(side, out, request):
    number, do = request.pop("id"), request.pop("do")
    try:
        answer = await getattr(side, do)(**request)
    except asyncio.CancelledError:
        answer = {"error": "the sandbox was stopped", "refused": False}
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a library raises anything
        if do == "check" and not isinstance(e, NotToBeHad):
            e = NotToBeHad(f"harbor refuses the settings: {' '.join(str(e).split())}")
        answer = told(e)
    with contextlib.suppress(BrokenPipeError):  # the trainer has ended
        out.write(json.dumps({"id": number, **answer}).encode() + b"\n")


async def main():
    """Answer until the standard input ends, with the trainer; then end all sandboxes."""
    # What the library and its processes print is no line of ours.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    logging.getLogger().setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, lines.feed_eof)
    with tempfile.TemporaryDirectory(prefix="quintain-remote-") as folder:
        side, running = Side(json.loads(sys.argv[1]), folder), set()
        while line := await lines.readline():
            request = json.loads(line)
            task = asyncio.create_task(answered(side, out, request), name=request["do"])
            running.add(task)
            task.add_done_callback(running.discard)
        for task in running:
            if task.get_name() != "stop":
                task.cancel()  # one that starts an environment ends it, too
        await asyncio.gather(*running)
        for failure in await side.close():
            sys.stderr.write(f"a sandbox may be left: {failure}\n")


if __name__ == "__main__":
    asyncio.run(main())
