"""Counts steps."""

steps: list[int] = []


def quintain_on_step_end(event):
    steps.append(event.step)
