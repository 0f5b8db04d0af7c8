"""Exports entries as a folder of files. This module writes files."""

import os
import time

from dieselfs.dataset import Dataset
from dieselfs.snapshot.storage_order import tree_order
from dieselfs.transfer.download import TreeDownload
from dieselfs_tools.archives.exporting.archive_export import ExportOptions, show_export
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.download_runner import report_download
from dieselfs_tools.transfers.trees import selected_nodes


def export(session: Session, dataset: Dataset, folder: int, options: ExportOptions) -> int:
    """Write the entries; returns the exit code."""
    output, started_s = session.output, time.monotonic()
    selected = selected_nodes(dataset.snapshot, folder, options.patterns)
    if options.is_dry_run:
        return show_export(output, tree_order(dataset.snapshot, folder, selected), options)
    download = TreeDownload(
        dataset.chunks,
        folder,
        os.fsencode(options.target),
        jobs=options.jobs,
        is_forced=options.is_forced,
        selected=selected,
    )
    with shown(output, "export", lambda: Reading.of(download.report)):
        download.run()
    return report_download(output, download.report, time.monotonic() - started_s)
