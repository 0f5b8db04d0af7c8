"""Datasets of millions of small files, packed into chunks, read at memory speed.

import dieselfs

with dieselfs.connect("imagenet") as data:
    for path in data.shuffle(seed=1, epoch=0):
        train(data.get(path))
"""

from dieselfs.dataset import Dataset, connect
from dieselfs.errors import (
    AccessDenied,
    AlreadyExists,
    Damaged,
    DieselfsError,
    InvalidInput,
    NotFound,
    ProtocolError,
    SourceChanged,
    StorageFull,
    Unavailable,
)
from dieselfs.meta.snapshot import Stat
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan, Share, ShuffledPaths

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "Cursor",
    "Damaged",
    "Dataset",
    "DieselfsError",
    "InvalidInput",
    "NotFound",
    "Plan",
    "ProtocolError",
    "Share",
    "ShuffledPaths",
    "SourceChanged",
    "Stat",
    "StorageFull",
    "Unavailable",
    "connect",
]
