"""`dlcmd import`: store the records of archives and of other data formats."""

from typing import Any

import click

from dieselfs_tools.archives.formats import IMPORTED
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


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
@options.filters
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Also store records that are already stored.")
@options.jobs
@options.chunk_size
def import_(session: Session, **chosen: Any) -> int:
    """Store the records of archives and other formats as files of a dataset, which is created if it does not exist.

    A SOURCE is a file, a folder of a format that is one, a URL (https://), objects (s3://BUCKET/KEY, gs://, az://; also
    a folder or a pattern), or '-': standard input. The destination is a folder. Sources are read as streams.

    Records that are already stored (same size, time and mode) are skipped, so the same command continues an interrupted
    import. Unsafe names and duplicates are refused and listed at the end, and the rest is stored (exit code 2). A
    damaged source is stored up to the damage (exit code 5).
    """
    from dieselfs_tools.archives.importing.import_runner import ImportOptions, run_import

    return run_import(session, ImportOptions(**chosen))
