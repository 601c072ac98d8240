"""What a Dockerfile says of the images that it is built on, and the same file on other images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

ESCAPE = re.compile(r"^#\s*escape\s*=\s*`\s*$", re.I)
FROM = re.compile(
    r"^(?P<head>\s*FROM\s+(?:--\S+\s+)*)(?P<image>\S+)(?P<tail>(?:\s+AS\s+(?P<stage>\S+))?\s*)$",
    re.I,
)
ARG = re.compile(r"^\s*ARG\s+(?P<name>\w+)(?:=(?P<value>\S*))?", re.I)
COPY_FROM = re.compile(r"^(?P<head>\s*(?:COPY|ADD)\s+(?:--\S+\s+)*?--from=)(?P<image>[^\s]+)", re.I)
VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")
HEREDOC = re.compile(r"""(?<!<)<<(?!<)-?\s*(?P<quote>["']?)(?P<word>[A-Za-z_]\w*)(?P=quote)""")
PLATFORM = re.compile(r"--platform=\S+\s+", re.I)
NO_IMAGE = "scratch"


@dataclass(frozen=True)
class DockerfileLine:
    """One line.

    Attributes:
        begins: whether an instruction begins here; else the line goes on with one, or is a comment,
            blank or part of a here-document.
    """

    text: str
    begins: bool


def lines_of(text: str) -> list[DockerfileLine]:
    """Return the lines of a Dockerfile, of which each says whether an instruction begins there."""
    lines = text.split("\n")
    escape = "\\"
    for line in lines:  # directives come before everything else
        if not line.lstrip().startswith("#"):
            break
        if ESCAPE.match(line.strip()):
            escape = "`"
    found: list[DockerfileLine] = []
    goes_on, until = False, ""
    for line in lines:
        if until:
            found.append(DockerfileLine(line, False))
            until = "" if line.strip() == until else until
            continue
        comment = not line.strip() or line.lstrip().startswith("#")
        found.append(DockerfileLine(line, not goes_on and not comment))
        if comment:
            continue  # within an instruction, too, such a line does not end it
        goes_on = line.rstrip().endswith(escape)
        if heredoc := _heredoc(line):
            until = heredoc
    return found


def bases(text: str) -> list[str]:
    """Return the images that a Dockerfile builds on, each once; not its own stages, and not
    ``scratch``.

    Arguments (``ARG``) have their defaults; an image with one that has none is left as it is
    written.
    """
    found: dict[str, None] = {}

    def note(image: str) -> str:
        found[image] = None
        return image

    rebased(text, note)
    return list(found)


def rebased(text: str, image: Callable[[str], str]) -> str:
    """Return the Dockerfile on other images: *image* gets the name of each and returns the name to
    use.

    The flag ``--platform`` is left out, because the local image has one platform.
    """
    arguments: dict[str, str] = {}
    stages: set[str] = set()
    count = 0
    out: list[str] = []
    for line in lines_of(text):
        written = line.text
        if line.begins:
            if found := FROM.match(written):
                name = _resolved(found["image"], arguments)
                if name.lower() not in stages and name != NO_IMAGE:
                    name = image(name)
                written = PLATFORM.sub("", found["head"]) + name + found["tail"]
                stages |= {str(count), (found["stage"] or str(count)).lower()}
                count += 1
            elif count == 0 and (found := ARG.match(written)):
                arguments[found["name"]] = (found["value"] or "").strip("\"'")
            elif found := COPY_FROM.match(written):
                name = found["image"]
                if name.lower() not in stages and name != NO_IMAGE:
                    written = found["head"] + image(name) + written[found.end() :]
        out.append(written)
    return "\n".join(out)


def buildkit_only(text: str) -> str:
    """Return what of a Dockerfile only BuildKit understands; empty if an engine's own builder does
    all of it.
    """
    for line in lines_of(text):
        if not line.begins:
            continue
        word, _, rest = line.text.strip().partition(" ")
        if word.upper() in ("RUN", "COPY", "ADD"):
            if _heredoc(line.text):
                return f"{word.upper()} <<{_heredoc(line.text)} (a here-document)"
            if flag := re.match(
                r"--(mount|network|security|link|exclude|parents|checksum)\b", rest.lstrip()
            ):
                return f"{word.upper()} --{flag[1]}"
    return ""


def mapped(image: str, table: Mapping[str, str]) -> str:
    """Return the local image for *image* by *table*, whose keys are names or patterns such as
    ``python:3.*``; the first key that fits counts. *image* itself if none fits.

    A digest (``@sha256:...``) of *image* does not matter.
    """
    name = image.partition("@")[0]
    for pattern, local in table.items():
        if fnmatchcase(name, pattern) or image == pattern:
            return local
    return image


def _heredoc(line: str) -> str:
    """Return the word that ends the here-document of an instruction's line; empty without one."""
    if not re.match(r"\s*(RUN|COPY|ADD)\b", line, re.I):
        return ""
    found = HEREDOC.search(line)
    return found["word"] if found else ""


def _resolved(name: str, arguments: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        given = arguments.get(match["braced"] or match["plain"], "")
        return given or match["default"] or match[0]

    return VARIABLE.sub(value, name)
