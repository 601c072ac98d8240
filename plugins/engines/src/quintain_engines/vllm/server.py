"""vLLM behind a server: one that the engine starts, or one at a URL."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import IO, Any

from quintain import InfrastructureError
from quintain.data import checked_ids, checked_logps
from quintain.errors import QuintainError, RunError, UsageError
from quintain.interfaces import Pressure, ProcessCluster
from quintain.models import HFTokenizer
from quintain.registry import takes

from ..http import HttpClient, NoAnswer, json_of, run_apart
from ..openai import ServerWatch, protocol
from ..openai.retries import RETRIED, wait_before_retry
from ..placed import PlacedServer, pack_folder
from .arguments import ENVIRONMENT, check_installed
from .base import SyncedEngine, VLLMOutput, checkpoint
from .canary import base_of
from .guard import FILE, FOLDER
from .handover import shape_of
from .pictures import SeenPicture, identifier
from .settings import SEVERAL_WORKERS, ServerSettings
from .transports import Transport, Upload, transport_named

MODEL = "policy"
"""Name under which the server offers the model."""
ADAPTER = "policy-adapter"
"""Name under which it offers the model with the learner's adapters."""
GENERATE = "inference/v1/generate"
CLAMPED = -9999.0
"""What the server sends for a log-prob that is not a number."""
SLEEP_SECONDS = 300.0
"""How long moving the weights to the host may take."""
HEALTH_SECONDS = 10.0
"""How long a starting server may take to say whether it is ready."""
COUNTERS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
"""Lines of ``/metrics`` that change while the server computes."""
TRIES = 4
"""Of a request for tokens, which its seed repeats, if the server fails in a way that may pass."""
BACKOFF = 0.5
"""Seconds before the second try; doubled for each further one."""


