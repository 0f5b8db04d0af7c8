"""The verbs for versions and their differences: `tag`, `snapshot`, `diff`, `check` and `verify`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, InvalidInput
from dieselfs.names import SCHEME, Location, is_location, printable
from dieselfs.rpc.records import TagRecord
from dieselfs.units import count, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.snapshot.format import SnapshotHeader
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs.snapshot.store import SnapshotStore
    from dieselfs.transfer.tree_digest import TreeDigest


tag = options.verb_group(
    "tag",
    "A tag names a generation of a dataset and protects it from changes and purge. Read it as dl://DATASET@TAG.",
    "dlcmd tag add dl://pets v1",
    "dlcmd mount pets@v1 /mnt/pets",
)


@options.verb(
    "add",
    "dlcmd tag add dl://pets v1",
    "dlcmd tag add --generation 41 dl://pets before-cleaning",
    group=tag,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("name", metavar="TAG")
@click.option("--generation", type=click.IntRange(0), default=0, help="The generation to tag. [the newest]")
@options.dry_run
def tag_add(session: Session, dataset: str, name: str, generation: int, is_dry_run: bool) -> int:
    """Tag a generation. A tag cannot be moved: remove it to use the name again."""
    fields: dict[str, object] = {"dataset": dataset, "tag": name}
    if is_dry_run:
        session.client.dataset(dataset)
        return session.output.summary(f"would tag dl://{dataset} as {name}", {"dry_run": True, **fields})
    made = session.client.put_tag(dataset, name, generation)
    text = f"generation {made.generation} of {dataset} is kept as dl://{dataset}@{name}/"
    return session.output.summary(text, {**fields, **_tag_fields(made)})


@options.verb("ls", "dlcmd tag ls dl://pets", "dlcmd tag ls --json dl://pets", group=tag)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
def tag_ls(session: Session, dataset: str) -> int:
    """List the tags of a dataset."""
    tags, output = session.client.tags(dataset), session.output
    for found in tags:
        text = _line(output, found.updated_ns, found.generation, found.files, found.total_bytes, found.name)
        output.record("tag", text, {"dataset": dataset, **_tag_fields(found)})
    return output.summary("", {"tags": len(tags)})


@options.verb("rm", "dlcmd tag rm dl://pets v1", "dlcmd tag rm -n dl://pets v1", group=tag)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("name", type=options.TAG, metavar="TAG")
@options.dry_run
def tag_rm(session: Session, dataset: str, name: str, is_dry_run: bool) -> int:
    """Remove a tag. A later purge frees the space that only this tag used."""
    fields: dict[str, object] = {"dataset": dataset, "tag": name, "dry_run": is_dry_run}
    if is_dry_run:
        return session.output.summary(f"would remove tag {name} of {dataset}", fields)
    session.client.delete_tag(dataset, name)
    return session.output.summary(f"tag {name} of {dataset} is removed", fields)


def _tag_fields(record: TagRecord) -> dict[str, object]:
    return {"tag": record.name, **_state_fields(record)}


def _state_fields(state: "TagRecord | SnapshotHeader") -> dict[str, object]:
    return {
        "generation": state.generation,
        "updated_ns": state.updated_ns,
        "files": state.files,
        "bytes": state.total_bytes,
        "digest": state.digest.hex(),
    }


def _line(output: Output, updated_ns: int, generation: int, files: int, size_bytes: int, rest: str) -> str:
    """A generation, for people."""
    when, size = format_time(updated_ns // 10**9), output.size(size_bytes)
    return f"{when}  generation {generation:<8} {count(files, 'file')}, {size}  {rest}"


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
    "dlcmd snapshot save --names dl://scans@v1 scans.names     # encrypted; for dlcmd prove --check",
    group=snapshot,
)
@click.argument("dataset", type=options.STATE, metavar="dl://DATASET[@TAG]")
@click.argument("target", type=click.Path(), metavar="FILE|FOLDER/")
@click.option("--generation", type=click.IntRange(0), default=0, help="The generation. [the newest]")
@options.flag(
    "--names",
    "with_names",
    text="Of an encrypted dataset, save the plain names, and what checks proofs with them.",
)
@options.dry_run
def snapshot_save(
    session: Session, dataset: str, target: str, generation: int, with_names: bool, is_dry_run: bool
) -> int:
    """Save a snapshot as a file, which 'dlcmd mount ./FILE' mounts while the metadata of the servers is away.

    In a folder, it gets the place where the setting 'snapshots' looks for it. The servers' signed statement that it is
    the newest is in FILE.statement. A file of --names has mode 0600: it shows the names, but opens no contents.
    """
    from dieselfs.snapshot.names_file import NamesFile
    from dieselfs.snapshot.saved import save_snapshot, saved_statement

    data = session.dataset(dataset, generation, job="")
    fields: dict[str, object] = {"dataset": dataset, "generation": data.generation}
    if with_names and os.path.isdir(target):
        raise InvalidInput(f"{target} is a folder: name a file for the names of {dataset}")
    if is_dry_run:
        text = f"would save generation {data.generation} of {dataset} to {target}"
        return session.output.summary(text, {**fields, "file": target, "dry_run": True})
    if with_names:
        NamesFile.of(data.snapshot, data.client.known_cipher(data.name)).save(target)
        text = f"the names of generation {data.generation} of {dataset} are saved to {target}"
        return session.output.summary(text, {**fields, "file": target})
    path = save_snapshot(data.snapshot, target)
    text = f"generation {data.generation} of {dataset} is saved to {path}"
    if (statement := saved_statement(path)) is not None:
        fields["statement"] = statement.encode().decode().strip()
        text += f"\n{fields['statement']}"
    return session.output.summary(text, {**fields, "file": path})


@options.verb("ls", "dlcmd snapshot ls", "dlcmd snapshot ls --json", group=snapshot)
def snapshot_ls(session: Session) -> int:
    """List the snapshots that are stored on this machine for you."""
    stored = _store(session).stored()
    for one in stored:
        _print(session, one)
    return session.output.summary(
        "", {"snapshots": len(stored), "file_bytes": sum(one.header.file_length for one in stored)}
    )


@options.verb(
    "log",
    "dlcmd snapshot log dl://pets",
    "dlcmd snapshot log --statement pets.snapshot.statement dl://pets",
    group=snapshot,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.option(
    "--statement", type=click.Path(), help="Fail if the dataset is older than this FILE.statement says."
)
def snapshot_log(session: Session, dataset: str, statement: str | None) -> int:
    """List the generations that can be read: those with a tag, and those whose snapshots the server still has."""
    newest = session.client.dataset(dataset)
    names: dict[tuple[int, int], list[str]] = {}
    states = {(newest.updated_ns, newest.generation): (newest.files, newest.total_bytes)}
    listed = session.client.tags(dataset, with_kept=True)
    if statement is not None:
        _store(session).check_statement(statement, newest, listed, session.client.servers_pins)
    for found in listed:
        state = found.updated_ns, found.generation
        states[state] = found.files, found.total_bytes
        if found.name:
            names.setdefault(state, []).append(found.name)
    for updated_ns, generation in sorted(states):
        files, total_bytes = states[updated_ns, generation]
        tags = names.get((updated_ns, generation), [])
        marks = [f"@{name}" for name in tags]
        marks += ["newest"] * ((updated_ns, generation) == (newest.updated_ns, newest.generation))
        text = _line(session.output, updated_ns, generation, files, total_bytes, " ".join(marks))
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
def snapshot_diff(
    session: Session, first: Location | Path, second: Location | Path, patterns: Patterns
) -> int:
    """Print what differs between two snapshots, as 'dlcmd diff' does, without reading the bytes of files.

    Files whose parts are stored differently count as changed. Exit code 2: they differ.
    """
    opened = [_opened(session, place) for place in (first, second)]

    def has_same_content(old: int, new: int) -> bool:
        return _parts(opened[0][0], old) == _parts(opened[1][0], new)

    return _print_diff(session, opened[0], opened[1], patterns, has_same_content)


@options.verb("prune", "dlcmd snapshot prune", "dlcmd snapshot prune -n --keep 2", group=snapshot)
@click.option(
    "--keep",
    type=click.IntRange(0),
    default=KEPT,
    help="Number of snapshots to keep of each dataset.",
    show_default=True,
)
@options.dry_run
def snapshot_prune(session: Session, keep: int, is_dry_run: bool) -> int:
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
        _print(session, one)
    done = "would remove" if is_dry_run else "removed"
    text = f"{done} {count(len(old), 'snapshot')}, {session.output.size(removed_bytes)}"
    fields = {"snapshots": len(old), "file_bytes": removed_bytes, "dry_run": is_dry_run}
    return session.output.summary(text, fields)


def _store(session: Session) -> "SnapshotStore":
    from dieselfs.snapshot.store import SnapshotStore

    return SnapshotStore.of(session.settings())


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


def _print(session: Session, one: "Snapshot") -> None:
    header = one.header
    state = header.updated_ns, header.generation, header.files, header.file_length
    text = _line(session.output, *state, f"dl://{header.dataset}  {one.source}")
    file = {"file": one.source, "file_bytes": header.file_length}
    session.output.record("snapshot", text, {"dataset": header.dataset, **_state_fields(header), **file})


@options.verb("diff", "dlcmd diff dl://pets@v1 dl://pets@v2", "dlcmd diff dl://pets@v1/train dl://pets/train")
@click.argument("first", type=options.LOCATION, metavar="dl://DATASET[@TAG]/FOLDER")
@click.argument("second", type=options.LOCATION, metavar="dl://DATASET[@TAG]/FOLDER")
@options.filters
def diff(session: Session, first: Location, second: Location, patterns: Patterns) -> int:
    """Print what differs between two folders: '+' only in the second, '-' only in the first, '*' other content, type or
    target, '~' other mode or time.

    Contents are compared by their digests; only large files whose parts are stored differently are read, and encrypted
    files that were stored twice. Exit code 2: they differ.
    """
    from dieselfs.transfer.tree_digest import content_digest

    datasets = [session.dataset(place.state) for place in (first, second)]
    snapshots = [dataset.snapshot for dataset in datasets]
    has_digests = not any(snapshot.header.is_encrypted for snapshot in snapshots)  # else of ciphertext
    sole_digest, other_sole_digest = (_sole_digests(snapshot) for snapshot in snapshots)

    def has_same_content(*nodes: int) -> bool:
        """Whether two files of equal size have equal bytes. Raises Damaged, Unavailable if they must be read."""
        digest = sole_digest(nodes[0])
        if digest is not None and digest == other_sole_digest(nodes[1]):
            return True
        parts, others = map(_parts, snapshots, nodes)
        if parts == others:
            return True
        if has_digests and [length for length, _ in parts] == [length for length, _ in others]:
            return False
        read = zip(datasets, nodes, strict=True)
        return len({content_digest(dataset.snapshot, dataset.chunks, node) for dataset, node in read}) == 1

    return _print_diff(
        session, (snapshots[0], first.path), (snapshots[1], second.path), patterns, has_same_content
    )


def _sole_digests(snapshot: "Snapshot") -> Callable[[int], bytes | None]:
    """The digest of a file of one extent, by its node; None for others. Takes a tenth of the time of `_parts`."""
    from dieselfs.digests import EXTENT_DIGEST_BYTES

    counts, firsts = snapshot.column("counts").data, snapshot.column("firsts").data
    digests = snapshot.column("extent_digests").tobytes()

    def sole_digest(file: int) -> bytes | None:
        start = EXTENT_DIGEST_BYTES * firsts[file]
        return digests[start : start + EXTENT_DIGEST_BYTES] if counts[file] == 1 else None

    return sole_digest


def _parts(snapshot: "Snapshot", node: int) -> list[tuple[int, bytes]]:
    """Length and digest of each extent of a file."""
    return [(extent.length, extent.digest) for extent in snapshot.extents(node)]


def _print_diff(
    session: Session,
    first: "tuple[Snapshot, bytes]",
    second: "tuple[Snapshot, bytes]",
    patterns: Patterns,
    has_same_content: Callable[[int, int], bool],
) -> int:
    """Print what differs between folders of two snapshots. `has_same_content`: of the nodes of two files."""
    from dieselfs_tools.transfers.trees import StoredTree, differences, print_differences

    old, new = StoredTree(*first), StoredTree(*second)
    wanted = old.selected(patterns)
    found = differences(
        wanted, new.selected(patterns), lambda path: has_same_content(old.nodes[path], new.nodes[path])
    )
    return print_differences(session.output, found, len(wanted))


@options.verb(
    "check",
    "dlcmd check ./imagenet/ dl://imagenet/          # after `put -r` with the same names",
    "dlcmd check --quick ./imagenet/ dl://imagenet@v1/",
)
@click.argument("source", metavar="SOURCE")
@click.argument("location", type=options.LOCATION, metavar="dl://DATASET[@TAG]/PATH")
@options.filters
@options.flag("--quick", "is_quick", text="Compare types, sizes, modes and times; read no file.")
def check(session: Session, source: str, location: Location, patterns: Patterns, is_quick: bool) -> int:
    """Compare a local folder with what a dataset has of it, and print the differences: '+' only local, '-' only
    stored, '*' other content, type or target, '~' other mode or time. The slashes mean what they mean for 'put'.

    Local files are read and compared with the digests in the dataset; only an encrypted one is downloaded. Exit code 2:
    something differs, or could not be read.
    """
    from dieselfs.transfer.report import TransferReport
    from dieselfs_tools.transfers.trees import (
        LocalTree,
        StoredTree,
        differences,
        find_sources,
        print_differences,
    )

    if os.path.exists(source) and not os.path.isdir(source):
        raise InvalidInput(f"{source} is not a folder: compare the folder that has it, with --include /NAME")
    (found,) = find_sources([source], location, is_into=True, is_recursive=True)  # where `put -r` stores it
    dataset = session.dataset(location.state)
    snapshot = dataset.snapshot
    stored, local = StoredTree(snapshot, found.path), LocalTree(found, patterns)
    wanted, report = stored.selected(patterns), TransferReport(is_all_found=True)
    for path in local.entries.keys() & wanted.keys() if not is_quick else ():
        here = local.entries[path]
        if (here.type, here.size) == ("file", wanted[path].size):
            report.find(here.size, is_folder=False)

    def has_same_content(path: bytes) -> bool:
        if is_quick:
            return True
        is_same = local.has_content(path, snapshot.extents(stored.nodes[path]), dataset.chunks)
        report.done_files += 1
        report.done_bytes += wanted[path].size
        return is_same

    with shown(session.output, "check", lambda: Reading.of(report)):
        seen = list(differences(wanted, local.entries, has_same_content))
    different = (one for one in seen if local.place(one.entry.path) not in local.unread)
    return print_differences(session.output, different, len(wanted), local.failures)


@options.verb(
    "verify",
    "dlcmd verify dl://pets@v1        # read every byte of a tag",
    "dlcmd verify ./pets              # a folder with the same content has the same digest",
    "dlcmd verify --quick dl://pets   # believe the digests of the signed snapshot",
)
@click.argument("source", type=options.SOURCE, metavar="dl://DATASET[@TAG]|FOLDER")
@options.flag("--quick", "is_quick", text="Of a dataset, read only the files that span chunks.")
def verify(session: Session, source: str, is_quick: bool) -> int:
    """Read a dataset, or a local folder, and print one digest of its paths, contents and link targets.

    Equal trees have equal digests, however their files are stored; modes and times do not count. Exit code 0: all
    bytes are those that were stored; 5: some are not; 2: a local folder has devices, pipes or sockets, left out here.
    """
    from dieselfs.transfer.tree_digest import TreeDigest, digest_of_folder, digest_of_snapshot

    output, tree = session.output, TreeDigest()
    fields: dict[str, object]
    if is_location(source):
        state = options.dataset_state(source)
        dataset = session.dataset(state)
        total_bytes = int(dataset.snapshot.column("extent_lengths").sum())

        def reading() -> Reading:
            return Reading(0, tree.read_bytes, 0, total_bytes, None, not is_quick, "")

        with shown(output, "verify", reading):
            digest_of_snapshot(dataset.snapshot, dataset.chunks, is_quick, tree)
        name = f"{SCHEME}{state}"
        fields = {"dataset": state, "generation": dataset.snapshot.generation, "quick": is_quick}
    else:
        with shown(output, "verify", lambda: Reading(0, tree.read_bytes, 0, 0, None, False, "")):
            digest_of_folder(source, tree)
        name, fields = source, {"folder": source}
    output.record("digest", f"{tree.hex()}  {name}", {"digest": tree.hex(), **fields})
    for path in tree.skipped:
        output.error(f"{source}: {printable(path)}: neither file, folder nor link; left out")
    return output.summary(_covered(tree, session), fields, EXIT_PARTIAL if tree.skipped else EXIT_OK)


def _covered(tree: "TreeDigest", session: Session) -> str:
    parts = [count(tree.files, "file"), count(tree.folders, "folder"), count(tree.links, "link")]
    return f"verified {', '.join(parts)} ({session.output.size(tree.total_bytes)})"
