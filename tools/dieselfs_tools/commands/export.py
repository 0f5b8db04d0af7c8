"""`dlcmd export`: write a dataset or a folder as an EROFS image, or in another format."""

import time
from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB
from dieselfs.names import Location
from dieselfs.units import count, format_duration, format_size
from dieselfs_tools.cli import options
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset

AUTO, EROFS = "auto", "erofs"
FORMATS = (EROFS, "tar", "webdataset", "lmdb", "folder")
SUFFIXES = {".erofs": EROFS, ".tar": "tar", ".lmdb": "lmdb"}
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
    type=click.Choice([AUTO, *FORMATS]),
    default=AUTO,
    show_default=True,
    help="auto: by the suffix .erofs, .tar or .lmdb, and tar for '-'.",
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
def export(
    session: Session,
    location: Location,
    target: str,
    format_name: str,
    shard_bytes: int,
    is_dry_run: bool,
    is_forced: bool,
    jobs: int,
    patterns: Patterns,
) -> int:
    """Write a dataset, or a folder of one, as an EROFS image, which Linux mounts without dieselfs, or as a tar archive,
    WebDataset shards, an LMDB environment, or a folder.

    All entries of an image or archive belong to root and keep their times and their modes, without set-user-ID. Equal
    datasets give equal archives. A damaged chunk ends the export (exit code 5). The target appears when it is whole.
    """
    chosen = _chosen(target, format_name)
    dataset = session.dataset(location.state)
    node = dataset.snapshot.follow(location.path)
    if not dataset.snapshot.stat(node).is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file; get it with dlcmd get")
    if chosen == EROFS:
        if patterns:
            raise InvalidInput(
                "an EROFS image has a whole folder; --include and --exclude need another --format"
            )
        return _export_image(session, dataset, node, location, target, is_dry_run, is_forced, jobs)
    from dieselfs_tools.archives.export_runner import ExportOptions, run_export

    wanted = ExportOptions(
        location=location,
        target=target,
        format_name=chosen,
        shard_bytes=shard_bytes,
        is_dry_run=is_dry_run,
        is_forced=is_forced,
        jobs=jobs,
        patterns=patterns,
    )
    return run_export(session, dataset, node, wanted)


def _chosen(target: str, format_name: str) -> str:
    """The format. Raises InvalidInput if the name of the target does not say it."""
    if format_name != AUTO:
        return format_name
    if target == "-":
        return "tar"
    for suffix, name in SUFFIXES.items():
        if target.endswith(suffix):
            return name
    raise InvalidInput(
        f"{target}: the suffix is not {', '.join(SUFFIXES)}; name the format: --format {'|'.join(FORMATS)}"
    )


def _export_image(
    session: Session,
    dataset: "Dataset",
    node: int,
    location: Location,
    image: str,
    is_dry_run: bool,
    is_forced: bool,
    jobs: int,
) -> int:
    from dieselfs.transfer.image_export import ImageExport

    output = session.output
    run = ImageExport(dataset.chunks, image, node, jobs)
    fields = {"image": image, "entries": run.report.found_files, "image_bytes": run.size_bytes}
    what = f"{location} as {image} ({count(run.report.found_files, 'entry')}, {output.size(run.size_bytes)})"
    if is_dry_run:
        return output.summary(f"would write {what}", {"dry_run": True, **fields})
    began_s = time.monotonic()
    with shown(output, "export", lambda: Reading.of(run.report)):
        run.run(is_forced)
    elapsed_s = time.monotonic() - began_s
    fields["seconds"] = round(elapsed_s, 3)
    return output.summary(f"wrote {what} in {format_duration(elapsed_s)}", fields)
