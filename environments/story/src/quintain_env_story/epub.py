"""Reads books: plain text, Markdown and EPUB, with bounds on everything that a file may claim."""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from quintain.errors import UsageError

MAX_BYTES = 64_000_000
"""Of a file, and of all documents of an EPUB together once they are unpacked."""
MAX_ENTRIES = 10_000
_BLOCKS = frozenset(
    "p div section article header footer li tr blockquote pre dt dd figcaption table ul ol body".split()
)
_HEADINGS = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "### ", "h5": "### ", "h6": "### "}
_LEFT_OUT = frozenset({"script", "style", "head", "svg", "math", "nav", "template"})
_DOCTYPE = re.compile(r"<!DOCTYPE[^\[>]*(?:\[[^\]]*\]\s*)?>", re.I)
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())


@dataclass(frozen=True, kw_only=True)
class BookText:
    """A book as text; headings of an EPUB are Markdown lines."""

    title: str
    text: str


def read_book(path: Path) -> BookText:
    """Return the text of a ``.txt``, ``.md`` or ``.epub`` file; any other is read as text.

    Raises:
        UsageError: no such file, too large, no text, damaged, or protected.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UsageError(f"{path} has {size:,} bytes; a book may have {MAX_BYTES:,}")
        data = path.read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read the book {path}: {e.strerror}") from e
    if data[:4] == b"PK\x03\x04":
        return _read_epub(path)
    text = _decode(data, path)
    named = re.search(r"^Title:\s*(\S.*)$", text[:20_000], re.M)
    return BookText(title=named[1].strip() if named else path.stem, text=text)


def _decode(data: bytes, path: Path) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16", "replace")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("cp1252", "replace")
    if text.count("\0") > len(text) // 1000:
        raise UsageError(f"{path} is no text; give a .txt, .md or .epub file")
    if not text.strip():
        raise UsageError(f"{path} has no text")
    return text.replace("\0", "")


def _read_epub(path: Path) -> BookText:
    try:
        with zipfile.ZipFile(path) as archive:
            return _Epub(archive, path).read()
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
        NotImplementedError,
        ValueError,
    ) as e:
        raise UsageError(
            f"{path} cannot be read as an EPUB: {str(e)[:200] or type(e).__name__}"
        ) from e


class _Epub:
    """The documents of an archive, read by name and never unpacked to disk."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self.archive, self.path, self.left = archive, path, MAX_BYTES
        entries = archive.infolist()
        if len(entries) > MAX_ENTRIES:
            raise UsageError(
                f"{path} has {len(entries):,} entries; an EPUB may have {MAX_ENTRIES:,}"
            )
        self.names = {entry.filename for entry in entries}

    def read(self) -> BookText:
        container = _Tags({"rootfile"}).fed(self.document("META-INF/container.xml"))
        package_name = next((a["full-path"] for _, a in container.tags if "full-path" in a), "")
        if not package_name:
            raise UsageError(f"{self.path} names no package document; it is no EPUB")
        package = _Tags({"item", "itemref"}, text_of="dc:title").fed(self.document(package_name))
        items = {a.get("id", ""): a for tag, a in package.tags if tag == "item"}
        hrefs = [
            items[a["idref"]].get("href", "") for tag, a in package.tags if a.get("idref") in items
        ]
        folder = posixpath.dirname(package_name)
        names = [
            posixpath.normpath(posixpath.join(folder, unquote(href.partition("#")[0])))
            for href in hrefs
        ]
        self.refuse_protected(names)
        pages = [
            _Page().fed(self.document(name)).text()
            for name in dict.fromkeys(names)
            if name in self.names
        ]
        text = "\n\n".join(page for page in pages if page)
        if not text.strip():
            raise UsageError(f"{self.path} has no text in its {len(names)} documents")
        return BookText(title=package.text.strip() or self.path.stem, text=text)

    def document(self, name: str) -> str:
        """Return the text of one entry; the size that the archive claims for it is not believed."""
        if name not in self.names:
            raise UsageError(f"{self.path} has no {name[:200]!r}; it is no EPUB, or damaged")
        with self.archive.open(name) as entry:
            data = entry.read(self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise UsageError(
                f"the documents of {self.path} have more than {MAX_BYTES:,} bytes unpacked"
            )
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        return _DOCTYPE.sub("", data.decode(encoding, "replace").replace("\0", ""), count=1)

    def refuse_protected(self, names: Iterable[str]) -> None:
        listed = "META-INF/encryption.xml"
        if listed not in self.names:
            return
        encrypted = {
            unquote(a.get("uri", ""))
            for _, a in _Tags({"cipherreference"}).fed(self.document(listed)).tags
        }
        if encrypted.intersection(names):
            raise UsageError(
                f"{self.path} is protected (its chapters are encrypted); give a book without DRM"
            )


class _Tags(HTMLParser):
    """The attributes of some tags, without namespaces, and the text of one; entities of a DTD are
    never expanded.
    """

    def __init__(self, wanted: set[str], text_of: str = "") -> None:
        super().__init__(convert_charrefs=True)
        self.wanted, self.text_of = wanted, text_of
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text, self._inside = "", False

    def fed(self, document: str) -> _Tags:
        self.feed(document)
        self.close()
        return self

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        plain = tag.rpartition(":")[2]
        if plain in self.wanted:
            self.tags.append((plain, {key: value or "" for key, value in attrs}))
        self._inside = tag == self.text_of and not self.text

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.text, self._inside = data[:300], False


class _Page(HTMLParser):
    """The text of one XHTML document: paragraphs with blank lines between them, headings as
    Markdown.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._paragraphs: list[str] = []
        self._words: list[str] = []
        self._prefix, self._hidden, self._hidden_by = "", 0, ""

    def fed(self, document: str) -> _Page:
        self.feed(document)
        self.close()
        self._end()
        return self

    def text(self) -> str:
        return "\n\n".join(self._paragraphs)

    def _end(self, prefix: str = "") -> None:
        words = " ".join("".join(self._words).split())
        if words:
            self._paragraphs.append(self._prefix + words)
        self._words, self._prefix = [], prefix

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._hidden += tag == self._hidden_by
        elif tag in _LEFT_OUT:
            self._hidden, self._hidden_by = 1, tag
        elif tag in _HEADINGS:
            self._end(_HEADINGS[tag])
        elif tag in _BLOCKS:
            self._end()
        elif tag == "br":
            self._words.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _LEFT_OUT:
            self.handle_starttag(tag, attrs)
            if tag not in _VOID:
                self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden -= tag == self._hidden_by
        elif tag in _HEADINGS or tag in _BLOCKS:
            self._end()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._words.append(data)