class VLLMServer(SyncedEngine):
    """Samples with a server of vLLM; trainable.

    The server runs in processes of its own: the learner's threads and the sampler's do not wait for
    each other, and it may have other GPUs, or be another machine.
    """

    name = "vllm-server"
    settings: ServerSettings

    @takes(ServerSettings)
    def __init__(self, model: str = "", **settings: Any) -> None:
        """Serve *model*, a folder or a hub name, with `ServerSettings`; a server starts when the
        engine is entered.

        Raises:
            UsageError: a setting is out of range, or vLLM is not installed and there is no URL.
        """
        config, tokenizer = checkpoint(model)
        self._prepare(ServerSettings(**settings), folder=model, tokenizer=tokenizer, config=config)

    @classmethod
    @takes(ServerSettings)
    def sharing(
        cls,
        module: Any,
        tokenizer: HFTokenizer,
        *,
        copy: bool = False,
        cluster: ProcessCluster | None = None,
        **settings: Any,
    ) -> VLLMServer:
        """Create an engine for a learner's *module*; `update` sends its weights to the server.

        Args:
            copy: turns are sampled while the learner updates.
            cluster: that starts the server, unless there is a URL.

        Raises:
            UsageError: a setting is out of range, or vLLM is not installed and there is no URL.
        """
        engine, config = cls.__new__(cls), base_of(module).config
        engine._prepare(
            ServerSettings(**settings),
            tokenizer=tokenizer,
            config=config,
            module=module,
            overlaps=copy,
            cluster=cluster,
        )
        return engine

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        ServerSettings(**settings)

    @classmethod
    def places(cls, settings: Mapping[str, Any]) -> Sequence[int]:
        """Return the GPUs of the server that is started with these *settings*, if one is; see
        `TokenEngine`.

        Raises:
            UsageError: with these, its weights do not reach another machine.
        """
        chosen = ServerSettings(**settings)
        if chosen.url:
            return ()
        _check_reach(chosen)
        return (chosen.workers,)

    @classmethod
    def on_gpus(
        cls, settings: Mapping[str, Any], gpus: int, *, turns: bool = False
    ) -> Mapping[str, Any]:
        """Return *settings* of a server on so many GPUs, which cuts each layer into as many parts,
        unless they say how; see `TokenEngine.places`.

        Raises:
            UsageError: they ask for another number, or for a server that does not sleep.
        """
        options = dict(settings.get("options") or {})
        if gpus > 1 and not {*options} & {*SEVERAL_WORKERS}:
            options["tensor_parallel_size"] = gpus
        on_gpus = {**settings, "options": options} if options else dict(settings)
        if (workers := ServerSettings(**on_gpus).workers) != gpus:
            raise UsageError(
                f"one server of vLLM takes {workers} GPUs by its options, and {gpus} sample: leave "
                f"{' and '.join(name for name in SEVERAL_WORKERS if name in options)} out, or take "
                'several servers with engine.use = "pool" and engine.args = { engine = "vllm-server" }'
            )
        if turns and not on_gpus.setdefault("sleep_mode", True):
            raise UsageError(
                "the server takes turns with the learner, and sleep_mode = false keeps its memory: "
                "leave sleep_mode out"
            )
        return on_gpus

    @classmethod
    def shares_gpu(cls, settings: Mapping[str, Any]) -> str:
        """Return when vLLM needs memory of the learner's GPU: ``always``, ``in turns``, or never
        (empty).
        """
        chosen = ServerSettings(**settings)
        return "" if chosen.url else chosen.shares_gpu

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that a supported vLLM is installed, unless a server runs elsewhere; see
        `quintain.Service.check_available`.
        """
        if not args.get("url"):
            check_installed()

    def _prepare(
        self, settings: ServerSettings, *, cluster: ProcessCluster | None = None, **model: Any
    ) -> None:
        if not settings.url:
            check_installed()
        self._cluster = None if settings.url else cluster
        self._configure(settings, self._transport_for(settings), **model)
        self._url, self._log, self._count = "", "", 0
        self._headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._process: asyncio.subprocess.Process | None = None
        self._placed: PlacedServer | None = None
        self._http: HttpClient | None = None
        self._started = False
        self.path = f"vLLM behind a server over {type(self._config).__name__}"

    def _transport_for(self, settings: ServerSettings) -> Transport:
        args = settings.transport_args
        if self._cluster is not None:
            _check_reach(settings)
            if settings.transport == "file" and not getattr(self._cluster, "is_local", False):
                return Upload(self._put)
            args = {"address": self._cluster.host, **args}
        return transport_named(settings.transport, ("file", "ipc", "nccl"), args)

    # -- SyncedEngine

    async def _start(self) -> None:
        if self._cluster is not None:
            self._placed = PlacedServer(self._cluster)
            self._headers = {"Authorization": f"Bearer {self._placed.token}"}
        self._url = self.settings.url.rstrip("/").removesuffix("/v1")
        if self._placed is not None:
            await self._place(self._placed)
        elif not self._url:
            await self._launch()
        # `ServerWatch` bounds the seconds: a turn may take long while its tokens are counted.
        self._http = await HttpClient(self._url, seconds=None, headers=self._headers).__aenter__()
        self._watch = ServerWatch(
            f"the server of vLLM at {self._url}",
            timeout=self.settings.timeout,
            setting="engine.args.timeout",
            sign_of_life=self._progress,
        )
        deadline = asyncio.get_running_loop().time() + self.settings.start_timeout
        while not await self._healthy():
            if fate := await self._fate():
                raise UsageError(f"the server of vLLM ended with {fate}")
            if asyncio.get_running_loop().time() > deadline:
                seconds = self.settings.start_timeout
                raise RunError(
                    f"no server of vLLM answers at {self._url} after {seconds:g} "
                    f"s{self._log_tail()}"
                )
            await asyncio.sleep(0.2)
        if self.settings.url:
            info = await self._asked("GET", "server_info", config_format="json")
            _check_flags(info)
            self._check_shape(await self._rpc("quintain_shape"))
        await self._post("update_weight_version", {"new_version": str(self.version)})
        listed = await self._asked("GET", "v1/models")
        with self._reading("v1/models", listed):
            first = listed["data"][0]
            self._model = str(first["id"])
            self.context = min(self.context, int(first.get("max_model_len") or self.context))
        self._started = True

    def _check_shape(self, served: Mapping[str, Any]) -> None:
        """Raise a `UsageError` if the server was started with another model: its workers would fail
        half-way through the first weight update, and it could serve nobody after.
        """
        wrong = [
            f"{name} {served[name]!r} instead of {value!r}"
            for name, value in shape_of(self._config).items()
            if name in served and served[name] != value
        ]
        if wrong:
            raise UsageError(
                f"the server of vLLM at {self._url} serves another model than the run's: "
                f"{', '.join(wrong)}; start it with --model FOLDER of the run's model, or give its "
                "URL in engine.args.url"
            )

    async def _launch(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, *server_words(self._engine_args({}), "127.0.0.1", str(port))]
        environment = {**ENVIRONMENT, **os.environ, **self._server_variables()}
        environment["QUINTAIN_VLLM_PARENT"] = str(os.getpid())
        if self._transport.backend == "ipc":
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # the handles come pickled
        handle, self._log = tempfile.mkstemp(prefix="quintain-vllm-", suffix=".log")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=handle, stderr=handle, env=environment, start_new_session=True
            )
        finally:
            os.close(handle)

    def _server_variables(self) -> dict[str, str]:
        """Return the environment variables without which a server does not serve a run."""
        adapters = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if self.settings.adapters else {}
        return {"VLLM_SERVER_DEV_MODE": "1", **adapters}

    async def _place(self, placed: PlacedServer) -> None:
        args = self._engine_args({"model": "{folder}"})
        if (share := getattr(self._cluster, "share", None)) is not None:
            args.setdefault("gpu_memory_utilization", share)
        words = server_words(args, "{host}", "{port}")
        await placed.start(
            [*words, "--middleware", "quintain_engines.vllm.guard.RunOnly"],
            folder=Path(self._folder),
            environment={
                **{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()},
                **self._server_variables(),
            },
            gpus=gpus_of(self.settings),
            patience=self.settings.start_timeout,
        )
        self._url = f"http://{placed.address}"

    async def _put(self, path: Path | None) -> str:
        """Send the file at *path* to the machine of the server, and return where it is there;
        without one, let it forget the last.
        """
        if path is None:
            await self._request("DELETE", FILE.strip("/"))
            return ""
        with path.open("rb") as file:
            return await self._put_at(FILE, file)

    async def _put_at(self, route: str, data: IO[bytes]) -> str:
        answer = await self._asked("PUT", route.strip("/"), data=data)
        with self._reading(route, answer):
            return str(answer["path"])

    async def _fate(self) -> str:
        """Return how a server that was started here has ended; empty while it runs."""
        if self._placed is not None and self._placed.is_gone:
            return " | ".join((await self._placed.last_words()).splitlines())[-600:]
        if self._process is not None and self._process.returncode is not None:
            return f"status {self._process.returncode}{self._log_tail()}"
        return ""

    async def _healthy(self) -> bool:
        assert self._http is not None
        try:
            return (await self._http.send("GET", "/health", seconds=HEALTH_SECONDS)).status == 200
        except InfrastructureError:
            return False

    async def probe(self) -> None:
        """Raise an `InfrastructureError` if the server has ended or does not answer."""
        if fate := await self._fate():
            raise InfrastructureError(f"the server of vLLM ended with {fate}")
        if self._http is None or not await self._healthy():
            raise InfrastructureError(f"the server of vLLM at {self._url} does not answer /health")

    async def pressure(self) -> Pressure:
        """Return what the server's ``/metrics`` say; of several engines behind it the sums, and of
        the cache the largest share.

        Raises:
            InfrastructureError: it does not answer.
        """
        metrics = await self._request("GET", "metrics")
        return pressure_of(metrics)

    async def _progress(self, seconds: float) -> object:
        """Return how many tokens the server has computed; ``None`` if it does not answer. One that
        does not count them shows no progress: a turn has the timeout then.
        """
        if self._http is None:  # the engine is being closed
            return None
        try:
            answer = await self._http.send("GET", "/metrics", seconds=seconds)
        except InfrastructureError:
            return None
        counted = [line for line in answer.text.splitlines() if line.startswith(COUNTERS)]
        return tuple(counted)

    def _log_tail(self) -> str:
        if not self._log:
            return ""
        lines = [
            line
            for line in Path(self._log).read_text(errors="replace").splitlines()
            if "rror" in line
        ]
        return "; its log ends with: " + " | ".join(lines[-3:])[-600:]

    async def _stop(self) -> None:
        if self._http is not None:
            http, self._http = self._http, None
            await http.__aexit__()
        if self._placed is not None:
            await self._placed.close()
            self._placed = None
        if self._process is not None:
            server, self._process = self._process, None
            # The server ends its workers when it is asked to; what is left of its session after
            # that is killed.
            for end in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, end)
                with suppress(TimeoutError):
                    await asyncio.wait_for(server.wait(), 20)
            os.unlink(self._log)

    async def _request(
        self, method: str, path: str, body: Any = None, *, data: Any = None, **query: Any
    ) -> str:
        """Return the text of an answer to *body*, in JSON, or to the bytes of *data*.

        Only a request for tokens, a function of its seed, can be sent twice: it is tried again where
        the failure may pass.

        Raises:
            UsageError: the engine is not started, or the server lacks the path from its start on.
            InfrastructureError: the server does not answer, or refuses.
        """
        if self._http is None:
            raise UsageError(
                "the engine vllm-server is not started: use it inside `async with engine:`"
            )
        params = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in query.items()
        }
        tokens = path == GENERATE
        what = "tokens" if tokens else path
        async with self._watch.request(what, may_take_longer=tokens):
            for number in range(TRIES):
                last = not tokens or number == TRIES - 1
                wait = 0.0
                try:
                    status, text, wait = await self._http.send(
                        method, f"/{path}", json=body, data=data, params=params
                    )
                except NoAnswer as e:
                    if last:
                        raise InfrastructureError(
                            f"the server of vLLM at {self._url} does not answer: {e}"
                        ) from e
                else:
                    if status == 200:
                        return text
                    if last or status not in RETRIED:
                        raise self._refusal(path, status, text)
                await asyncio.sleep(wait_before_retry(BACKOFF, number, Random(), asked=wait))
        raise AssertionError("the last try returns or raises")

    def _refusal(self, path: str, status: int, text: str) -> Exception:
        # a proxy that is started again may know no path for a moment
        if status == 404 and not self._started:
            return UsageError(
                f"{self._url}/{path} does not exist: start the server as docs/vllm.md shows, with "
                "VLLM_SERVER_DEV_MODE=1 and --enable-scale-out, for adapters also with "
                "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
            )
        return InfrastructureError(
            f"vLLM answered {status} to /{path}: {protocol.shortened(text, 400)}"
        )

    async def _asked(
        self, method: str, path: str, body: Any = None, *, data: Any = None, **query: Any
    ) -> Any:
        """Return the JSON of an answer; arguments and errors as of `_request`."""
        text = await self._request(method, path, body, data=data, **query)
        return json_of(text, f"{self._url}/{path}")

    @contextmanager
    def _reading(self, path: str, answer: Any) -> Iterator[None]:
        """Raise an `InfrastructureError` if *answer* has not what the block takes from it."""
        try:
            yield
        except (
            AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError
        ) as e:  # fmt: skip
            if isinstance(e, QuintainError):
                raise
            raise InfrastructureError(
                f"vLLM's answer to /{path} cannot be read ({type(e).__name__}: {e}): "
                f"{protocol.shortened(answer)}"
            ) from e

    async def _post(self, path: str, body: Any = None, **query: Any) -> str:
        return await self._request("POST", path, body, **query)

    async def _generate(self, ids: Sequence[int], fields: Mapping[str, Any]) -> VLLMOutput:
        self._count += 1
        request_id = f"quintain-{os.getpid()}-{secrets.token_hex(4)}-{self._count}"
        params = dict(fields)
        scored_ids = params.get("logprob_token_ids")
        if scored_ids:
            # the answer lists as many tokens as are asked for, and the sampled one is the first of
            # them
            params |= {
                "logprobs": 2,
                "logprob_token_ids": [*scored_ids, 1 if scored_ids[0] == 0 else 0],
            }
        version, plain, seen = self.version, self._plain(ids), self._seen(ids)
        body = {
            "request_id": request_id,
            "model": self._model,
            "token_ids": plain,
            "sampling_params": params,
            # the salt keeps the keys and values of each version apart, should some survive the
            # reset
            "cache_salt": f"version {version}",
        }
        if seen:
            body["features"] = self._features(seen, version)
        try:
            answer = await self._asked("POST", GENERATE, body)
        except asyncio.CancelledError:
            # the closed connection aborts it, too, once the server notices
            self._later(
                self._post("abort_requests", {"request_ids": [f"generate-tokens-{request_id}"]})
            )
            raise
        with self._reading(GENERATE, answer):
            told = answer.get("request_id") or request_id
            if not str(told).endswith(request_id):
                raise InfrastructureError(
                    f"vLLM answered another request: {told!r:.80} instead of {request_id!r}"
                )
            output = _answer_of(answer, plain, scored_ids, params["max_tokens"])
            checked_ids(output.ids, self._vocabulary, "vLLM")
        await self._check_features(seen, version)
        return output

    def _features(self, seen: Sequence[SeenPicture], version: int) -> dict[str, Any]:
        """Return the field ``features`` of a request for the pictures of its prompt.

        Raises:
            UsageError: the server cannot be told where their tokens are, or vLLM is not installed here.
        """
        if not all(picture.is_whole for picture in seen):
            raise UsageError(
                "this model has text between the tokens of a picture, and the server of vLLM takes one "
                'range for a picture; use engine.use = "vllm"'
            )
        check_installed()
        from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import encode_mm_kwargs_item

        assert self._pictures is not None
        places = [{"offset": p.start, "length": p.end - p.start} for p in seen]
        items = [self._pictures.item(picture.digits, self.dtype) for picture in seen]
        return {
            "mm_hashes": {"image": [identifier(picture, version) for picture in seen]},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": [encode_mm_kwargs_item(item) for item in items]},
        }

    def _later(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._aborts = {t for t in getattr(self, "_aborts", set()) if not t.done()} | {task}
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _pause(self) -> None:
        await self._post("pause", mode="keep", clear_cache=self.recompute_kv)

    async def _resume(self) -> None:
        await self._post("resume")

    async def _reset_prefix_cache(self) -> None:
        await self._post("reset_prefix_cache", reset_running_requests=self.recompute_kv)

    async def _rpc(self, method: str, *args: Any) -> Any:
        body = {"method": method, "args": list(args)}
        answer = await self._asked("POST", "collective_rpc", body)
        with self._reading("collective_rpc", answer):
            return answer["results"][0]

    async def _load_adapter(self, folder: Path, version: int) -> None:
        path = str(folder)
        if self._placed is not None:
            packed = await asyncio.to_thread(pack_folder, folder)
            path = await self._put_at(FOLDER, io.BytesIO(packed))
        body = {"lora_name": ADAPTER, "lora_path": path, "load_inplace": True}
        await self._post("v1/load_lora_adapter", body)
        await self._post("update_weight_version", {"new_version": str(version)})
        self._model = ADAPTER

    def _control(self) -> VLLMServer:
        return self

    # -- transports.Control

    async def init_weight_transfer_engine(self, info: Mapping[str, Any]) -> None:
        await self._post("init_weight_transfer_engine", {"init_info": dict(info)})

    async def start_weight_update(self) -> None:
        await self._post("start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        body = dict(info)
        if "ipc_handles" in body:
            from vllm.distributed.weight_transfer.clients import _json_safe_update_info

            body = _json_safe_update_info(body)
        await self._post("update_weights", {"update_info": body})

    async def finish_weight_update(self, version: int) -> None:
        await self._post("finish_weight_update", {"weight_version": str(version)})

    async def world_size(self) -> int:
        answer = await self._asked("GET", "get_world_size")
        with self._reading("get_world_size", answer):
            return int(answer["world_size"])

    # -- sleep

    def _can_sleep(self) -> bool:
        if not self.settings.sleep_mode:
            return False
        if self.settings.url:
            return True  # that server says itself if it cannot
        from vllm.platforms import current_platform

        return bool(current_platform.is_sleep_mode_available())

    def _fall_asleep(self, level: int) -> None:
        """Send the engine to sleep by a thread of its own: the event loop may stand still
        meanwhile.
        """

        async def ask() -> None:
            async with HttpClient(
                self._url, seconds=SLEEP_SECONDS, headers=self._headers
            ) as client:
                params = {"level": str(level), "mode": "keep"}
                answer = await client.send("POST", "/sleep", params=params)
                if answer.status != 200:
                    raise self._refusal("sleep", answer.status, answer.text)

        try:
            run_apart(ask())
        except InfrastructureError as e:
            raise InfrastructureError(
                f"the server of vLLM at {self._url} does not fall asleep: {e}"
            ) from e

    async def _wake_up(self, part: str = "") -> None:
        await self._post("wake_up", **({"tags": part} if part else {}))


def pressure_of(metrics: str) -> Pressure:
    """Read the text of vLLM's ``/metrics``; a number that is absent counts as 0."""
    values: dict[str, list[float]] = {}
    for line in metrics.splitlines():
        if line.startswith("vllm:"):
            name, _, value = line.rpartition(" ")
            values.setdefault(name.partition("{")[0].removeprefix("vllm:"), []).append(float(value))
    used = values.get("kv_cache_usage_perc") or values.get("gpu_cache_usage_perc") or [0.0]
    return Pressure(
        running=int(sum(values.get("num_requests_running", ()))),
        waiting=int(sum(values.get("num_requests_waiting", ()))),
        cache_used=max(used),
        preemptions=int(sum(values.get("num_preemptions_total", ()))),
    )


