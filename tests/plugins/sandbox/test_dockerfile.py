"""What a Dockerfile is built on, and the same file on other images."""

from __future__ import annotations

from string import printable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain_sandbox.dockerfile import bases, buildkit_only, lines_of, mapped, rebased

STAGES = """# syntax=docker/dockerfile:1
ARG VERSION=3.12
ARG TAG
FROM --platform=linux/amd64 python:${VERSION}-slim AS Build
RUN echo a \\
    # a comment does not end it
    FROM not-an-image
from build
COPY --from=build /a /b
COPY --chown=1:1 --from=0 /a /b
COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/
FROM scratch
FROM ubuntu:${TAG:-24.04}
FROM debian:$TAG
"""


def test_images_are_those_outside_of_the_file() -> None:
    """Without its stages and `scratch`; arguments have their defaults, in one order."""
    assert bases(STAGES) == [
        "python:3.12-slim",
        "ghcr.io/astral-sh/uv:latest",
        "ubuntu:24.04",
        "debian:$TAG",
    ]


def test_a_file_on_other_images_is_else_the_same() -> None:
    """The flag for another platform is left out, because the local image has one."""
    changed = rebased(STAGES, lambda image: f"local/{image.partition(':')[0].replace('/', '-')}")
    before, after = STAGES.splitlines(), changed.splitlines()
    assert [(a, b) for a, b in zip(before, after, strict=True) if a != b] == [
        ("FROM --platform=linux/amd64 python:${VERSION}-slim AS Build", "FROM local/python AS Build"),
        ("COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/",
         "COPY --from=local/ghcr.io-astral-sh-uv /uv /bin/"),
        ("FROM ubuntu:${TAG:-24.04}", "FROM local/ubuntu"),
        ("FROM debian:$TAG", "FROM local/debian"),
    ]  # fmt: skip


def test_the_escape_character_can_be_another_one() -> None:
    text = "# escape=`\nFROM a\nRUN x `\nFROM b\nRUN c:\\\nFROM d\n"
    assert bases(text) == ["a", "d"]


def test_lines_of_a_here_document_are_no_instructions() -> None:
    text = "FROM a\nRUN <<EOF\nFROM b\nEOF\nCOPY <<-'END' /x\nFROM c\nEND\nFROM d\n"
    assert bases(text) == ["a", "d"]
    begun = [line.text for line in lines_of(text) if line.begins]
    assert begun == ["FROM a", "RUN <<EOF", "COPY <<-'END' /x", "FROM d"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("RUN <<EOF\nx\nEOF", "RUN <<EOF (a here-document)"),
        ("COPY <<'A' /x\nx\nA", "COPY <<A (a here-document)"),
        ("RUN --mount=type=cache,target=/x y", "RUN --mount"),
        ("COPY --link a b", "COPY --link"),
        ("RUN cat <<< word", ""),
        ("RUN x --mount", ""),
        ("COPY --from=a --chown=1 b c", ""),
    ],
)
def test_what_only_buildkit_understands_is_named(line: str, what: str) -> None:
    assert buildkit_only(f"FROM a\n{line}\n") == what


@pytest.mark.more
@given(st.text(alphabet=printable))
def test_any_text_keeps_its_lines(text: str) -> None:
    """Only lines that name an image change."""
    kept = rebased(text, lambda image: image).split("\n")
    for before, after in zip(text.split("\n"), kept, strict=True):
        words = before.split()
        if not words or words[0].upper() not in ("FROM", "COPY", "ADD"):
            assert after == before


@given(st.lists(st.sampled_from(["python:3.12", "ubuntu:24.04", "a/b@sha256:00", "x"]), min_size=1))
def test_images_after_a_change_are_the_changed_ones(images: list[str]) -> None:
    text = "".join(f"FROM {image}\n" for image in images)
    assert bases(rebased(text, lambda image: f"l/{image}")) == [
        f"l/{i}" for i in dict.fromkeys(images)
    ]


def test_a_table_has_names_and_patterns() -> None:
    """The first that fits counts; a digest of the name does not matter."""
    table = {"python:3.12*": "a", "python:*": "b", "ghcr.io/x/y:1": "c"}
    names = ("python:3.12-slim", "python:3.9", "ghcr.io/x/y:1@sha256:00", "python", "ghcr.io/x/y:2")
    assert [mapped(name, table) for name in names] == ["a", "b", "c", "python", "ghcr.io/x/y:2"]
