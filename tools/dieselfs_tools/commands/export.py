"""`dlcmd export`: write a dataset or a folder as one EROFS image."""

import time
from pathlib import Path

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import Location
from dieselfs.units import count, format_duration
from dieselfs_tools import options
from dieselfs_tools.progress import Reading, shown
from dieselfs_tools.session import Session

SUFFIX = ".erofs"


@options.verb(
    "export",
    "dlcmd export dl://imagenet imagenet.erofs",
    "dlcmd export dl://imagenet@v3/val val.erofs     # a folder of a tag",
    "mount -t erofs -o ro,loop val.erofs /mnt/val    # without dieselfs",
)
@click.argument("location", type=options.FOLDER, metavar="dl://DATASET[@TAG][/FOLDER]")
@click.argument("image", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.erofs")
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Replace an existing file.")
@options.jobs
def export(
    session: Session, location: Location, image: Path, is_dry_run: bool, is_forced: bool, jobs: int
) -> int:
    """Write a dataset, or a folder of one, as an EROFS image, which Linux mounts without dieselfs.

    All entries belong to root and keep their times and their modes, without set-user-ID. The image takes whole blocks
    of 4 KiB for each file. A damaged chunk ends the export (exit code 5). The file appears when it is whole.
    """
    from dieselfs.transfer.image_export import ImageExport

    if image.suffix != SUFFIX:
        raise InvalidInput(f"{image}: only EROFS images can be written; name the file {image}{SUFFIX}")
    dataset, output = session.dataset(location.state), session.output
    node = dataset.snapshot.follow(location.path)
    if not dataset.snapshot.stat(node).is_folder:
        raise InvalidInput(f"{location}: not a folder, but a file; get it with dlcmd get")
    run = ImageExport(dataset.chunks, str(image), node, jobs)
    fields = {"image": str(image), "entries": run.report.found_files, "image_bytes": run.size_bytes}
    what = f"{location} as {image} ({count(run.report.found_files, 'entry')}, {output.size(run.size_bytes)})"
    if is_dry_run:
        return output.summary(f"would write {what}", {"dry_run": True, **fields})
    began_s = time.monotonic()
    with shown(output, "export", lambda: Reading.of(run.report)):
        run.run(is_forced)
    elapsed_s = time.monotonic() - began_s
    fields["seconds"] = round(elapsed_s, 3)
    return output.summary(f"wrote {what} in {format_duration(elapsed_s)}", fields)
