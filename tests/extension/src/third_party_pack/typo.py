"""Misspells a hook."""


def quintain_on_step_ended(event):
    raise AssertionError("never called")
