"""Saved snapshots: files that users keep and share, with a statement of freshness beside each. This module opens
files.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dieselfs.errors import Damaged, DieselfsError, NotFound, os_errors_as
from dieselfs.net.auth import pin_of
from dieselfs.records import DatasetRecord
from dieselfs.snapshot.derived import signed_of
from dieselfs.snapshot.files import file_name, state_of
from dieselfs.snapshot.freshness import STATEMENT_BYTES_MAX, Statement
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature

NEWEST_FILE = "newest"
"""The last statement of freshness of the servers, beside the snapshots of a dataset that a user has."""
STATEMENT_SUFFIX = ".statement"
"""A saved snapshot has its statement of freshness beside it."""


def statement_of(path: Path) -> Statement | None:
    """The statement in a file of this user; None without one. Its signature is not checked."""
    try:
        return Statement.decode(path.read_bytes(), str(path))
    except (OSError, Damaged):
        return None


def read_statement(path: str) -> Statement:
    """A statement of others. Raises NotFound without one, Damaged if it is not signed by its signer."""
    with os_errors_as(NotFound, f"no statement of freshness {path}"), open(path, "rb") as file:
        statement = Statement.decode(file.read(STATEMENT_BYTES_MAX + 1), path)
    statement.check_signature(path)
    return statement


def saved_statement(path: str) -> Statement | None:
    """The statement beside a saved snapshot; None without one. Its signature is not checked."""
    return statement_of(Path(path + STATEMENT_SUFFIX))


def check_saved(snapshot: Snapshot, max_age_s: float, pins: Sequence[bytes] = ()) -> None:
    """Raise NotFound, unless `max_age_s` is 0, for a saved snapshot without a statement of freshness beside it;
    DieselfsError for an older one; Damaged for one that is not of this snapshot and its signer, or of servers with
    `pins`.
    """
    if not max_age_s:
        return
    source, header = snapshot.source + STATEMENT_SUFFIX, snapshot.header
    try:
        statement = read_statement(source)
    except NotFound as error:
        raise NotFound(
            f"{error}; max_age asks for it: save the snapshot again with dlcmd snapshot save"
        ) from None
    if (statement.dataset_id, statement.digest) != (header.dataset_id, header.digest):
        raise Damaged(f"{source}: the statement of freshness is about another snapshot")
    if statement.signer != header.signer and pin_of(statement.signer) not in pins:
        raise Damaged(f"{source}: stated by other servers than those that signed the snapshot")
    statement.check_age(time.time(), max_age_s, source)


def save_snapshot(snapshot: Snapshot, path: str | os.PathLike[str]) -> str:
    """Save a snapshot to a file, atomically; returns its path. Raises DieselfsError if it cannot be written. Of an
    encrypted dataset, the one with encrypted names is saved, which readers with the key open.

    In a folder, it gets the place where the setting `snapshots` looks for it. The last statement of freshness of the
    servers is saved beside it, if it is about this snapshot.
    """
    target = os.fspath(path)
    if snapshot.header.is_encrypted:
        snapshot = signed_of(snapshot)
    if os.path.isdir(target):
        folder = os.path.join(target, snapshot.header.dataset_id.hex())
        target = os.path.join(folder, file_name(*state_of(snapshot.header)))
        with suppress(OSError):  # reported below
            os.makedirs(folder, exist_ok=True)
    statement = statement_of(Path(snapshot.source).parent / NEWEST_FILE)
    files = {target: snapshot.content}
    if statement is not None and statement.digest == snapshot.digest:
        files[target + STATEMENT_SUFFIX] = memoryview(statement.encode())
    aside = f"{target}.{os.getpid()}.tmp"
    with os_errors_as(DieselfsError, f"cannot save the snapshot to {target}"):
        Path(target + STATEMENT_SUFFIX).unlink(missing_ok=True)  # of an earlier one
        for name, content in files.items():
            with open(aside, "wb") as file:
                file.write(content)
            os.replace(aside, name)
    return target


def load_snapshot(path: str | os.PathLike[str], current: DatasetRecord, is_stale_allowed: bool) -> Snapshot:
    """A saved snapshot, compared with the server's record of the dataset (DIESEL 4.1.3).

    Raises NotFound, Damaged (also without a valid signature), and DieselfsError if it is of another dataset, or stale
    unless `is_stale_allowed`.
    """
    snapshot = Snapshot.open(path)
    snapshot.verify()
    check_snapshot_signature(snapshot.header, snapshot.source)
    if snapshot.header.dataset_id != current.dataset_id:
        raise DieselfsError(f"{path} is a snapshot of another dataset ({snapshot.dataset})")
    if snapshot.generation != current.generation and not is_stale_allowed:
        raise DieselfsError(
            f"{path} is generation {snapshot.generation} of {snapshot.dataset}, which now has "
            f"generation {current.generation}: save it again, or load it with is_stale_allowed=True"
        )
    return snapshot
