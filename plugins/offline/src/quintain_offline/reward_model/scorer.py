"""Makes any scorer of (prompt, output) a reward: a function, a model behind it, sync or async, of
texts or images.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from quintain import Message, Reward, Rollout, Score
from quintain.errors import EpisodeError, RewardFault, UsageError

from .failures import checked, failure_of

AnyRollout = Rollout[Any, Any]
Function = Callable[..., Any]
Read = Callable[[AnyRollout], Any]


class Scorer(Reward):
    """A reward of a function that scores outputs for prompts.

    ::

        aesthetics = Scorer(predictor.score, name="aesthetics", output="result", images=True)   # in rewards.py
        reward = 'use("rewards.py:aesthetics")'                                                 # in the recipe

    A function that is not a coroutine runs in a thread, one call at a time. Whatever it raises, and
    every number that is not finite, is a failure of the rollout and never a score.

    Args:
        function: ``(prompt, output) -> number or Score``; *batched*, ``(prompts, outputs) -> one
            per output``, called with a group. The prompt is text: the user's and system's messages.
        name: how the reward is shown; by default that of the function.
        batched: see above. A failure of a batched function is one of its whole group.
        output: what is scored: ``"reply"``, ``"result"`` of the episode, or a function of the
            rollout.
        images: decode outputs into images of pillow in RGB: bytes, base64 text (also as a data
            URL), a `pathlib.Path`, or an image.
        batch: outputs per call of a batched function; 0 is the whole group.
    """

    def __init__(
        self,
        function: Function,
        *,
        name: str = "",
        batched: bool = False,
        output: str | Read = "reply",
        images: bool = False,
        batch: int = 0,
    ) -> None:
        """Check the settings.

        Raises:
            UsageError: *output* is unknown, or images are asked for and pillow is not installed.
        """
        if not callable(function):
            raise UsageError(
                f"Scorer of {function!r}: expected a function (prompt, output) -> number"
            )
        if isinstance(output, str) and output not in ("reply", "result"):
            raise UsageError(
                f'Scorer: output is {output!r}; expected "reply", "result" or a function of the '
                f"rollout"
            )
        if images:
            _pillow()
        self._function = function
        self._batched = batched
        self._output = output
        self._images = images
        self._name = name or getattr(function, "__name__", type(function).__name__)
        self._batch = batch
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    @property
    def proxy(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return self._name

    @property
    def group(self) -> bool:
        return self._batched  # for batches only: samples are not compared

    async def score_all(
        self, group: Sequence[AnyRollout], context: Any
    ) -> list[Score | EpisodeError]:
        results: list[Score | EpisodeError] = [RewardFault("not scored")] * len(group)
        ready: list[tuple[int, str, Any]] = []
        for index, rollout in enumerate(group):
            try:
                ready.append((index, prompt_text(rollout.task.prompt), self._read(rollout)))
            except Exception as error:  # noqa: BLE001 - an author's code may raise anything; it becomes a failure
                results[index] = failure_of(error, f"reward {self.name!r}")
        size = (self._batch or len(ready)) if self._batched else 1
        for start in range(0, len(ready), max(size, 1)):
            part = ready[start : start + size]
            scored = await self._scored(
                [prompt for _, prompt, _ in part], [output for _, _, output in part]
            )
            for (index, _, _), score in zip(part, scored, strict=True):
                results[index] = score
        return results

    def _read(self, rollout: AnyRollout) -> Any:
        if callable(self._output):
            output = self._output(rollout)
        else:
            output = rollout.reply if self._output == "reply" else rollout.result
        return image_of(output) if self._images else output

    async def _scored(
        self, prompts: Sequence[str], outputs: Sequence[Any]
    ) -> Sequence[Score | EpisodeError]:
        scorer_name = f"reward {self.name!r}"
        try:
            if self._batched:
                values = list(await self._called(list(prompts), list(outputs)))
                if len(values) != len(outputs):
                    raise RewardFault(
                        f"{scorer_name} returned {len(values)} scores for {len(outputs)} outputs"
                    )
            else:
                values = [await self._called(prompts[0], outputs[0])]
        except Exception as error:  # noqa: BLE001 - as above
            return [failure_of(error, scorer_name)] * len(outputs)
        return [self._checked(value, scorer_name) for value in values]

    async def _called(self, prompt: Any, output: Any) -> Any:
        call = self._function
        of_object = getattr(call, "__call__", None)  # noqa: B004
        if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(of_object):
            return await call(prompt, output)
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:  # models are rarely safe to call from two threads
            value = await asyncio.to_thread(call, prompt, output)
        return await value if isinstance(value, Awaitable) else value

    def _checked(self, value: Any, scorer_name: str) -> Score | EpisodeError:
        try:
            if isinstance(value, Score):
                for number in (value.value, *value.turns, *value.players.values()):
                    checked(number, scorer_name)
                parts = {f"{self.name}.{part}": number for part, number in value.parts.items()}
                return replace(value, parts={self.name: value.total, **parts})
            if isinstance(value, (str, bytes)):
                raise RewardFault(
                    f"{scorer_name} returned {value!r:.80}; expected a number or a Score"
                )
            number = checked(float(value), scorer_name)
        except Exception as error:  # noqa: BLE001 - as above: its `__float__`
            return failure_of(error, scorer_name)
        return Score(value=number, parts={self.name: number})


def prompt_text(prompt: str | Sequence[Message]) -> str:
    """Return a prompt as text; messages are separated by empty lines."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "scoring images needs pillow: pip install 'quintain-offline[images]'"
        ) from error
    return Image


def image_of(output: Any) -> Any:
    """Return *output* as an image of pillow in RGB: an image, bytes, a `Path`, or base64 text (also
    as a data URL).

    Raises:
        RewardFault: it is no image.
    """
    kind = _pillow()
    if isinstance(output, kind.Image):
        return output.convert("RGB")
    try:
        if isinstance(output, Path):
            output = output.read_bytes()
        elif isinstance(output, str):
            # Never a path: the policy may have written the text.
            encoded = output.partition(",")[2] if output.startswith("data:") else output
            output = base64.b64decode(encoded, validate=True)
        if not isinstance(output, (bytes, bytearray)):
            kind_name = type(output).__name__
            raise RewardFault(
                f"the output is a {kind_name}; expected an image, bytes, a Path or base64 text"
            )
        with kind.open(io.BytesIO(output)) as image:
            return image.convert("RGB")
    except (OSError, ValueError, binascii.Error, kind.DecompressionBombError) as error:
        raise RewardFault(f"the output is no image: {error}") from error
