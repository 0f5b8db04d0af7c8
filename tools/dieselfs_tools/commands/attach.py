"""`dlcmd attach`: make the records of archives part of a dataset, without copying their bytes."""

from typing import Any

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, InvalidInput
from dieselfs.names import printable
from dieselfs.units import count
from dieselfs_tools.archives.formats import ATTACHED
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.session import Session


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

    The files are the same as those of dlcmd import, and are read as all others. Their bytes stay in the sources, which
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
    from dieselfs_tools.archives.attaching.attach_runner import run_attach
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
