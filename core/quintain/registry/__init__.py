"""From a name to a configured component: discovery, manifests, binding of arguments.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .binding import Signature as Signature
    from .binding import bind as bind
    from .binding import check_args as check_args
    from .binding import signature_of as signature_of
    from .binding import type_name as type_name
    from .class_checks import check_class as check_class
    from .class_checks import check_parameters as check_parameters
    from .class_checks import other_signature as other_signature
    from .discovery import KINDS as KINDS
    from .discovery import Component as Component
    from .discovery import normalise as normalise
    from .discovery import short_name as short_name
    from .discovery import without_components as without_components
    from .known import known_plugins as known_plugins
    from .local_files import explain as explain
    from .lookup import Registry as Registry
    from .lookup import current as current
    from .manifest import MANIFEST as MANIFEST
    from .manifest import Entry as Entry
    from .manifest import Manifest as Manifest
    from .manifest import parse_manifest as parse_manifest
    from .pieces import import_algorithms as import_algorithms
    from .settings import settings_of as settings_of
    from .settings import takes as takes

__getattr__, __dir__ = lazy_names(__name__)
