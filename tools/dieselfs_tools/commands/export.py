"""`dlcmd export`: write a dataset or a folder as an EROFS image, or in another format."""

from typing import Any

import click

from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB
from dieselfs.names import Location
from dieselfs.units import format_size
from dieselfs_tools.archives.formats import AUTO, EXPORTED, TARGETS, format_of_target
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

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
@options.jobs
def export(session: Session, location: Location, target: str, format_name: str, **chosen: Any) -> int:
    """Write a dataset, or a folder of one, as an EROFS image, which Linux mounts without dieselfs, or as a tar archive,
    WebDataset shards, an LMDB environment, or a folder.

    All entries of an image or archive belong to root and keep their times and their modes, without set-user-ID. Equal
    datasets give equal archives. A damaged chunk ends the export (exit code 5). The target appears when it is whole.
    """
    from dieselfs_tools.archives.exporting.archive_export import ExportOptions

    found = format_of_target(target, format_name)
    dataset = session.dataset(location.state)
    node = dataset.snapshot.follow(location.path)
    if not dataset.snapshot.stat(node).is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file; get it with dlcmd get")
    wanted = ExportOptions(location=location, target=target, format_name=found.name, **chosen)
    return found.export()(session, dataset, node, wanted)