def server_words(args: Mapping[str, Any], host: str, port: str) -> list[str]:
    """Return the arguments of the Python that is a server at *host* and *port*, with the fields
    *args* of ``vllm.EngineArgs``.
    """
    command = ["-m", "quintain_engines.vllm.serve", "--host", host, "--port", port]
    command += ["--served-model-name", MODEL, "--enable-scale-out", "--disable-uvicorn-access-log"]
    command.append("--enable-prompt-tokens-details")  # the canary reads what was cached
    for name, value in args.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            command.append(flag if value else f"--no-{flag[2:]}")
        elif value is not None:
            command += [
                flag,
                json.dumps(value) if isinstance(value, Mapping | list) else str(value),
            ]
    return command


def gpus_of(settings: ServerSettings) -> int:
    """Return how many GPUs a server takes, one for each of its workers."""
    from vllm.platforms import current_platform

    return 0 if current_platform.is_cpu() else settings.workers


def _check_reach(settings: ServerSettings) -> None:
    """Raise a `UsageError` if weights do not reach a server that a cluster has started."""
    if settings.transport == "ipc":
        raise UsageError(
            'transport is "ipc", which reaches the GPU of the learner alone, and [cluster] may start '
            'the server on another machine: take "file", which goes over the network then, or "nccl"'
        )
    if settings.transport == "file" and settings.transport_args:
        raise UsageError(
            'transport "file" goes over the network to a server that [cluster] starts: leave '
            "transport_args out"
        )


