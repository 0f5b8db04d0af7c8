"""The verbs that try and predict: `bench`, `plan` and `chaos`."""

import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError, InvalidInput
from dieselfs.names import Location
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs_tools.observe.faults import Rehearsed
    from dieselfs_tools.observe.prediction import Epoch


ROUNDS = 3


@options.verb(
    "bench",
    "dlcmd bench                              # chunks of a scratch store on this disk",
    "dlcmd bench dl://imagenet --in /nvme     # chunks of your servers; files compared with those in /nvme",
)
@click.argument("dataset", type=options.STATE, required=False, metavar="[DATASET[@TAG]]")
@click.option(
    "--in",
    "folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where scratch files are written. [the folder for temporary files]",
)
@click.option(
    "--rounds", type=click.IntRange(min=1, max=100), default=ROUNDS, help="Rounds at most; medians count. [3]"
)
@options.flag("--quick", "is_quick", text="A twentieth of the files: to try it out.")
@click.option(
    "--save",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the speeds for 'dlcmd plan' here. [your state folder]",
)
def bench(
    session: Session, dataset: str | None, folder: Path | None, rounds: int, is_quick: bool, file: Path | None
) -> int:
    """Time a mount against plain files, a tar file and LMDB, and the fetching of chunks from the servers.

    No round begins later than two minutes after the start. It takes 1 GB of disk space, which is freed at the end.
    `dlcmd plan` uses the result.
    """
    from dieselfs_tools.observe import prediction
    from dieselfs_tools.observe.timing import FORMS, QUICK_FORMS, run

    output = session.output
    chunks = session.dataset(dataset).chunks if dataset is not None else None
    if chunks is not None and not chunks.snapshot.column("chunk_payload_lengths").any():
        raise InvalidInput(f"dl://{dataset} has no chunks to fetch: name another dataset, or none")
    path = file or prediction.default_path()
    prediction.make_folder(path)
    try:
        found = run(folder, QUICK_FORMS if is_quick else FORMS, rounds, chunks, output.aside)
    except OSError as error:
        raise InvalidInput(
            f"{error.filename or folder}: {error.strerror}; --in names another folder"
        ) from None
    source = dataset or "a scratch store on this machine"
    for each in found.timings:
        files = each.form.files
        fields = {
            "form": each.form.name,
            "files": files,
            "size": each.form.file_bytes,
            "reader": each.reader,
            "first_files_s": round(files / each.first_s),
            "later_files_s": round(files / each.later_s),
        }
        text = (
            f"{each.form.file_bytes >> 10:4} KiB  {each.reader:15} first {files / each.first_s:10,.0f} files/s   "
            f"again {files / each.later_s:10,.0f} files/s"
        )
        output.record("timing", text, fields)
    measured = prediction.save(found.speeds, source, path)
    text = (
        f"chunks from {source}: {output.size(round(found.fetch_bytes_s))}/s; view {found.view}, one reader\n"
        f"{count(found.rounds, 'round')} in {format_duration(found.seconds)}\n"
        f"'dlcmd plan' uses these speeds: {path}"
    )
    return output.summary(
        text,
        {
            "speeds": asdict(measured.speeds),
            "chunks_from": measured.source,
            "measured_s": measured.measured_s,
            "view": found.view,
            "rounds": found.rounds,
            "seconds": round(found.seconds, 3),
            "speeds_file": str(path),
        },
    )


MEMORY_BYTES = 1 << 30
"""The memory of a mount without the option `memory`."""
CACHED_GROUPS = 2


