"""`dlcmd plan`: how long epochs will take on a number of nodes, and what limits them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs_tools.observe.prediction import Epoch

MEMORY_BYTES = 1 << 30
"""As of a mount without the option `memory`."""
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
@click.option("--group", type=click.IntRange(min=1), help="Chunks of a group. [100]")
@click.option("--network", type=options.RATE, help="What a node sends and receives. [as fetched by bench]")
@click.option("--servers", type=options.RATE, help="What all servers together send. [as fetched by bench]")
@click.option(
    "--speeds",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Result of 'dlcmd bench'. [your state folder]",
)
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
    import os

    from dieselfs.shuffle.quality import measure
    from dieselfs.shuffle.spec import DEFAULT_GROUP_CHUNKS, PlanSpec
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs.snapshot.subtree import subtree_snapshot
    from dieselfs_tools.observe import measured_speeds
    from dieselfs_tools.observe.prediction import first_epoch, later_epoch, predicted_job

    measured = measured_speeds.load(file or measured_speeds.default_path())
    speeds, output = measured.speeds, session.output
    order = session.dataset(dataset.state).plan_of(
        PlanSpec(folder=dataset.path, group_chunks=group or DEFAULT_GROUP_CHUNKS)
    )
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
        processors=processors or os.cpu_count() or 1,
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
        f"{'order':13} groups of {order.spec.group_chunks} chunks: {quality.entropy_ratio:.0%} of the entropy of "
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