def _check_flags(info: Mapping[str, Any]) -> None:
    """Raise a `UsageError` if a server that was started elsewhere reports other log-probs or
    versions than those of the tokens.
    """
    config = info["vllm_config"]
    wrong = []
    if config["model_config"]["logprobs_mode"] != "processed_logprobs":
        wrong.append(
            "--logprobs-mode processed_logprobs (else log-probs are those before the temperature)"
        )
    if config["scheduler_config"]["async_scheduling"]:
        wrong.append(
            "--no-async-scheduling (else the last tokens before an update have the version after "
            "it)"
        )
    if wrong:
        raise UsageError(
            f"the server of vLLM runs with other settings; start it with {' and '.join(wrong)}"
        )


def _answer_of(
    answer: Mapping[str, Any],
    prompt: Sequence[int],
    scored_ids: Sequence[int] | None,
    most: int,
) -> VLLMOutput:
    """Return what *answer* says of one request, of which nothing is believed that another part of it
    contradicts.

    Args:
        most: new tokens that were asked for.
    """
    choice = protocol.only_choice(answer)
    ids = choice["token_ids"]
    rows = (choice.get("logprobs") or {}).get("content") or []
    if not isinstance(ids, list) or not isinstance(rows, list) or len(ids) > most:
        raise InfrastructureError(
            f"vLLM gave {len(ids)} tokens as {type(ids).__name__}; at most {most} were asked for"
        )
    for token, row in zip(ids, rows, strict=False):
        if row.get("token_id", token) != token:
            raise InfrastructureError(
                f"vLLM gave the token {token!r:.40} with the log-prob of {row['token_id']!r:.40}"
            )
    logps = tuple(_logp(row["logprob"]) for row in rows)
    prompt_logps: tuple[float, ...] = ()
    if answer.get("prompt_logprobs"):
        pairs = zip(prompt[1:], answer["prompt_logprobs"][1:], strict=True)
        of_prompt = [row[str(token)]["logprob"] for token, row in pairs]
        prompt_logps = checked_logps(of_prompt, len(of_prompt), "vLLM")
    wanted = None
    if scored_ids:
        first = rows[0]
        both = [first, *first["top_logprobs"]]
        found = [entry["logprob"] for entry in both if entry["token_id"] == scored_ids[0]]
        (wanted,) = checked_logps(found[:1], 1, "vLLM")
    spans = choice.get("weight_versions") or ()
    return VLLMOutput(
        ids=tuple(ids),
        logps=logps,
        spans=tuple((s["version"], s["start"], s["end"]) for s in spans),
        finish=choice["finish_reason"],
        stop=choice.get("stop_reason"),
        prompt_logps=prompt_logps,
        asked=wanted,
        cached=((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        or 0,
    )


def _logp(value: Any) -> Any:
    """Return a log-prob, the one that the server sends for NaN as NaN."""
    return float("nan") if type(value) in (int, float) and value <= CLAMPED else value
