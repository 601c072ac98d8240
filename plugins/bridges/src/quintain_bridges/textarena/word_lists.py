"""Lists of words for the games that look for NLTK's, on machines where NLTK has none."""

from __future__ import annotations

import contextlib
import io
import logging
from importlib.resources import files

from quintain.store import cache_folder

BASIC = 850
"""Words of the short list, as NLTK's has."""
LETTERS = range(3, 9)
_log = logging.getLogger("quintain.env.textarena")


def provide_words() -> None:
    """Let NLTK find lists of words that are made of TextArena's own dictionary, below
    ``$QUINTAIN_CACHE/textarena``. They are made once.
    """
    import nltk

    data = cache_folder() / "textarena"
    folder = data / "corpora" / "words"
    if not (folder / "en").is_file():
        from textarena.envs.utils.word_lists import EnglishDictionary

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            dictionary = EnglishDictionary(include_nltk=False)
        folder.mkdir(parents=True, exist_ok=True)
        for name, found in (
            ("en-basic", basic_words()),
            ("en", sorted(word for word in dictionary.get_all_words() if word.isalpha())),
        ):
            part = folder / f".{name}"
            part.write_text("\n".join(found) + "\n", encoding="utf-8")
            part.replace(folder / name)
    if str(data) not in nltk.data.path:
        nltk.data.path.append(str(data))
        _log.warning(
            "textarena: NLTK's words are not there, so games with words draw theirs from "
            "TextArena's dictionary: `python -m nltk.downloader words` gives them the usual ones"
        )


def basic_words() -> list[str]:
    """Return short words that both dictionaries have, those with most forms (endings and
    beginnings): they are the common ones.
    """
    forms = []
    for name in ("en_US.dic", "en_GB.dic"):
        text = files("textarena.envs.utils.data").joinpath(name).read_text(encoding="utf-8")
        lines = (line.partition("/") for line in text.split("\n")[1:])
        forms.append({word: len(flags) for word, _, flags in lines if _plain(word)})
    american, british = forms
    both = {word: american[word] + british[word] for word in american.keys() & british.keys()}
    return sorted(sorted(both, key=lambda word: (-both[word], word))[:BASIC])


def _plain(word: str) -> bool:
    return len(word) in LETTERS and word.isascii() and word.isalpha() and word.islower()
