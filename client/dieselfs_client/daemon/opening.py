"""The dataset of a daemon, opened. This module calls the server, and opens files.

What fetches, verifies and derives snapshots is imported where it is used: in a child of the first zygote, with which
its memory ends.
"""

from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from dieselfs.errors import Unavailable
from dieselfs.limits import READ_PATIENCE_S, VERB_PATIENCE_S
from dieselfs.names import SCHEME, is_file_path, is_location, parse_location
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import CacheOptions, Settings
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.plain import node_source
from dieselfs.sources.server import ServerSource


class Opened(NamedTuple):
    """A dataset as daemons serve it. `source`: the disk of the node, and servers."""

    snapshot: Snapshot
    source: ServerSource
    client: ServerClient


def open_dataset(dataset: str, options: CacheOptions, snapshot_file: str | None) -> Opened:
    """Open `dataset` at its newest snapshot, or at that of a file, without a request to the server. With a folder
    (`name/folder`), the snapshot is that of the folder; with an expression in the options, that of the files which it
    selects.

    Raises what `dieselfs.connect` raises, and Damaged for a broken file.
    """
    settings = Settings.load(options.server, options.key_file, home=options.home)
    open_one = _open_saved if is_file_path(dataset) else _open_stored
    # The program that starts the daemon waits for it.
    client = ServerClient(replace(settings, patience_s=VERB_PATIENCE_S))
    snapshot = open_one(dataset, options, snapshot_file, client)
    client.be_patient_for(READ_PATIENCE_S)
    disk = options.disk, options.disk_size_bytes
    source = node_source(client, snapshot, *disk, opens_ahead=options.job is None)
    return Opened(snapshot, source, client)


def _open_stored(
    dataset: str, options: CacheOptions, snapshot_file: str | None, client: ServerClient
) -> Snapshot:
    location = parse_location(dataset if is_location(dataset) else SCHEME + dataset)
    if snapshot_file is not None:  # then the dataset need not exist on the server at the moment
        snapshot = Snapshot.open(snapshot_file, location.path)
    else:
        from dieselfs.snapshot.store import SnapshotStore

        record = client.dataset(location.dataset)
        snapshot = SnapshotStore.of(client.settings).get(client, record, options.generation, location.tag)
        if options.where:
            from dieselfs.selection.selected import stored_selection

            snapshot = stored_selection(snapshot, client, options.where, location.path)
        elif location.path:
            from dieselfs.snapshot.derived import stored_subtree

            snapshot = stored_subtree(snapshot, location.path)
    snapshot.tag = location.tag
    return snapshot


def _open_saved(
    path: str, options: CacheOptions, snapshot_file: str | None, client: ServerClient
) -> Snapshot:
    """As `open_dataset`, for a saved snapshot. No request to the server is needed, so its metadata may be away."""
    if snapshot_file is not None:
        return Snapshot.open(snapshot_file)
    from dieselfs.selection.selected import stored_selection
    from dieselfs.snapshot.derived import stored_plain
    from dieselfs.snapshot.store import SnapshotStore

    snapshot = SnapshotStore.of(client.settings).adopt(path, client.servers_pins)
    cipher = None
    with suppress(Unavailable):  # of a dataset that is not encrypted, nothing is needed now
        cipher = client.known_cipher(snapshot.dataset)
    snapshot = snapshot if cipher is None else stored_plain(snapshot, cipher)
    return stored_selection(snapshot, client, options.where) if options.where else snapshot
