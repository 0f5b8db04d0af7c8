"""`dlcmd info`: the totals of a dataset, or the chunks of a file."""

from collections.abc import Sequence

import click

from dieselfs.names import Location
from dieselfs.rpc.limit_kinds import QUOTAS
from dieselfs.units import count, format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.session import Session
from dieselfs_tools.commands.usage import quota_text, usage_fields
from dieselfs_tools.transfers.contents import find_file
from dieselfs_tools.transfers.entries import dataset_fields

USAGE_FIELDS = ("owner", "stored_bytes", *(kind.field for kind in QUOTAS))


@options.verb(
    "info",
    "dlcmd info dl://imagenet",
    "dlcmd info dl://imagenet/train/n01440764/a.jpg     # its chunks",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET[/FILE]...")
def info(session: Session, locations: Sequence[Location]) -> int:
    """Show the totals and the generation of a dataset, or the extents of a file."""
    for location in locations:
        if location.path or location.tag:
            _file(session, location)
        else:
            _dataset(session, location)
    return session.output.summary("", {"locations": len(locations)})


def _dataset(session: Session, location: Location) -> None:
    record, output = session.client.dataset(location.dataset), session.output
    average = f", {output.size(record.total_bytes // record.files)} on average" if record.files else ""
    lines = [
        str(location),
        f"  server      {session.client.address}",
        f"  files       {record.files:,}",
        f"  size        {output.size(record.total_bytes)}{average}",
        f"  chunks      {record.chunks:,}",
        f"  generation  {record.generation}",
        f"  updated     {format_time(record.updated_ns // 10**9)}",
        f"  ID          {record.dataset_id.hex()}",
    ]
    (used,) = session.client.usage(record.name)
    lines.insert(4, f"  stored      {output.size(used.stored_bytes)}")
    if limits := quota_text(output, used):
        lines.append(f"  quota       {limits}")
    if used.owner:
        lines.append(f"  owner       {used.owner}")
    fields = {
        **dataset_fields(record),
        "dataset_id": record.dataset_id.hex(),
        "server": str(session.client.address),
        **{name: value for name, value in usage_fields(used).items() if name in USAGE_FIELDS},
    }
    output.record("dataset", "\n".join(lines), fields)


def _file(session: Session, location: Location) -> None:
    from dieselfs.chunk.ids import chunk_name

    dataset, output = session.dataset(location.state), session.output
    snapshot, node = dataset.snapshot, find_file(dataset, location.path)
    path, size_bytes, extents = snapshot.path(node), snapshot.size(node), snapshot.extents(node)
    lines = [
        f"{Location(dataset.name, path, False)}: {output.size(size_bytes)} in {count(len(extents), 'extent')}, "
        f"generation {snapshot.generation}"
    ]
    listed = []
    for extent in extents:
        chunk, digest = chunk_name(snapshot.chunk_id(extent.chunk)), extent.digest.hex()
        lines.append(
            f"  byte {extent.place}: {extent.length} bytes in chunk {chunk} at {extent.offset}, blake3 {digest}"
        )
        places = {"place": extent.place, "length": extent.length, "chunk": chunk, "offset": extent.offset}
        listed.append({**places, "blake3": digest})
    fields = {"dataset": dataset.name, **name_fields(path), "size": size_bytes, "extents": listed}
    output.record("file", "\n".join(lines), fields)
