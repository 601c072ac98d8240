"""Model sources whose model is a folder of its own: known packages by name, and GGUF files."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from quintain.console import program_name
from quintain.errors import UsageError
from quintain.models import LoadedModel
from quintain.recipe import ModelRequest, ModelSource
from quintain.store import cache_folder

from .gguf_folder import check_installed, check_is_gguf, write_folder
from .packages import get, locked, package_named


class OwnFolder(ModelSource):
    """A model that depends on no environment."""

    def load(self, request: ModelRequest) -> LoadedModel:
        return request.load_model(self.folder(request), request.name)

    def folder(self, request: ModelRequest) -> Path:
        folder = self.folder_named(request.name)
        assert folder is not None
        return folder


class Packaged(OwnFolder):
    """A model of the table `quintain_starter.packages.PACKAGES`, once ``quintain model get`` has
    got it.
    """

    @classmethod
    def folder_named(cls, name: str) -> Path | None:
        package = package_named(name.rpartition("/")[2])
        if not package.is_here:
            raise UsageError(
                f"the model {package.name} is not here yet ({package.size / 1e6:,.0f} MB): "
                f"{program_name()} model get {package.name}"
            )
        return package.folder

    @classmethod
    def bring(cls, name: str, say: Callable[[str], None], *, quiet: bool = False) -> Path | None:
        return get(package_named(name.rpartition("/")[2]), say, quiet=quiet)


class GGUFFile(OwnFolder):
    """A GGUF file, turned into a folder of the cache on first use: weights in float32, tokenizer,
    template.
    """

    @classmethod
    def folder_named(cls, name: str) -> Path | None:
        file = Path(name).expanduser().resolve()
        check_is_gguf(file)
        folder = cache_folder() / "models" / f"{file.stem}-{_key_of(file)}"
        if not (folder / "quintain.json").is_file():
            check_installed()
            with locked(folder.name, _say):
                if not (folder / "quintain.json").is_file():
                    _say(f"reading {file.name} into {folder}, once ...")
                    if remark := write_folder(file, folder, {"file": str(file)}, {}):
                        _say(f"warning: {remark}")
        return folder


def _key_of(file: Path) -> str:
    """Return what changes when *file* does: of its path, size and time of change."""
    state = file.stat()
    text = f"{file}\n{state.st_size}\n{state.st_mtime_ns}"
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def _say(text: str) -> None:
    print(text, file=sys.stderr)
