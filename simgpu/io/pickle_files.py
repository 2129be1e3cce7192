"""Reading pickles that hold plain values only: numbers, text, lists, tuples and dictionaries.

A pickle is a program for a small machine, and loading one from a stranger may run any code. This reader first goes
through the whole program: it accepts the instructions that build plain values and refuses all others, so that Python's
own `pickle` afterwards sees no class, no function and no call.
"""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.io.free_memory import available_memory
from simgpu.io.input_files import open_input, pieces
from simgpu.units import format_bytes

#: Largest pickle that is read, bytes.
PICKLE_LIMIT = 2 * 2**30

#: Bytes of arguments of the accepted instructions; for text, bytes of the number that states its length.
_ARGUMENTS = {
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE", "MARK", "POP", "POP_MARK", "DUP", "STOP", "MEMOIZE"), 0),
    **dict.fromkeys(("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS"), 0),
    **dict.fromkeys(("LIST", "DICT", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), 0),
    "PROTO": 1,
    "FRAME": 8,
    "BININT": 4,
    "BININT1": 1,
    "BININT2": 2,
    "BINFLOAT": 8,
    "BINGET": 1,
    "LONG_BINGET": 4,
    "BINPUT": 1,
    "LONG_BINPUT": 4,
}
_LENGTHS = {"LONG1": 1, "SHORT_BINUNICODE": 1, "BINUNICODE": 4, "SHORT_BINBYTES": 1, "BINBYTES": 4}
#: Bytes of memory that the value of an instruction takes, with the place that refers to it, at most.
_COSTS = {
    "EMPTY_DICT": 240,
    "DICT": 240,
    "EMPTY_LIST": 96,
    "LIST": 96,
    "TUPLE": 96,
    "MARK": 64,
    "MEMOIZE": 16,
    **dict.fromkeys(("BINGET", "LONG_BINGET", "DUP", "EMPTY_TUPLE", "NONE", "NEWTRUE", "NEWFALSE"), 10),
}
_OTHERS = 64

_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_NAMES = {code: name for name, code in _CODES.items()}
_REFUSED = -1


def read_plain_pickle(path: str | Path, what: str = "a pickle of plain values", remedy: str = "write it again") -> Any:
    """The value in a pickle of protocol 2 or later that holds plain values only.

    what: the kind of file, remedy: what to do about one that is damaged, for messages. Raises `InputError` for a
    missing, empty, damaged or too large file, for one that takes more than the free memory, and for one with any
    instruction that creates objects.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "snapshot.pickle"
    >>> _ = file.write_bytes(pickle.dumps({"segments": [(1, "a")]}))
    >>> read_plain_pickle(file)
    {'segments': [(1, 'a')]}
    >>> _ = file.write_bytes(pickle.dumps(Path("other")))
    >>> read_plain_pickle(file)
    Traceback (most recent call last):
    simgpu.errors.InputError: ...snapshot.pickle: byte ...: would create an object (instruction STACK_GLOBAL); ...
    """
    with open_input(path, what, PICKLE_LIMIT) as stream:
        data = b"".join(pieces(stream, path, what, PICKLE_LIMIT))
    if not data:
        raise InputError.single(path, "", "is empty", remedy)
    bytes = _check(data, path, what, remedy)
    free = available_memory()
    if free is not None and bytes > free:
        what = f"may take {format_bytes(bytes)} of memory, with {format_bytes(free)} free"
        raise InputError.single(path, "", what, "give a shorter recording, or a machine or a limit with more memory")
    try:
        return pickle.loads(data)
    except Exception as error:
        # Damaged files raise whatever a wrong stack, a missing reference or an unhashable key leads to.
        raise InputError.single(path, "", f"is a damaged pickle ({type(error).__name__}: {error})", remedy) from None


def _check(data: bytes, path: str | Path, what: str, remedy: str) -> int:
    """Go through a pickle's instructions; at most how many bytes its values take."""
    at, references, cost = 0, 0, 3 * len(data)
    put, long_put, memoize, stop = (_CODES[name] for name in ("BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"))
    widths, lengths, costs = _WIDTHS, _LENGTH_WIDTHS, _CODE_COSTS
    if data[0] != _CODES["PROTO"]:
        raise _refused(data, 0, path, what)
    try:
        while True:
            code = data[at]
            width = widths[code]
            if width == _REFUSED:
                raise _refused(data, at, path, what)
            argument = at + 1
            cost += costs[code]
            at = argument + width
            if length := lengths[code]:
                at += int.from_bytes(data[argument : argument + length], "little")
            elif code == memoize:
                references += 1
            elif code in (put, long_put):
                # Python makes a table up to the highest number, which a writer counts up.
                if int.from_bytes(data[argument:at], "little") > references:
                    raise InputError.single(path, f"byte {argument - 1}", "has a damaged reference", remedy)
                references += 1
            elif code == stop:
                break
    except IndexError:
        raise InputError.single(path, f"byte {len(data)}", "is cut off", remedy) from None
    return cost


def _refused(data: bytes, at: int, path: str | Path, what: str) -> InputError:
    name = _NAMES.get(data[at])
    if name is None or not at:
        return InputError.single(path, f"byte {at}", "is not a pickle", f"give {what}")
    reason = f"would create an object (instruction {name}); only numbers, text, lists, tuples and dictionaries are read"
    return InputError.single(path, f"byte {at}", reason, f"give {what}; do not load this file otherwise")


_WIDTHS = [(_ARGUMENTS | _LENGTHS).get(_NAMES.get(code, ""), _REFUSED) for code in range(256)]
_LENGTH_WIDTHS = [_LENGTHS.get(_NAMES.get(code, ""), 0) for code in range(256)]
_CODE_COSTS = [_COSTS.get(_NAMES.get(code, ""), _OTHERS) for code in range(256)]
