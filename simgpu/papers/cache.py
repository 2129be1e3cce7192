"""Caches results of tasks on disk, one file per task. A change of code or inputs invalidates them."""

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
#: Names of folders of results; other files in the cache folder are not touched.
_OF_A_STATE = re.compile("[0-9a-f]{16}")


@lru_cache
def fingerprint() -> str:
    """A hash of everything that affects results: simgpu's code and shipped files, Python, and numeric libraries.

    Checks are not included: their hash is in the key of each task (`simgpu.papers.tasks`).
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


class ResultCache:
    """Results by key, in memory and optionally in a folder. Opening it deletes results of other versions.

    Raises `InputError` if the folder contains other files or cannot be written.
    """

    def __init__(self, folder: Path | None = None, *, restart: bool = False) -> None:
        self._results: dict[str, object] = {}
        self._folder = None if folder is None else folder / fingerprint()
        if folder is None or self._folder is None:
            return
        try:
            if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
                what = "contains files that simgpu reproduce did not write"
                raise InputError.single(folder, "", what, "choose another folder with -o")
            folder.mkdir(parents=True, exist_ok=True)
            # Marked first, so that a later run recognizes the folder even if this one stops here.
            (folder / _MARK).touch()
            for old in folder.iterdir():
                if old.is_dir() and _OF_A_STATE.fullmatch(old.name) and (restart or old != self._folder):
                    shutil.rmtree(old)
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error

    def get(self, key: str) -> object | None:
        """The result of a key; None if not cached."""
        if key in self._results or self._folder is None:
            return self._results.get(key)
        try:
            document = read_json(self._file(key))
        except InputError:
            return None
        if not isinstance(document, dict) or document.get("key") != key or "result" not in document:
            return None
        self._results[key] = document["result"]
        return self._results[key]

    def put(self, key: str, result: object) -> None:
        """Store a result; the write is atomic."""
        text = json.dumps({"key": key, "result": result}, allow_nan=False)
        # Stored as it would be read back, with tuples as lists.
        self._results[key] = json.loads(text)["result"]
        if self._folder is not None:
            # A concurrent run of another version may have deleted the folder.
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._file(key)) as part:
                part.write_text(text, encoding="utf-8")

    def _file(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
