"""Exports a folder as an EROFS image. This module writes a file."""

import time

from dieselfs.dataset import Dataset
from dieselfs.errors import InvalidInput
from dieselfs.transfer.image_export import ImageExport
from dieselfs.units import count, format_duration
from dieselfs_tools.archives.exporting.archive_export import ExportOptions
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session


def export(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write the image; returns the exit code."""
    if options.patterns:
        raise InvalidInput("an EROFS image has a whole folder; --include and --exclude need another --format")
    output, image = session.output, options.target
    run = ImageExport(dataset.chunks, image, folder, options.jobs)
    fields = {"image": image, "entries": run.report.found_files, "image_bytes": run.size_bytes}
    what = f"{options.location} as {image} ({count(run.report.found_files, 'entry')}, {output.size(run.size_bytes)})"
    if options.is_dry_run:
        return output.summary(f"would write {what}", {"dry_run": True, **fields})
    began_s = time.monotonic()
    with shown(output, "export", lambda: Reading.of(run.report)):
        run.run(options.is_forced)
    elapsed_s = time.monotonic() - began_s
    fields["seconds"] = round(elapsed_s, 3)
    return output.summary(f"wrote {what} in {format_duration(elapsed_s)}", fields)
