"""The index: BM25 over stemmed words (tantivy), on disk, cached by the content of the corpus."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import tantivy
from tantivy import Filter, Occur, Query, TextAnalyzer, TextAnalyzerBuilder, Tokenizer

from quintain.data import DataFaults
from quintain.errors import StorageError, UsageError
from quintain.store import cache_folder

from .corpus import Corpus, Passage

FORMAT = 1
"""Counts up when an index that older code built must be built again."""
HEAP_BYTES = 64_000_000
"""Memory of the index writer."""
QUERY_CHARS = 2_000
QUERY_TERMS = 64
"""What is read of a query: its first characters, and the first different words among them."""
REPORT_EVERY = 10_000
"""Passages between two reports of progress."""
ABOUT = "quintain.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A passage that a query found, and its BM25 score."""

    passage: Passage
    score: float


class SearchIndex:
    """An index on disk, read through memory maps.

    Queries are OR queries over their words without stop words, ranked by BM25 (Robertson and
    Zaragoza 2009; k1 = 1.2, b = 0.75); a query that has nothing but stop words is taken with them.

    Attributes:
        passages: the number of passages.
    """

    def __init__(self, folder: Path) -> None:
        """Open what `build_index` wrote to *folder*."""
        self.folder = folder
        self._index = tantivy.Index(_schema(), str(folder))
        self._index.register_tokenizer("stemmed", _analyzer())
        self._index.reload()
        self._searcher = self._index.searcher()
        self._schema = self._index.schema
        self._words = _analyzer()
        self._content_words = _analyzer(stop=True)
        self.passages = self._searcher.num_docs

    def search(self, query: str, k: int = 5) -> list[Hit]:
        """Return the *k* passages with the highest score, best first; fewer where fewer have a word
        of *query*.
        """
        query = query[:QUERY_CHARS]
        words = self._content_words.analyze(query) or self._words.analyze(query)
        terms = list(dict.fromkeys(words))[:QUERY_TERMS]
        if not terms:
            return []
        parts = [
            (Occur.Should, Query.term_query(self._schema, "text", term, "freq")) for term in terms
        ]
        result = self._searcher.search(Query.boolean_query(parts), k, count=False)
        return [Hit(passage=self._read(address), score=score) for score, address in result.hits]

    def open(self, id: str) -> Passage | None:  # noqa: A002 - the word of the tool
        """Return the passage with this id; None if there is none."""
        hits = self._searcher.search(
            Query.term_query(self._schema, "id", id, "basic"), 1, count=False
        ).hits
        return self._read(hits[0][1]) if hits else None

    def _read(self, address: tantivy.DocAddress) -> Passage:
        document = self._searcher.doc(address)
        title, _, text = document["text"][0].partition("\n")
        return Passage(id=document["id"][0], title=title, text=text)


def build_index(
    corpus: Corpus, cache: Path | None = None, progress: Callable[[str], None] = lambda _: None
) -> SearchIndex:
    """Open the index of *corpus*, which is built if the cache has none for its content.

    Several processes may call it at one time: one builds, the others wait. What a killed process
    left is removed by the next.

    Args:
        corpus: the passages; reading takes 8 bytes of memory for each, and `HEAP_BYTES`.
        cache: folder of indexes; by default ``$QUINTAIN_CACHE/search``, else
            ``~/.cache/quintain/search``.
        progress: called with a line of text now and then.

    Raises:
        UsageError: the corpus is empty, a row is unreadable, or two passages have one id.
        StorageError: the cache cannot be written.
    """
    cache = cache or cache_folder() / "search"
    key = f"{FORMAT}-{version('tantivy')}-{corpus.digest()}"
    folder = cache / key
    try:
        if not (folder / ABOUT).is_file():
            with _locked(cache, key):
                if not (folder / ABOUT).is_file():
                    _build(corpus, cache / f"{key}.building", progress)
                    (cache / f"{key}.building").rename(folder)
        return SearchIndex(folder)
    except (OSError, ValueError) as e:
        if isinstance(e, UsageError):
            raise
        raise StorageError(
            f"the index at {folder} cannot be written or read: {e}; name a folder with --cache"
        ) from e


@contextmanager
def _locked(cache: Path, key: str) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{key}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(corpus: Corpus, folder: Path, progress: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index = tantivy.Index(_schema(), str(folder))
    index.register_tokenizer("stemmed", _analyzer())
    # one thread, so that equal scores keep the order of the corpus
    writer = index.writer(HEAP_BYTES, 1)
    hashes = [array("Q") for _ in range(256)]
    number = 0
    for number, passage in enumerate(corpus.passages(), 1):
        writer.add_document(
            tantivy.Document(id=passage.id, text=f"{passage.title}\n{passage.text}")
        )
        digest = _id_hash(passage.id)
        hashes[digest & 255].append(digest)
        if number % REPORT_EVERY == 0:
            progress(f"indexed {number:,} passages")
    if not number:
        raise UsageError("the corpus has no passages")
    repeated = {
        digest
        for bucket in hashes
        if len(set(bucket)) < len(bucket)
        for digest, count in Counter(bucket).items()
        if count > 1
    }
    if repeated:
        first: dict[str, str] = {}
        with DataFaults("the corpus") as faults:
            for passage in corpus.passages():
                if _id_hash(passage.id) in repeated:
                    faults.repeated(first, passage.id, passage.place or passage.id)
            faults[-1:] = [f"{text} (--id-column names another column)" for text in faults[-1:]]
    writer.commit()
    writer.wait_merging_threads()
    (folder / ABOUT).write_text(json.dumps({"passages": number}) + "\n", encoding="utf-8")
    progress(f"indexed all {number:,} passages")


def _id_hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    # The title is the first line, so that its words count, and one field is stored and indexed.
    builder.add_text_field("text", stored=True, tokenizer_name="stemmed", index_option="freq")
    return builder.build()


def _analyzer(*, stop: bool = False) -> TextAnalyzer:
    builder = (
        TextAnalyzerBuilder(Tokenizer.simple())
        .filter(Filter.remove_long(40))
        .filter(Filter.lowercase())
    )
    builder = builder.filter(Filter.ascii_fold())
    if stop:
        builder = builder.filter(Filter.stopword("english"))
    return builder.filter(Filter.stemmer("english")).build()
