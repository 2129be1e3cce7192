"""Finished work on disk, so that nothing runs twice: a file a task, of this very program and these inputs alone."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from simgpu.errors import InputError
from simgpu.io.atomic import atomic_file, unwritable
from simgpu.io.codestate import LIBRARIES, digest_of, files_below, interpreter, own_code, versions
from simgpu.io.input_files import read_json
from simgpu.io.shipped import Kind, shipped_folder
from simgpu.version import __version__

_KINDS: tuple[Kind, ...] = ("configs", "scenarios", "traces")
_MARK = "simgpu-reproduction"
#: A folder of results, by its name: whatever else somebody put beside these is not ours.
_OF_A_STATE = re.compile("[0-9a-f]{16}")


@lru_cache
def fingerprint() -> str:
    """A hash of what decides results: simgpu's code, what ships with it, and the libraries that it computes with.

    Without the checks, of which each task tells by itself (`simgpu.papers.tasks`).
    """
    state = {
        "simgpu": __version__,
        "code": own_code().digest,
        "shipped": digest_of(_shipped()),
        **interpreter(),
        **versions(LIBRARIES),
    }
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _shipped() -> Iterator[tuple[str, Path]]:
    for kind in _KINDS:
        folder = shipped_folder(kind)
        for path in files_below(folder):
            if path.suffix != ".png":
                yield f"{kind}/{path.relative_to(folder).as_posix()}", path


class Kept:
    """Results by key: in memory, and in a folder where one is given. Results of another simgpu go when it is opened.

    Raises `InputError` where the folder holds something else or cannot be written.
    """

    def __init__(self, folder: Path | None = None, *, restart: bool = False) -> None:
        self._found: dict[str, object] = {}
        self._folder = None if folder is None else folder / fingerprint()
        if folder is None or self._folder is None:
            return
        try:
            if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
                what = "holds files that are not from a reproduction of simgpu"
                raise InputError.single(folder, "", what, "choose another folder with -o")
            folder.mkdir(parents=True, exist_ok=True)
            # First of all: a run that ends here leaves a folder that the next one knows.
            (folder / _MARK).touch()
            for old in folder.iterdir():
                if old.is_dir() and _OF_A_STATE.fullmatch(old.name) and (restart or old != self._folder):
                    shutil.rmtree(old)
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error

    def get(self, key: str) -> object | None:
        """What was found under a key, None where nothing was."""
        if key in self._found or self._folder is None:
            return self._found.get(key)
        try:
            document = read_json(self._file(key))
        except InputError:
            return None
        if not isinstance(document, dict) or document.get("key") != key or "found" not in document:
            return None
        self._found[key] = document["found"]
        return self._found[key]

    def put(self, key: str, found: object) -> None:
        """Keeps a result, whole or, where the process dies meanwhile, not at all."""
        text = json.dumps({"key": key, "found": found}, allow_nan=False)
        # As it would be read back: tuples as lists, whoever ran it.
        self._found[key] = json.loads(text)["found"]
        if self._folder is not None:
            # A run of another simgpu may have taken it away meanwhile.
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._file(key)) as part:
                part.write_text(text, encoding="utf-8")

    def _file(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
