"""The destination of an upload: the dataset, and what it already contains.

This module asks the server.
"""

import os
import stat
from dataclasses import dataclass

from dieselfs.errors import AlreadyExists, InvalidInput, NotFound
from dieselfs.names import Location
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import RemoteEntry
from dieselfs.transfer.upload import SourceEntry


@dataclass(frozen=True)
class Target:
    """`dataset` is None if it does not exist. `is_folder`: sources go into the destination, under their own names."""

    client: ServerClient
    location: Location
    dataset: DatasetRecord | None
    is_folder: bool

    def made(self) -> DatasetRecord:
        """The dataset, which is created if it does not exist."""
        if self.dataset is not None:
            return self.dataset
        try:
            return self.client.create_dataset(self.location.dataset)
        except AlreadyExists:
            return self.client.dataset(self.location.dataset)

    def holds(self, entry: SourceEntry) -> bool:
        """Whether the entry is stored with the same type, size, time and mode. Sends one request to the server."""
        if self.dataset is None:
            return False
        try:
            stored = self.client.stat(self.dataset.name, entry.path)
        except NotFound:
            return False
        return is_same(entry, stored)


def is_same(entry: SourceEntry, stored: RemoteEntry) -> bool:
    """`dieselfs.transfer.upload.is_stored` for an entry in the form of the server."""
    status = entry.status
    if (stat.S_IMODE(status.st_mode), status.st_mtime_ns) != (stat.S_IMODE(stored.mode), stored.mtime_ns):
        return False
    match Op(stored.op):
        case Op.FILE:
            return stat.S_ISREG(status.st_mode) and status.st_size == stored.size
        case Op.DIRECTORY:
            return stat.S_ISDIR(status.st_mode)
        case Op.SYMLINK:
            return stat.S_ISLNK(status.st_mode) and os.readlink(entry.source) == stored.target
        case Op.DELETE:
            return False


def find_target(client: ServerClient, location: Location) -> Target:
    """The destination at a location. Raises InvalidInput if it names a folder, and is a file."""
    try:
        dataset = client.dataset(location.dataset)
    except NotFound:
        return Target(client, location, None, location.is_folder_form)
    try:
        is_folder = Op(client.stat(dataset.name, location.path).op) == Op.DIRECTORY
    except NotFound:
        return Target(client, location, dataset, location.is_folder_form)
    if location.is_folder_form and not is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file")
    return Target(client, location, dataset, is_folder)
