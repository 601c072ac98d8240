"""Needs a library that is not installed."""

import a_library_that_is_not_installed  # noqa: F401