@options.verb(
    "plan",
    "dlcmd plan dl://imagenet --nodes 8 --memory 64GiB --pool",
    "dlcmd plan dl://imagenet --batch 256 --compute 150ms --readers 8    # does the training wait for data?",
)
@click.argument("dataset", type=options.PART, metavar="DATASET[@TAG][/FOLDER]")
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Nodes that share an epoch. [1]")
@click.option(
    "--memory", "memory_bytes", type=options.SIZE, default=MEMORY_BYTES, help="Of each node. [1GiB]"
)
@click.option("--pool", "is_pooled", is_flag=True, help="The nodes pool their memory, as with --job.")
@click.option("--readers", type=click.IntRange(min=1), default=1, help="Reading processes of each node. [1]")
@click.option("--processors", type=click.IntRange(min=1), help="Of each node. [of this machine]")
@click.option("--batch", type=click.IntRange(min=1), default=256, help="Files of a step of one node. [256]")
@click.option("--compute", "step_s", type=options.DURATION, default=0.0, help="Computing of a step. [0s]")
@click.option(
    "--group", type=click.IntRange(min=1), help="Chunks of a group.  [default: few at the start, then 25]"
)
@click.option("--network", type=options.RATE, help="What a node sends and receives. [as fetched by bench]")
@click.option("--servers", type=options.RATE, help="What all servers together send. [as fetched by bench]")
@click.option(
    "--speeds",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result of 'dlcmd bench'. [your state folder]",
)
@options.where
def plan(
    session: Session,
    dataset: Location,
    nodes: int,
    memory_bytes: int,
    is_pooled: bool,
    readers: int,
    processors: int | None,
    batch: int,
    step_s: float,
    group: int | None,
    network: int | None,
    servers: int | None,
    file: Path | None,
) -> int:
    """Predict the first and the later epochs, what limits them, memory, and traffic, without reading a file.

    The speeds are those that `dlcmd bench` has measured. docs/guide/planning.md has the model.
    """
    from dieselfs.process.system_limits import usable_processors
    from dieselfs.shuffle.quality import measure
    from dieselfs.shuffle.spec import PlanSpec
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs.snapshot.subtree import subtree_snapshot
    from dieselfs_tools.commands.orders import groups_text
    from dieselfs_tools.observe import prediction
    from dieselfs_tools.observe.prediction import first_epoch, later_epoch, predicted_job

    measured = prediction.load(file or prediction.default_path())
    speeds, output = measured.speeds, session.output
    order = session.dataset(dataset.state).plan_of(PlanSpec(folder=dataset.path, group_chunks=group))
    quality, files = measure(order), len(order)
    size_bytes = int(order.snapshot.column("sizes")[order.nodes()].sum())
    # The mount of a folder has a snapshot of that folder alone.
    snapshot = (
        Snapshot(subtree_snapshot(order.snapshot, dataset.path), "") if dataset.path else order.snapshot
    )
    job = predicted_job(
        snapshot,
        size_bytes,
        memory_bytes,
        nodes,
        is_pooled,
        servers_bytes_s=float(servers or speeds.fetch_bytes_s),
        network_bytes_s=float(network or speeds.fetch_bytes_s),
        readers=readers,
        processors=processors or usable_processors(),
        computing_s=step_s * -(-files // (nodes * batch)),
    )
    epochs = {
        "first epoch": first_epoch(files, size_bytes, job, speeds),
        "later epochs": later_epoch(files, size_bytes, job, speeds),
    }

    for name, epoch in epochs.items():
        fields = {"epoch_kind": name.split()[0], **asdict(epoch), "limit": epoch.limit}
        output.record(
            "epoch",
            _epoch_text(output, name, epoch),
            {**fields, "seconds": epoch.seconds, "waiting_s": epoch.waiting_s},
        )
    kept, resident = job.kept_share(size_bytes), job.resident_share(size_bytes)
    group_bytes = round(CACHED_GROUPS * quality.group_bytes_mean) * readers
    text = (
        f"{'memory':13} {kept:.0%} of {output.size(size_bytes)} stays on each node ({output.size(memory_bytes)} each)"
        f"{f', {resident:.0%} in the memory of the job' if is_pooled else ''}; "
        f"groups need {output.size(group_bytes)}\n"
        f"{'order':13} {groups_text(order.spec.group_chunks)}: {quality.entropy_ratio:.0%} of the entropy of "
        "a full shuffle\n"
        f"{'speeds':13} of {measured.source}"
    )
    fields = {
        "dataset": dataset.state,
        "files": files,
        "bytes": size_bytes,
        "kept_share": kept,
        "resident_share": resident,
        "group_bytes": group_bytes,
        "entropy_ratio": quality.entropy_ratio,
        "chunks_from": measured.source,
    }
    return output.summary(text, fields)


def _epoch_text(output: Output, name: str, epoch: "Epoch") -> str:
    from dieselfs.units import format_duration

    parts = ", ".join(f"{part} {format_duration(time_s)}" for part, time_s in epoch.parts_s.items() if time_s)
    traffic = f"{output.size(round(epoch.from_servers_bytes))} from the servers"
    if epoch.from_peers_bytes:
        traffic += f", {output.size(round(epoch.from_peers_bytes))} between nodes"
    return (
        f"{name:13} {format_duration(epoch.seconds)}, limited by {epoch.limit}; the training waits "
        f"{format_duration(epoch.waiting_s)}\n{'':13} {parts}\n{'':13} {traffic}"
    )


NAMES = (
    "lost-node",
    "killed-daemon",
    "killed-mount",
    "full-disk",
    "corrupt-chunk",
    "lost-metadata",
    "older-metadata",
    "lost-chunks",
)


def parse_names(text: str) -> list[str]:
    """The faults of `lost-node,full-disk`. Raises InvalidInput."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in NAMES]:
        raise InvalidInput(f"there is no fault {unknown[0]!r}; the faults are {', '.join(NAMES)}")
    return [name for name in NAMES if name in names]


@options.verb("chaos", "dlcmd chaos", "dlcmd chaos --only lost-node,killed-daemon --json")
@click.option(
    "--only",
    "names",
    type=options.Parsed("FAULT[,FAULT...]", parse_names),
    help=f"Rehearse these alone: {', '.join(NAMES)}.",
)
def chaos(session: Session, names: list[str] | None) -> int:
    """Rehearse faults on this machine, and show what readers saw: reads, failures, and the longest pause.

    Each fault is real, and happens in a scratch home with a dataset of its own: none of your data, mounts and
    servers takes part. It needs /dev/fuse; a full disk needs root. The exit code is 2 if readers saw anything else than
    promised.
    """
    from dieselfs_tools.observe.faults import FAULTS, TooLate

    output, broken, refused = session.output, 0, 0
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise InvalidInput("this machine cannot mount: see 'dlcmd doctor'")
    output.note(
        f"{'fault':14} {'reads':>7} {'failed':>7} {'wrong':>6} {'longest':>8}  what let them continue"
    )
    with tempfile.TemporaryDirectory(prefix="dieselfs-chaos-") as runtime:
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = runtime  # so that no daemon of the user takes part
        try:
            for name in names or NAMES:
                began_s = time.monotonic()
                try:
                    found = FAULTS[name]()
                except TooLate as error:  # readers or daemons that hang are what a rehearsal looks for
                    broken += 1
                    output.failure(name, f"NOT AS PROMISED: {error}")
                    continue
                except DieselfsError as error:
                    refused += 1
                    output.failure(name, str(error))
                    continue
                broken += not found.is_as_promised
                _show(session, found, time.monotonic() - began_s)
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before
    done = len(names or NAMES) - refused
    text = f"{count(done, 'fault')} rehearsed, {broken} not as promised, {refused} could not be tried"
    fields = {"rehearsed": done, "broken": broken, "refused": refused}
    return output.summary(text, fields, EXIT_PARTIAL if broken or refused else EXIT_OK)


def _show(session: Session, found: "Rehearsed", took_s: float) -> None:
    seen = found.seen
    mark = "" if found.is_as_promised else "  NOT AS PROMISED: " + "; ".join(seen.failures)
    text = (
        f"{found.fault:14} {seen.reads:7,} {seen.failed:7,} {seen.wrong:6,} {format_duration(seen.worst_s):>8}  "
        f"{found.remedy}{mark}"
    )
    fields = {
        "fault": found.fault,
        "reads": seen.reads,
        "failed": seen.failed,
        "wrong": seen.wrong,
        "worst_s": round(seen.worst_s, 3),
        "errors": seen.failures,
        "remedy": found.remedy,
        "is_as_promised": found.is_as_promised,
        "seconds": round(took_s, 3),
    }
    session.output.record("rehearsal", text, fields)
