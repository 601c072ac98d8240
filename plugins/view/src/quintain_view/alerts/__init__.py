"""Alerts of a run: messages about unhealthy metrics, one when a condition begins and one when it
ends.

`conditions` has the alerts, `monitor` the hooks that a run calls.
"""
