"""Writing a file whole or not at all.

Lives here: the one context manager through which results reach the disk. Does not live here: any format.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simgpu.errors import InputError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A sibling path to write to, which takes the place of `path` when the block ends well and else vanishes.

    Readers see the old file or the complete new one, never a part. `InputError` names the path when the
    system refuses (folder missing, not writable, disk full).

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "result.txt"
    >>> with whole_file(target) as part:
    ...     _ = part.write_text("done")
    >>> target.read_text(), [entry.name for entry in target.parent.iterdir()]
    ('done', ['result.txt'])
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        remedy = "choose an existing folder that you may write to, with space left"
        raise InputError.single(target, "", f"cannot be written: {reason}", remedy) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
