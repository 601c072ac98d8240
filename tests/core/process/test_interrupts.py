"""Ctrl-C and SIGTERM ask first and stop at once the second time."""

from __future__ import annotations

import _thread
import io
import signal
import threading
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from quintain.console.screen import Screen
from quintain.interfaces.events import RunEnd
from quintain.models.tokenizer import HFTokenizer
from quintain.process.interrupts import stop_on_signal
from quintain.process.watchdog import Watchdog, cancel_end, end_within
from quintain.run.hooks import Hooks
from quintain.types.task import Message

from ..models.tiny import byte_tokenizer


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_and_second_stops(number: signal.Signals) -> None:
    """The announcement is shown once, and the handlers of before come back."""
    out = io.StringIO()
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    woken = []

    with stop_on_signal(Screen(out), "stopping", lambda: woken.append(1)) as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert out.getvalue() == "stopping\n"
    assert woken == [1]
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]


def test_no_thread_outlives_a_watchdog_or_a_cancelled_end() -> None:
    """The interpreter kills a thread that still runs at its end, inside of C++ that aborts the
    process.
    """
    before = threading.active_count()
    for _ in range(20):
        with Watchdog(lambda call, seconds: None, 30.0):
            end_within(60.0, 1)
            cancel_end()
        assert before == threading.active_count()


def test_a_chat_template_that_loops_is_named_and_can_be_interrupted(tmp_path: Path) -> None:
    """Its sandbox bounds one `range`, not two nested ones."""
    byte_tokenizer().save_pretrained(tmp_path)
    tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(tmp_path))
    loop = "{% for i in range(99999) %}"
    tokenizer.hf.chat_template = loop + loop + 2 * "{% endfor %}"
    reported: list[str] = []

    def interrupt(call: str, seconds: float) -> None:
        reported.append(call)
        _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt), Watchdog(interrupt, 0.1):
        tokenizer.render([Message("user", "?")])
    assert "apply_chat_template" in reported[0]


def test_a_hook_that_blocks_is_named() -> None:
    """Hooks run in the main thread, where a slow one stops all episodes."""
    reported: list[str] = []
    told = threading.Event()

    class Slow:
        def quintain_on_run_end(self) -> None:
            told.wait(30)

    def report(call: str, seconds: float) -> None:
        reported.append(call)
        told.set()

    hooks = Hooks()
    hooks.add(Slow(), "slow")
    with Watchdog(report, 0.1):
        hooks.emit(RunEnd(folder="", step=0, status="finished", error="", summary={}))
    assert "Slow.quintain_on_run_end (test_interrupts.py, line" in reported[0]
