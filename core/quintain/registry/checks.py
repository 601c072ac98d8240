"""Calls what plugins check about the class of an environment before a command uses it (entry-point
group ``quintain.checks``).
"""

from __future__ import annotations

import functools
import logging

from ..errors import PluginError, UsageError
from ..tracebacks import describe_error, is_failure
from .lookup import current, strict_plugins

log = logging.getLogger("quintain.plugins")


def check_class(environment: type) -> None:
    """Call every installed check with the class *environment*.

    A check that cannot be imported, or that fails instead of judging the class, is reported by its
    name and left out.

    Raises:
        UsageError: a check found a mistake in the class.
        PluginError: a check failed, with ``QUINTAIN_STRICT_PLUGINS=1``.
    """
    registry = current()
    for component in registry.components("check"):
        try:
            registry.resolve(component)(environment)
        except UsageError:
            raise
        except BaseException as e:
            if not is_failure(e):
                raise
            message = f"check {component.id!r}: {describe_error(e)}"
            if strict_plugins():
                raise PluginError(message) from e
            _warn_once(f"{message}; {environment.__name__} is used without it")


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)  # a run resolves an environment several times
