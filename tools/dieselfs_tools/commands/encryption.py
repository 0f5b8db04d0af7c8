"""The verbs of encrypted datasets: `key`, and `erase`, which also removes files of others for good."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, AlreadyExists, InvalidInput, NotFound, os_errors_as
from dieselfs.names import Location
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import confirm_name
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.encryption.key_record import KeyRecord, PublicRecipient
    from dieselfs.encryption.keyring import Keyring
    from dieselfs.snapshot.reader import Snapshot

CHANGES_MAX = 5
"""Tries to change the recipients, if others change them too."""

key = options.verb_group(
    "key",
    "Say who can read an encrypted dataset; its files are not written again.",
    "dlcmd key show > anna.pub",
    "dlcmd key add dl://scans anna.pub",
)


def _keyring(session: Session) -> "Keyring":
    from dieselfs.rpc.encrypted import keyring

    return keyring(session.settings())


@options.verb(
    "show",
    "dlcmd key show > anna.pub     # for those who run dlcmd key add",
    "dlcmd key show --json",
    group=key,
)
def key_show(session: Session) -> int:
    """Print your public key, for 'dlcmd key add'. A key pair is made if you have none."""
    recipient = _keyring(session).recipient()
    session.output.record("recipient", str(recipient), {"name": recipient.name, "recipient": str(recipient)})
    return session.output.summary("", {"identity": session.settings().identity})


@options.verb("ls", "dlcmd key ls dl://scans", "dlcmd key ls --json dl://scans", group=key)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
def key_ls(session: Session, dataset: str) -> int:
    """List the recipients of the key of a dataset. Two users who see the same key ID have the same key."""
    record = _record(session, dataset)
    for wrap in record.wraps:
        session.output.record(
            "recipient", f"{wrap.kind:8} {wrap.name}", {"name": wrap.name, "kind": wrap.kind}
        )
    fields = {"dataset": dataset, "key_id": record.key_id.hex(), "recipients": len(record.wraps)}
    return session.output.summary(f"key {record.key_id.hex()} of dl://{dataset}", fields)


@options.verb(
    "add",
    "dlcmd key add dl://scans anna.pub",
    "dlcmd key add --group vision dl://scans vision.pub     # a line for each member",
    "DIESELFS_PASSPHRASE_FILE=./secret dlcmd key add --passphrase safe dl://scans",
    group=key,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("files", nargs=-1, type=options.SOURCE, metavar="[FILE]...")
@click.option("--group", metavar="GROUP", default="", help="Add them as members of GROUP.")
@click.option(
    "--passphrase", metavar="NAME", default="", help="Add the passphrase in DIESELFS_PASSPHRASE_FILE as NAME."
)
@options.flag("-f", "--force", "is_forced", text="Replace recipients of the same name that have another key.")
def key_add(
    session: Session, dataset: str, files: Sequence[str], group: str, passphrase: str, is_forced: bool
) -> int:
    """Let others read a dataset: those whose public keys are in FILE ('-': standard input), one on a line.

    Only the record of the key is changed. Who was added may read all of the dataset, also what is put later. The right
    to reach it on the servers is another thing: dlcmd user grant.
    """
    from dieselfs.encryption.key_record import wrap_by_passphrase, wrap_for

    recipients = list(_recipients(files))
    if not recipients and not passphrase:
        raise InvalidInput("give a FILE with what 'dlcmd key show' has printed, or --passphrase NAME")
    _check_names([group, passphrase])
    client = session.client
    stored = client.dataset(dataset)
    _record(session, dataset)
    cipher = client.cipher(stored)
    assert cipher is not None
    wraps = [wrap_for(cipher.data_key, stored.dataset_id, each, group) for each in recipients]
    if passphrase:
        secret = _keyring(session).passphrase()
        wraps.append(wrap_by_passphrase(cipher.data_key, stored.dataset_id, passphrase, secret))

    def added(record: "KeyRecord") -> "KeyRecord":
        others = {wrap.name: wrap.values[0] for wrap in record.wraps}
        for wrap in wraps:
            if not is_forced and others.get(wrap.name, wrap.values[0]) != wrap.values[0]:
                raise InvalidInput(f"recipient {wrap.name} has another key; -f replaces it")
        return record.with_wraps(wraps)

    _change(session, dataset, added)
    names = [wrap.name for wrap in wraps]
    text = f"{', '.join(names)} can read dl://{dataset}"
    return session.output.summary(text, {"dataset": dataset, "names": names})


@options.verb(
    "rm",
    "dlcmd key rm dl://scans anna",
    "dlcmd key rm dl://scans vision vision/bert     # a group, and a member of one",
    group=key,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def key_rm(session: Session, dataset: str, names: Sequence[str]) -> int:
    """Take the key of a dataset from users and groups. Who has kept a copy of it still has it: to be sure, put the
    files into a new dataset, and erase this one.
    """

    def removed(record: "KeyRecord") -> "KeyRecord":
        for name in names:
            left = record.without(name)
            if left == record:
                raise NotFound(
                    f"dl://{dataset} has no recipient {name}; 'dlcmd key ls dl://{dataset}' lists them"
                )
            record = left
        if not record.wraps:
            raise InvalidInput(f"nobody could read dl://{dataset} any more; to destroy its key: dlcmd erase")
        return record

    _change(session, dataset, removed)
    text = f"{', '.join(names)} cannot open the key of dl://{dataset} any more"
    return session.output.summary(text, {"dataset": dataset, "names": list(names)})


def _check_names(names: Iterable[str]) -> None:
    from dieselfs.encryption.key_record import NAME

    for name in filter(None, names):
        if not NAME.fullmatch(name) or "/" in name:
            raise InvalidInput(f"name {name!r} is not allowed: up to 64 letters, digits, '.', '_', '@', '-'")


def _recipients(files: Sequence[str]) -> "Iterable[PublicRecipient]":
    from dieselfs.encryption.key_record import PublicRecipient

    for name in files:
        with os_errors_as(NotFound, name):
            text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8", "replace")
        yield from map(PublicRecipient.parse, filter(str.strip, text.splitlines()))


def _record(session: Session, dataset: str) -> "KeyRecord":
    return _decoded(dataset, session.client.keys(dataset))


def _decoded(dataset: str, content: bytes) -> "KeyRecord":
    """Raises InvalidInput if the dataset is not encrypted, or its key was erased."""
    from dieselfs.encryption.key_record import KeyRecord

    if not content:
        raise InvalidInput(f"dl://{dataset} is not encrypted; a new dataset is by dlcmd put --encrypt")
    record = KeyRecord.decode(content)
    if record.erased_s:
        raise InvalidInput(
            f"the key of dl://{dataset} was destroyed; dlcmd rb dl://{dataset} removes the rest"
        )
    return record


def _change(session: Session, dataset: str, change: "Callable[[KeyRecord], KeyRecord]") -> None:
    """Replace the record by what `change` makes of it. Raises AlreadyExists if others change it all the time."""
    for tried in range(CHANGES_MAX):
        content = session.client.keys(dataset)
        try:
            session.client.put_keys(dataset, change(_decoded(dataset, content)).encode(), content)
            return
        except AlreadyExists:
            if tried == CHANGES_MAX - 1:
                raise


# -- erase -------------------------------------------------------------------------------------------------


@options.verb(
    "erase",
    "dlcmd erase dl://scans                       # destroys the key; asks you to type scans",
    "dlcmd erase -r dl://scans/patient-17 dl://scans/notes.txt",
    "dlcmd erase -n -r dl://scans/patient-17      # only print what would be erased, and what is in the way",
)
@click.argument(
    "locations", nargs=-1, required=True, type=options.CHANGEABLE, metavar="dl://DATASET[/PATH]..."
)
@options.recursive
@options.flag("--tags", "with_tags", text="Remove the tags that have the files.")
@options.dry_run
@options.yes
def erase(
    session: Session,
    locations: Sequence[Location],
    is_recursive: bool,
    with_tags: bool,
    is_dry_run: bool,
    is_confirmed: bool,
) -> int:
    """Destroy the key of an encrypted dataset, or files of any dataset in all its generations. Then say what is left,
    and where.

    Without its key, nobody can read a dataset again. Files are deleted, and the chunks that have them removed at once,
    without a grace time; live files in them are copied. Exit code 2: something still holds the files, and is named.
    """
    datasets = {place.dataset for place in locations}
    if len(datasets) > 1 or (len(locations) > 1 and any(not place.path for place in locations)):
        raise InvalidInput("name one dataset, or paths of one dataset")
    (dataset,) = datasets
    if not locations[0].path:
        return _erase_key(session, dataset, is_dry_run, is_confirmed)
    return _erase_files(session, dataset, locations, is_recursive, with_tags, is_dry_run, is_confirmed)


def _erase_key(session: Session, dataset: str, is_dry_run: bool, is_confirmed: bool) -> int:
    from dieselfs.encryption.key_record import KeyRecord

    client = session.client
    record, stored = _record(session, dataset), client.dataset(dataset)
    holders = [pin.holder for pin in client.pins(dataset)]
    if not is_dry_run:
        if not is_confirmed:
            confirm_name(
                dataset, f"nobody can read {count(stored.files, 'file')} of dl://{dataset} afterwards"
            )
        erased = KeyRecord(b"", erased_s=int(time.time()))
        client.put_keys(dataset, erased.encode(), client.keys(dataset))
        _forget_snapshots(session, stored.dataset_id)
    left = [
        f"the ciphertext of {count(stored.files, 'file')}, until dlcmd rb dl://{dataset}",
        "the record of the key in backups of the records of the store, and in versions that a bucket keeps",
        "snapshots with plain names in ~/.cache/dieselfs/snapshots of other machines and users",
        *(f"the key in the memory of {holder}, until it ends" for holder in holders),
    ]
    return _say_left(
        session,
        left,
        f"{'would destroy' if is_dry_run else 'destroyed'} the key of dl://{dataset}, which "
        f"{count(len(record.wraps), 'recipient')} could open",
        {"dataset": dataset, "dry_run": is_dry_run, "files": stored.files, "recipients": len(record.wraps)},
        EXIT_OK,
    )


def _say_left(
    session: Session, left: Sequence[str], text: str, fields: dict[str, object], exit_code: int
) -> int:
    for line in left:
        session.output.record("left", f"left: {line}", {"left": line})
    return session.output.summary(text, fields, exit_code)


def _forget_snapshots(session: Session, dataset_id: bytes) -> None:
    """Remove the snapshots of a dataset from this machine."""
    from dieselfs.snapshot.store import SnapshotStore

    store = SnapshotStore.of(session.settings())
    for snapshot in store.stored():
        if snapshot.header.dataset_id == dataset_id:
            store.remove(snapshot)


def _erase_files(
    session: Session,
    name: str,
    locations: Sequence[Location],
    is_recursive: bool,
    with_tags: bool,
    is_dry_run: bool,
    is_confirmed: bool,
) -> int:
    client, dataset = session.client, session.dataset(name)
    paths, missing = _paths_of(dataset.snapshot, locations, is_recursive)
    tags = []
    for tag in client.tags(name):
        tagged = session.dataset(f"{name}@{tag.name}").snapshot
        if any(tagged.find(place.path) >= 0 for place in locations):
            tags.append(tag.name)
    if missing and len(missing) == len(locations) and not tags:
        raise NotFound(f"{missing[0]}: no such file or folder, also at no tag")
    if tags and not (with_tags or is_dry_run):
        raise InvalidInput(
            f"tags of dl://{name} have them: {', '.join(tags)}; --tags removes these; nothing was erased"
        )
    fields: dict[str, object] = {"dataset": name, "dry_run": is_dry_run, "entries": len(paths), "tags": tags}
    if is_dry_run:
        also = f", and tags {', '.join(tags)}" if tags else ""
        return session.output.summary(
            f"would erase {count(len(paths), 'entry')} of dl://{name}{also}", fields
        )
    if not is_confirmed:
        confirm_name(name, f"this destroys {count(len(paths), 'entry')} of dl://{name} in all generations")
    for tag_name in tags:
        client.delete_tag(name, tag_name)
    for path in paths:
        dataset.writer.delete(path)
    dataset.flush()
    client.purge(name, 0, False)  # copies what is live out of their chunks
    client.purge(name, 0, False)  # removes these
    report = client.purge(name, 0, True)
    _forget_snapshots(session, dataset.record().dataset_id)
    is_held = bool(report.chunks_waiting)
    held = ", ".join(report.held_by) or "a purge or reader of this moment"
    left = [
        *(
            [f"{count(report.chunks_waiting, 'chunk')}, held by {held}: erase again when that has ended"]
            if is_held
            else []
        ),
        "their names and times in the record of the deletion"
        + (", encrypted" if client.known_cipher(name) else ""),
        "copies in backups of the store, in versions that a bucket keeps, and in archives that are attached",
        "chunks and snapshots in caches and disk tiers of machines that have read them",
    ]
    text = f"erased {count(len(paths), 'entry')} of dl://{name}"
    return _say_left(session, left, text, fields, EXIT_PARTIAL if is_held else EXIT_OK)


def _paths_of(
    snapshot: "Snapshot", locations: Sequence[Location], is_recursive: bool
) -> tuple[list[bytes], list[Location]]:
    """The paths to delete, and the locations that the newest generation does not have."""
    paths: dict[bytes, None] = {}
    missing = []
    for place in locations:
        node = snapshot.find(place.path)
        if node < 0:
            missing.append(place)
            continue
        if snapshot.stat(node).is_folder and not is_recursive:
            raise InvalidInput(f"{place} is a folder: erase it with -r")
        below = [snapshot.path(each) for each in snapshot.walk(node)]
        paths.update(dict.fromkeys([*reversed(below), place.path]))
    return list(paths), missing
