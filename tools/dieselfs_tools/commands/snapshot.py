"""`dlcmd snapshot`: the metadata of generations, as files."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.names import Location
from dieselfs.units import count, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.snapshot.format import SnapshotHeader
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs.snapshot.store import SnapshotStore

KEPT = 1
"""Snapshots of each dataset that `prune` leaves."""

snapshot = options.verb_group(
    "snapshot",
    "A snapshot holds the names, sizes and places of all files of a generation. It is signed by the servers.",
    "dlcmd snapshot save dl://pets pets.snapshot",
    "dlcmd mount ./pets.snapshot /mnt/pets",
)


@options.verb(
    "save",
    "dlcmd snapshot save dl://pets pets.snapshot",
    "dlcmd snapshot save dl://pets@v1 /shared/snapshots/    # for DIESELFS_SNAPSHOTS",
    group=snapshot,
)
@click.argument("dataset", type=options.STATE, metavar="dl://DATASET[@TAG]")
@click.argument("target", type=click.Path(), metavar="FILE|FOLDER/")
@click.option("--generation", type=click.IntRange(0), default=0, help="The generation. [the newest]")
@options.dry_run
def save(session: Session, dataset: str, target: str, generation: int, is_dry_run: bool) -> int:
    """Save a snapshot as a file, which 'dlcmd mount ./FILE' mounts while the metadata of the servers is away.

    In a folder, it gets the place where the setting 'snapshots' looks for it.
    """
    from dieselfs.snapshot.store import save_snapshot

    data = session.dataset(dataset, generation, job="")
    fields: dict[str, object] = {"dataset": dataset, "generation": data.generation}
    if is_dry_run:
        text = f"would save generation {data.generation} of {dataset} to {target}"
        return session.output.summary(text, {**fields, "file": target, "dry_run": True})
    path = save_snapshot(data.snapshot, target)
    text = f"generation {data.generation} of {dataset} is saved to {path}"
    return session.output.summary(text, {**fields, "file": path})


@options.verb("ls", "dlcmd snapshot ls", "dlcmd snapshot ls --json", group=snapshot)
def ls(session: Session) -> int:
    """List the snapshots that are stored on this machine for you."""
    stored = _store(session).stored()
    for one in stored:
        _print(session, one.header, one.source, {"file": one.source, "file_bytes": one.header.file_length})
    return session.output.summary(
        "", {"snapshots": len(stored), "file_bytes": sum(one.header.file_length for one in stored)}
    )


@options.verb("log", "dlcmd snapshot log dl://pets", "dlcmd snapshot log --json pets", group=snapshot)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
def log(session: Session, dataset: str) -> int:
    """List the generations that can be read: those with a tag, and those whose snapshots the server still has."""
    newest = session.client.dataset(dataset)
    names: dict[tuple[int, int], list[str]] = {}
    states = {(newest.updated_ns, newest.generation): (newest.files, newest.total_bytes)}
    for found in session.client.tags(dataset, with_kept=True):
        state = found.updated_ns, found.generation
        states[state] = found.files, found.total_bytes
        if found.name:
            names.setdefault(state, []).append(found.name)
    for updated_ns, generation in sorted(states):
        files, total_bytes = states[updated_ns, generation]
        tags = names.get((updated_ns, generation), [])
        marks = [f"@{name}" for name in tags]
        marks += ["newest"] * ((updated_ns, generation) == (newest.updated_ns, newest.generation))
        text = (
            f"{format_time(updated_ns // 10**9)}  generation {generation:<8} {count(files, 'file')}, "
            f"{session.output.size(total_bytes)}  {' '.join(marks)}"
        )
        fields = {
            "dataset": dataset,
            "generation": generation,
            "updated_ns": updated_ns,
            "files": files,
            "bytes": total_bytes,
            "tags": tags,
        }
        session.output.record("generation", text.rstrip(), fields)
    return session.output.summary("", {"generations": len(states)})


@options.verb(
    "diff",
    "dlcmd snapshot diff ./monday.snapshot dl://pets",
    "dlcmd snapshot diff dl://pets@v1/train ./monday.snapshot",
    group=snapshot,
)
@click.argument("first", type=options.MOUNTABLE, metavar="FILE|dl://DATASET[@TAG]/FOLDER")
@click.argument("second", type=options.MOUNTABLE, metavar="FILE|dl://DATASET[@TAG]/FOLDER")
@options.filters
def diff(session: Session, first: Location | Path, second: Location | Path, patterns: Patterns) -> int:
    """Print what differs between two snapshots, as 'dlcmd diff' does, without reading the bytes of files.

    Files whose parts are stored differently count as changed. Exit code 2: they differ.
    """
    from dieselfs_tools.transfers.differences import differences, print_differences
    from dieselfs_tools.transfers.trees import StoredTree

    opened = [_opened(session, place) for place in (first, second)]
    old, new = (StoredTree(found, folder) for found, folder in opened)

    def parts(number: int, tree: StoredTree, path: bytes) -> list[tuple[int, bytes]]:
        found = opened[number][0].extents(tree.nodes[path])
        return [(extent.length, extent.digest) for extent in found]

    def has_same_content(path: bytes) -> bool:
        return parts(0, old, path) == parts(1, new, path)

    wanted = old.selected(patterns)
    return print_differences(
        session.output, differences(wanted, new.selected(patterns), has_same_content), len(wanted)
    )


@options.verb("prune", "dlcmd snapshot prune", "dlcmd snapshot prune -n --keep 2", group=snapshot)
@click.option(
    "--keep",
    type=click.IntRange(0),
    default=KEPT,
    help="Number of snapshots to keep of each dataset.",
    show_default=True,
)
@options.dry_run
def prune(session: Session, keep: int, is_dry_run: bool) -> int:
    """Remove snapshots that are stored on this machine for you, except the newest. Mounts keep what they have open."""
    store, removed_bytes = _store(session), 0
    old: list[Snapshot] = []
    newer: dict[bytes, int] = {}
    for one in store.stored():  # the newest of a dataset first
        newer[one.header.dataset_id] = newer.get(one.header.dataset_id, 0) + 1
        if newer[one.header.dataset_id] > keep:
            old.append(one)
    for one in old:
        removed_bytes += one.header.file_length if is_dry_run else store.remove(one)
        _print(session, one.header, one.source, {"file": one.source, "file_bytes": one.header.file_length})
    done = "would remove" if is_dry_run else "removed"
    text = f"{done} {count(len(old), 'snapshot')}, {session.output.size(removed_bytes)}"
    fields = {"snapshots": len(old), "file_bytes": removed_bytes, "dry_run": is_dry_run}
    return session.output.summary(text, fields)


def _store(session: Session) -> "SnapshotStore":
    from dieselfs.settings import Settings
    from dieselfs.snapshot.store import SnapshotStore

    return SnapshotStore.of(Settings.load(session.server, session.key_file))


def _opened(session: Session, place: Location | Path) -> "tuple[Snapshot, bytes]":
    """A snapshot, and the folder in it. A file is verified; whether its signer is trusted matters where it is used."""
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs.snapshot.signature import check_snapshot_signature

    if isinstance(place, Location):
        return session.dataset(place.state, job="").snapshot, place.path
    found = Snapshot.open(place)
    found.verify()
    check_snapshot_signature(found.header, found.source)
    return found, b""


def _print(session: Session, header: "SnapshotHeader", path: str, fields: dict[str, object]) -> None:
    text = (
        f"{format_time(header.updated_ns // 10**9)}  generation {header.generation:<8} "
        f"{count(header.files, 'file')}, {session.output.size(header.file_length)}  dl://{header.dataset}  {path}"
    )
    stated = {
        "dataset": header.dataset,
        "generation": header.generation,
        "updated_ns": header.updated_ns,
        "files": header.files,
        "bytes": header.total_bytes,
        "digest": header.digest.hex(),
    }
    session.output.record("snapshot", text, {**stated, **fields})
