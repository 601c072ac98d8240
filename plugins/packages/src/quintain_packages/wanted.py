"""What the words of `quintain add` name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import UsageError

_PIN = re.compile(r"([\w.-]+)\s*(?:==\s*(\S+))?")
_DIRECT = re.compile(r"([\w.-]+)\s*@\s*(\S+)")
_FRAGMENT = re.compile(r"sha256=([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A plugin by its name.

    Attributes:
        version: the one that was pinned; empty for the registry's, else the newest.
        url: of a file, where one was named.
        sha256: of that file; empty for any.
    """

    name: str
    version: str = ""
    url: str = ""
    sha256: str = ""

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Read ``NAME``, ``NAME==VERSION`` or ``NAME @ FILE#sha256=HEX``, where FILE may be an
        address, too.

        Raises:
            UsageError: it is none of these.
        """
        if direct := _DIRECT.fullmatch(text.strip()):
            place, _, fragment = direct[2].partition("#")
            found = _FRAGMENT.fullmatch(fragment)
            if fragment and not found:
                raise UsageError(f"{text}: expected #sha256= and 64 digits after the file")
            if "://" not in place:
                path = Path(place).expanduser()
                if not path.is_file():
                    raise UsageError(
                        f"{text}: there is no file {path}; `quintain publish` builds one"
                    )
                place = path.resolve().as_uri()
            return cls(name=direct[1], url=place, sha256=f"sha256:{found[1]}" if found else "")
        if pin := _PIN.fullmatch(text.strip()):
            return cls(name=pin[1], version=pin[2] or "")
        raise UsageError(f"{text!r}: expected NAME, NAME==VERSION or 'NAME @ FILE#sha256=HEX'")
