"""The verbs that check, repair and free: `fsck`, `purge`, `rebuild`, `rm` and `rb`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL, Damaged, DieselfsError, InvalidInput
from dieselfs.names import Location
from dieselfs.records import Op
from dieselfs.rpc.records import CopyProgress
from dieselfs.units import count, format_duration
from dieselfs_client.daemon import control
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output, confirm_name, name_fields
from dieselfs_tools.cli.patterns import Patterns, deletable
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset


Result = tuple[str, Mapping[str, object], int]
"""The text and the fields of a result, and its exit code."""


def names_of_all(session: Session) -> list[str]:
    """The datasets whose metadata exists, and that this user may read."""
    return sorted(dataset.name for dataset in session.client.datasets())


def names_with_lost(session: Session) -> list[str]:
    """The same, and the datasets whose chunks exist, but no metadata."""
    return sorted({*names_of_all(session), *session.client.lost_datasets()})


def worse(one: int, other: int) -> int:
    """The exit code of both: damage is worse than what may pass."""
    return EXIT_DAMAGED if EXIT_DAMAGED in (one, other) else max(one, other)


def for_each_dataset(
    session: Session,
    dataset: str | None,
    is_all: bool,
    done: str,
    work: Callable[[str], Result],
    names: Callable[[Session], Sequence[str]] = names_of_all,
    fields: Mapping[str, object] | None = None,
) -> int:
    """Do the work for one dataset and print its result as the summary; with `is_all` for all `names`: each result is a
    record, and the summary counts them. A dataset that fails does not stop the others. Returns the exit code.

    `done`: the verb of the summary; `fields`: further ones of it. Raises InvalidInput unless one of both is given.
    """
    if is_all == (dataset is not None):
        raise InvalidInput("give one dataset (dl://DATASET), or --all")
    if dataset is not None:
        return session.output.summary(*work(dataset))
    chosen, exit_code = names(session), EXIT_OK
    for name in chosen:
        try:
            text, found, code = work(name)
        except DieselfsError as error:
            session.output.failure(f"dl://{name}", str(error))
            code = error.exit_code
        else:
            session.output.detail("dataset", f"dl://{name}: {text}", found)
        exit_code = worse(exit_code, code)
    total = {**(fields or {}), "datasets": len(chosen)}
    return session.output.summary(f"{done} {count(len(chosen), 'dataset')}", total, exit_code)


class _Watch:
    """What the server has said last."""

    def __init__(self) -> None:
        self.present = CopyProgress(0, 0, 0, 0)

    def set(self, progress: CopyProgress) -> None:
        self.present = progress

    def reading(self) -> Reading:
        done, _, total, _ = self.present
        return Reading(done, 0, total, 0, None, is_total_known=done < total, noun="chunk", has_bytes=False)


@contextmanager
def watched(output: Output, what: str) -> Iterator[Callable[[CopyProgress], None]]:
    """Show what a server has done, as it tells the function that this yields."""
    watch = _Watch()
    with shown(output, what, watch.reading):
        yield watch.set


@options.verb(
    "fsck",
    "dlcmd fsck dl://pets                  # headers and sizes of all chunks, metadata, snapshot",
    "dlcmd fsck --deep --repair dl://pets  # every byte; repair if possible",
    "dlcmd fsck --all                      # every dataset, for a timer",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET", required=False)
@options.flag("--all", "is_all", text="Check all datasets that you may read.")
@click.option("--deep", "is_deep", is_flag=True, help="Read every byte of every chunk.")
@click.option("--repair", "is_repair", is_flag=True, help="Repair metadata and snapshot from the chunks.")
@options.dry_run
def fsck(
    session: Session, dataset: str | None, is_all: bool, is_deep: bool, is_repair: bool, is_dry_run: bool
) -> int:
    """Compare chunks, metadata and snapshot with each other. Without --repair, or with -n, nothing is changed.

    Exit code 0: clean; 2: all problems are repaired; 5: some problems are not repaired.
    """
    is_repair = is_repair and not is_dry_run
    lost = session.client.lost_datasets() if is_all else ()

    def work(name: str) -> Result:
        if name in lost:
            raise Damaged(
                f"its metadata is lost, but its chunks exist; rebuild it: dlcmd rebuild dl://{name}"
            )
        return _fsck(session, name, is_deep, is_repair)

    return for_each_dataset(session, dataset, is_all, "checked", work, names_with_lost)


def _fsck(session: Session, dataset: str, is_deep: bool, is_repair: bool) -> Result:
    output = session.output
    with watched(output, f"fsck {dataset}") as progressed:
        report = session.client.fsck(dataset, is_deep, is_repair, progressed)
    for problem in report.problems:
        repaired = "repaired: " if problem.is_mended else ""
        output.record("problem", f"{repaired}{problem.what}", problem._asdict())
    found, unmended = report.problem_count, report.unmended_count
    verdict = f"{count(found, 'problem')}, {found - unmended:,} repaired" if found else "clean"
    text = (
        f"checked {count(report.chunks, 'chunk')} ({output.size(report.total_bytes)}) and "
        f"{report.entries:,} entries: {verdict}"
    )
    fields = {
        "dataset": dataset,
        "deep": is_deep,
        "repair": is_repair,
        "dry_run": not is_repair,
        "chunks": report.chunks,
        "entries": report.entries,
        "bytes": report.total_bytes,
        "problems": found,
        "unmended": unmended,
    }
    exit_code = EXIT_OK
    if unmended:
        exit_code = EXIT_DAMAGED
        hint = "" if is_repair else "; --repair restores metadata and snapshot"
        output.error(f"dl://{dataset}: {count(unmended, 'problem')} not repaired{hint}")
    elif found:
        exit_code = EXIT_PARTIAL
        output.error(f"dl://{dataset}: {count(found, 'problem')} found, all of them repaired")
    return text, fields, exit_code


@options.verb(
    "purge",
    "dlcmd purge -n dl://pets              # only print the space that would be freed",
    "dlcmd purge --copy dl://pets           # copy the bytes of attached files, so that the sources may go",
    "dlcmd purge --grace 7d dl://pets      # keep files that were deleted within the last week",
    "dlcmd purge --all                     # every dataset, for a timer",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET", required=False)
@options.flag("--all", "is_all", text="Purge all datasets that you may change.")
@click.option(
    "--grace",
    "grace_s",
    type=options.DURATION,
    default="24h",
    help="Time that deleted files stay readable in older generations. [24h]",
)
@options.flag(
    "--copy",
    "is_copying",
    text="First copy the bytes of attached files; their sources may go after the grace time.",
)
@options.dry_run
def purge(
    session: Session, dataset: str | None, is_all: bool, grace_s: float, is_copying: bool, is_dry_run: bool
) -> int:
    """Rewrite chunks with holes, and remove chunks whose files were all deleted before the grace time.

    Files of attached sources stay there, unless --copy is given. Then they are read, verified and stored as if they
    had been imported. Tags and older generations still need the sources.
    """
    seconds = math.ceil(grace_s)

    def work(name: str) -> Result:
        return _purge(session, name, seconds, is_copying, is_dry_run)

    done = "would purge" if is_dry_run else "purged"
    return for_each_dataset(session, dataset, is_all, done, work, fields={"dry_run": is_dry_run})


def _purge(session: Session, dataset: str, grace_s: int, is_copying: bool, is_dry_run: bool) -> Result:
    would, output, copied = "would have " if is_dry_run else "", session.output, 0
    if is_copying:
        with watched(output, f"copy {dataset}") as progressed:
            copied = session.client.copy_attached(dataset, is_dry_run, progressed)
    with watched(output, f"purge {dataset}") as progressed:
        report = session.client.purge(dataset, grace_s, is_dry_run, progressed)
    text = (
        f"{would}removed {count(report.chunks_removed, 'chunk')} ({output.size(report.bytes_freed)}), "
        f"{would}rewritten {report.chunks_rewritten:,} with holes; "
        f"{report.chunks_waiting:,} wait for the grace time of {format_duration(grace_s)}"
    )
    if is_copying:
        text = f"{would}copied {count(copied, 'attached chunk')}; {text}"
    if report.held_by:
        text += f", or are held by {', '.join(report.held_by)}"
    fields = {
        "dry_run": is_dry_run,
        "dataset": dataset,
        "removed_chunks": report.chunks_removed,
        "copied_chunks": copied,
        "rewritten_chunks": report.chunks_rewritten,
        "waiting_chunks": report.chunks_waiting,
        "freed_bytes": report.bytes_freed,
        "grace_s": grace_s,
        "held_by": list(report.held_by),
    }
    return text, fields, EXIT_OK


def parse_time(text: str) -> int:
    """Seconds since 1970 of a date (`2026-05-01`, `2026-05-01T12:30`, local time) or of such seconds."""
    if text.isdecimal():
        return int(text)
    try:
        return max(int(datetime.fromisoformat(text).timestamp()), 0)
    except ValueError:
        raise InvalidInput(
            f"{text!r} is neither a date like 2026-05-01T12:30 nor seconds since 1970"
        ) from None


@options.verb(
    "rebuild",
    "dlcmd rebuild dl://pets",
    "dlcmd rebuild --since 2026-05-01T12:00 dl://pets      # only the newest was lost",
    "dlcmd rebuild --all                                   # every dataset, also lost ones",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET", required=False)
@options.flag(
    "--all", "is_all", text="Rebuild all datasets that you may read, also those whose metadata is lost."
)
@click.option("--since", metavar="TIME", help="Use only chunks written since a date, or seconds since 1970.")
@options.flag("--force", "is_forced", text="Forget files whose chunks are missing in the object store.")
@options.dry_run
def rebuild(
    session: Session, dataset: str | None, is_all: bool, since: str | None, is_forced: bool, is_dry_run: bool
) -> int:
    """Rebuild the metadata of a dataset from its chunks. Readers and writers are not interrupted."""
    since_s = None if since is None else parse_time(since)

    def work(name: str) -> Result:
        return _rebuild(session, name, since, since_s, is_forced, is_dry_run)

    done = "would rebuild" if is_dry_run else "rebuilt"
    return for_each_dataset(session, dataset, is_all, done, work, names_with_lost, {"dry_run": is_dry_run})


def _rebuild(
    session: Session, dataset: str, since: str | None, since_s: int | None, is_forced: bool, is_dry_run: bool
) -> Result:
    if is_dry_run:
        what = "all chunks" if since_s is None else f"chunks since {since}"
        text = f"would rebuild the metadata of dl://{dataset} from {what}"
        return text, {"dry_run": True, "dataset": dataset, "since_s": since_s}, EXIT_OK
    with watched(session.output, f"rebuild {dataset}") as progressed:
        report = session.client.rebuild(dataset, since_s, progressed, is_forced)
    for reason in report.damaged:
        session.output.failure(f"dl://{dataset}", reason)
    text = f"rebuilt {dataset} from {count(report.chunks, 'chunk')}: {count(report.files, 'file')}"
    fields = {
        "dataset": dataset,
        "chunks": report.chunks,
        "entries": report.entries,
        "files": report.files,
        "generation": report.generation,
        "damaged_chunks": len(report.damaged),
    }
    return text, fields, EXIT_DAMAGED if report.damaged else EXIT_OK


@options.verb(
    "rm",
    "dlcmd rm dl://pets/train/blurred.jpg",
    "dlcmd rm -r -n dl://pets/old/                  # only print the entries",
)
@click.argument("locations", nargs=-1, required=True, type=options.CHANGEABLE, metavar="dl://DATASET/PATH...")
@options.recursive
@options.filters
@options.dry_run
@options.yes
def rm(
    session: Session,
    locations: Sequence[Location],
    is_recursive: bool,
    is_dry_run: bool,
    is_confirmed: bool,
    patterns: Patterns,
) -> int:
    """Delete files, links and, with -r, folders. Readers of an older generation still see them.

    With --include or --exclude, a folder stays that is named, or that has entries which they do not select. To empty a
    whole dataset, type its name when asked, or give -y. 'dlcmd purge' frees the space.
    """
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.dataset for place in locations)}
    paths = [
        (datasets[place.dataset], path)
        for place in locations
        for path in _paths(datasets[place.dataset], place, is_recursive, patterns)
    ]
    output, entries = session.output, count(len(paths), "entry")
    if is_dry_run:
        for dataset, path in paths:
            fields = {"dataset": dataset.name, **name_fields(path)}
            output.detail("entry", f"would delete {Location(dataset.name, path, False)}", fields)
        return output.summary(f"would delete {entries}", {"dry_run": True, "entries": len(paths)})
    for place in locations:
        if not place.path and not is_confirmed:
            confirm_name(place.dataset, f"this deletes everything in {place}")
    for dataset, path in paths:
        dataset.writer.delete(path)
    for dataset in datasets.values():
        dataset.flush()
    return output.summary(f"deleted {entries}", {"entries": len(paths)})


def _paths(dataset: "Dataset", location: Location, is_recursive: bool, patterns: Patterns) -> Iterator[bytes]:
    """The paths to delete for `location`. Raises NotFound, and InvalidInput for a folder without `is_recursive`.

    A single file needs a request to the server, a folder the snapshot.
    """
    if location.path and Op(dataset.client.stat(dataset.name, location.path).op) != Op.DIRECTORY:
        if patterns.is_wanted(location.below(location.path)):
            yield location.path
        return
    if not is_recursive:
        raise InvalidInput(f"{location} is a folder: delete it with -r")
    from dieselfs_tools.transfers.trees import StoredTree

    below = StoredTree(dataset.snapshot, location.path)
    head = location.path + b"/" if location.path else b""
    yield from (head + path for path in deletable(below.reversed_paths(), patterns))
    if location.path and not patterns:
        yield location.path


@options.verb(
    "rb",
    "dlcmd rb dl://old-set          # asks you to type old-set",
    "dlcmd rb -n dl://old-set       # only print its files, tags and mounts",
    "dlcmd rb -y dl://old-set       # for scripts",
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@options.flag("--with-tags", text="Remove the tags of the dataset too; required if it has tags.")
@options.flag("--in-use", text="Remove the dataset although mounts or programs read it; required if they do.")
@options.dry_run
@options.yes
def rb(
    session: Session, dataset: str, with_tags: bool, in_use: bool, is_dry_run: bool, is_confirmed: bool
) -> int:
    """Remove a dataset with all its files, permanently. Type its name when asked, or give -y.

    A dataset with tags needs --with-tags. One that mounts, cache daemons or programs read, on any machine, needs
    --in-use: their reads will fail.
    """
    record, output = session.client.dataset(dataset), session.output
    tags = [tag.name for tag in session.client.tags(dataset)]
    readers = sorted(
        {*control.mounts_of(record.dataset_id), *(_place(pin.holder) for pin in session.client.pins(dataset))}
    )
    what = f"{count(record.files, 'file')}, {output.size(record.total_bytes)}"
    if tags:
        what += f", {count(len(tags), 'tag')}: {', '.join(tags)}"
    if readers:
        what += f", in use at {', '.join(readers)}"
    fields = {
        "dataset": dataset,
        "files": record.files,
        "bytes": record.total_bytes,
        "tags": tags,
        "readers": readers,
    }
    if is_dry_run:
        return output.summary(f"would remove dl://{dataset} ({what})", {"dry_run": True, **fields})
    if tags and not with_tags:
        raise InvalidInput(
            f"dl://{dataset} has {count(len(tags), 'tag')} ({', '.join(tags)}), which keep their "
            "generations for those who use them; if nobody does, add --with-tags"
        )
    if readers and not in_use:
        raise InvalidInput(
            f"dl://{dataset} is in use at {', '.join(readers)}: unmount it there, or add --in-use; "
            "reads there will fail then"
        )
    if not is_confirmed:
        confirm_name(dataset, f"this removes dl://{dataset} ({what})")
    session.client.drop_dataset(dataset, record.dataset_id)
    return output.summary(f"removed dl://{dataset} ({what})", fields)


def _place(holder: str) -> str:
    """The place of a reader: its path on this machine, `NODE:PATH` on another."""
    from dieselfs.snapshot.pin import node_name

    node, _, rest = holder.partition("/")[2].partition(" ")
    path = rest.partition(" ")[2]
    if not path:
        return holder
    return path if node == node_name() else f"{node}:{path}"
