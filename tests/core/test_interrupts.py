"""Ctrl-C and SIGTERM ask first and stop at once the second time."""

from __future__ import annotations

import io
import signal

import pytest

from quintain.training.interrupts import stop_on_signal
from quintain.training.screen import Screen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_and_second_stops(number: signal.Signals) -> None:
    """The announcement is shown once, and the handlers of before come back."""
    out, before, woken = io.StringIO(), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], []

    with stop_on_signal(Screen(out), "stopping", lambda: woken.append(1)) as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert ("stopping\n", [1]) == (out.getvalue(), woken)
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
