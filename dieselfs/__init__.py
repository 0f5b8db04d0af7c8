"""Datasets of millions of small files, packed into chunks, read at memory speed.

import dieselfs

with dieselfs.connect("imagenet") as data:
    for path in data.shuffle(seed=1, epoch=0):
        train(data.get(path))

What needs numpy and the protocol is imported when it is first used, so that a command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dieselfs.errors import (
    AccessDenied,
    AlreadyExists,
    Damaged,
    DieselfsError,
    InvalidInput,
    NotFound,
    PathNotFound,
    ProtocolError,
    SourceChanged,
    StorageFull,
    Unavailable,
)

if TYPE_CHECKING:
    from dieselfs.dataset import Dataset, connect
    from dieselfs.dataset.locations import open_file as open
    from dieselfs.shuffle.cursor import Cursor
    from dieselfs.shuffle.opportunistic import ServedLog
    from dieselfs.shuffle.plan import Plan, Share, ShuffledPaths
    from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
    from dieselfs.snapshot.reader import Stat

__version__ = "0.1.0"
"""Also of the package. A literal: to read it from the installed package takes a daemon 30 ms and 2 MB."""

_MODULES = {
    "Cursor": "dieselfs.shuffle.cursor",
    "Dataset": "dieselfs.dataset",
    "Plan": "dieselfs.shuffle.plan",
    "PlanSpec": "dieselfs.shuffle.spec",
    "ReaderSpec": "dieselfs.shuffle.spec",
    "ServedLog": "dieselfs.shuffle.opportunistic",
    "Share": "dieselfs.shuffle.plan",
    "ShuffledPaths": "dieselfs.shuffle.plan",
    "Stat": "dieselfs.snapshot.reader",
    "connect": "dieselfs.dataset",
    "open": "dieselfs.dataset.locations",
}
"""Where the names above come from that are not errors."""
_OTHER_NAMES = {"open": "open_file"}
"""The names that they have there, if these differ."""

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Cursor",
    "Damaged",
    "Dataset",
    "DieselfsError",
    "InvalidInput",
    "NotFound",
    "PathNotFound",
    "Plan",
    "PlanSpec",
    "ProtocolError",
    "ReaderSpec",
    "ServedLog",
    "Share",
    "ShuffledPaths",
    "SourceChanged",
    "Stat",
    "StorageFull",
    "Unavailable",
    "__version__",
    "connect",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), _OTHER_NAMES.get(name, name))
    return value
