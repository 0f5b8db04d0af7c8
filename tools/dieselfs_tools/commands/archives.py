"""The verbs for archives and other data formats: `import`, `attach`, `detach` and `export`."""

import os
from collections.abc import Sequence
from typing import Any

import click

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, InvalidInput
from dieselfs.limits import GIB, MIB
from dieselfs.names import Location, is_location, printable
from dieselfs.units import count, format_size
from dieselfs_tools.archives.formats import ATTACHED, AUTO, EXPORTED, IMPORTED, TARGETS, format_of_target
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.session import Session

RECORDS_MAX = 100_000_000
BYTES_MAX = 65_536 * GIB
"""Of an import, unless it says otherwise: a source may claim more than can be."""


@options.verb(
    "import",
    "dlcmd import shards/*.tar dl://imagenet/               # WebDataset or other tar files, also .gz and .zst",
    "dlcmd import --name '{source}/{name}' a.zip b.zip dl://sets/",
    "dlcmd import --name '{label}/{path}' *.parquet dl://food/   # columns are fields of names",
    "dlcmd import 's3://my-data/train-*.tar' dl://imagenet/   # credentials as of the AWS tools",
    "curl -s https://x.org/a.tar | dlcmd import - dl://a/   # a tar stream",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET/PATH")
@options.records(
    IMPORTED,
    "Name of each record: {name}, {folder}, {stem}, {ext}, {source}, {index:08}, and fields of the record.",
)
@click.option(
    "--max-records",
    "records_max",
    type=click.IntRange(1),
    default=RECORDS_MAX,
    help=f"Records of all sources that are read at most. [{RECORDS_MAX:,}]",
)
@click.option(
    "--max-size",
    "bytes_max",
    type=options.SIZE,
    default=BYTES_MAX,
    help=f"Size of all records together, at most. [{format_size(BYTES_MAX)}]",
)
@options.filters
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Also store records that are already stored.")
@options.encrypt
@options.compress
@options.dedup
@options.processes
@options.chunk_size
def import_(session: Session, **chosen: Any) -> int:
    """Store the records of archives and other formats as files of a dataset, which is created if it does not exist.

    A SOURCE is a file, a folder of a format that is one, a URL (https://), objects (s3://BUCKET/KEY, gs://, az://; also
    a folder or a pattern), or '-': standard input. The destination is a folder. Sources are read as streams.

    Records that are already stored (same size, time and mode) are skipped, so the same command continues an interrupted
    import. Unsafe names and duplicates are refused and listed at the end, and the rest is stored (exit code 2). A
    damaged source is stored up to the damage (exit code 5).

    Sources are read by a process without keys, network and files, with limits of memory and time. If one makes it
    crash, it is damaged.
    """
    from dieselfs_tools.archives.importing.import_walk import run_import
    from dieselfs_tools.archives.importing.records import RecordOptions

    return run_import(session, RecordOptions(**chosen))


@options.verb(
    "attach",
    "dlcmd attach shards/*.tar dl://imagenet/        # the shards stay where they are",
    "dlcmd attach --list dl://imagenet               # the sources, and whether they have changed",
    "dlcmd detach shards/0007.tar dl://imagenet      # remove the files of one source",
    "dlcmd purge --copy dl://imagenet                # copy the bytes; then the sources may go",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET/PATH")
@options.flag("--list", "is_listing", text="List the sources of a dataset: attach --list dl://DATASET.")
@options.records(ATTACHED, "Name of each record, as of dlcmd import.")
@options.filters
@options.dry_run
@options.chunk_size
def attach(session: Session, is_listing: bool, **chosen: Any) -> int:
    """Make the records of uncompressed archives part of a dataset, without copying their bytes.

    The files are the same as those of dlcmd import, but arrays are their plain bytes, and their names say shape and
    type. They are read as all others. Their bytes stay in the sources, which
    the server must see under the same paths or URLs (s3://, https://), and which must not change: a file of a source
    that was changed, moved or removed cannot be read (exit code 5), and is never read wrongly. Attach a changed source
    again.

    Compressed members, and large values that an import converts, are refused and listed (exit code 2). Small converted
    values, as numbers, are copied. A server attaches only what its setting attach_roots allows.
    """
    if is_listing:
        if len(chosen["names"]) != 1:
            raise InvalidInput("name one dataset: dlcmd attach --list dl://DATASET")
        return _list(session, options.dataset_name(chosen["names"][0]))
    from dieselfs_tools.archives.importing.attach import run_attach
    from dieselfs_tools.archives.importing.records import RecordOptions

    return run_attach(session, RecordOptions(**chosen))


def _list(session: Session, dataset: str) -> int:
    """Print the sources of a dataset; the exit code says whether one of them cannot be read."""
    output, sources = session.output, session.client.attached_sources(dataset)
    for source in sources:
        size = f"{count(source.files, 'file')} ({output.size(source.total_bytes)})"
        output.detail(
            "source",
            f"{printable(source.location)}  {size}",
            {
                **name_fields(source.location, "source"),
                "size": source.size_bytes,
                "mark": source.mark,
                "chunks": source.chunks,
                "files": source.files,
                "bytes": source.total_bytes,
                "trouble": source.trouble,
            },
        )
    troubles = [(printable(source.location), source.trouble) for source in sources if source.trouble]
    output.failures(troubles, len(troubles))
    text = f"{count(len(sources), 'source')}, {count(sum(source.files for source in sources), 'file')}"
    if troubles:
        text += f"; {len(troubles):,} cannot be read: attach what has changed again, or dlcmd detach it"
    fields = {"dataset": dataset, "sources": len(sources), "unreadable": len(troubles)}
    return output.summary(text, fields, EXIT_DAMAGED if troubles else EXIT_OK)


@options.verb(
    "detach",
    "dlcmd detach shards/0007.tar dl://imagenet",
    "dlcmd detach /data/shards dl://imagenet         # all sources below a folder",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET")
def detach(session: Session, names: Sequence[str]) -> int:
    """Remove the files that come from attached sources. The sources stay as they are, and need not exist any more.

    Tags and older generations still have the files, while their sources are unchanged. Values that attach has copied
    stay; remove them with dlcmd rm.
    """
    if len(names) < 2 or not is_location(names[-1]):
        raise InvalidInput("name sources and a dataset: dlcmd detach SOURCE... dl://DATASET")
    dataset = options.dataset_name(names[-1])
    locations = [
        os.fsencode(name if is_object_url(name) or is_web_url(name) else os.path.realpath(name))
        for name in names[:-1]
    ]
    removed = [session.client.detach(dataset, location) for location in locations]
    entries, sources = sum(each.entries for each in removed), sum(each.sources for each in removed)
    return session.output.summary(
        f"detached {count(entries, 'entry')} of {count(sources, 'source')}; the sources are unchanged",
        {"dataset": dataset, "entries": entries, "sources": sources, "generation": removed[-1].generation},
    )


SHARD_BYTES = 256 * MIB


@options.verb(
    "export",
    "dlcmd export dl://imagenet imagenet.erofs",
    "dlcmd export dl://imagenet@v3/val val.erofs     # a folder of a tag",
    "mount -t erofs -o ro,loop val.erofs /mnt/val    # without dieselfs",
    "dlcmd export dl://imagenet/val val.tar",
    "dlcmd export dl://imagenet - | ssh host tar x   # a tar stream",
    "dlcmd export --format webdataset dl://imagenet/train shards",
)
@click.argument("location", type=options.FOLDER, metavar="dl://DATASET[@TAG][/FOLDER]")
@click.argument("target", metavar="FILE|FOLDER|-")
@click.option(
    "--format",
    "format_name",
    type=click.Choice([AUTO, *EXPORTED]),
    default=AUTO,
    show_default=True,
    help=f"auto: by the suffix {', '.join(TARGETS)}, and tar for '-'.",
)
@click.option(
    "--shard-size",
    "shard_bytes",
    type=options.SIZE,
    default=SHARD_BYTES,
    help=f"Size at which a WebDataset shard is full. [{format_size(SHARD_BYTES)}]",
)
@options.filters
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Replace an existing file.")
@options.processes
@options.where
def export(session: Session, location: Location, target: str, format_name: str, **chosen: Any) -> int:
    """Write a dataset, or a folder of one, as an EROFS image, which Linux mounts without dieselfs, or as a tar archive,
    WebDataset shards, an LMDB environment, or a folder.

    All entries of an image or archive belong to root and keep their times and their modes, without set-user-ID. Equal
    datasets give equal archives. A damaged chunk ends the export (exit code 5). The target appears when it is whole.
    """
    from dieselfs_tools.archives.exporting.export import ExportOptions

    found = format_of_target(target, format_name)
    dataset = session.dataset(location.state)
    node = dataset.snapshot.follow(location.path)
    if not dataset.snapshot.stat(node).is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file; get it with dlcmd get")
    wanted = ExportOptions(location=location, target=target, format_name=found.name, **chosen)
    return found.export()(session, dataset, node, wanted)
