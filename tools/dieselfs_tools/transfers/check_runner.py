"""The work of `dlcmd check`. This module reads files."""

import os

from dieselfs.errors import InvalidInput
from dieselfs.names import Location
from dieselfs.transfer.report import TransferReport
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.differences import differences, print_differences
from dieselfs_tools.transfers.sources import find_sources
from dieselfs_tools.transfers.trees import LocalTree, StoredTree


def run_check(
    session: Session,
    name: str,
    location: Location,
    patterns: Patterns,
    is_quick: bool,
) -> int:
    """Compare a local folder with the place that `put -r` gives it; returns the exit code.

    Raises NotFound if the folder, the dataset or the place in it is missing.
    """
    if os.path.exists(name) and not os.path.isdir(name):
        raise InvalidInput(f"{name} is not a folder: compare the folder that has it, with --include /NAME")
    (source,) = find_sources([name], location, is_into=True, is_recursive=True)
    snapshot = session.dataset(location.state).snapshot
    stored, local = StoredTree(snapshot, source.path), LocalTree(source, patterns)

    wanted, report = stored.selected(patterns), TransferReport(is_all_found=True)
    for path in local.entries.keys() & wanted.keys() if not is_quick else ():
        here = local.entries[path]
        if (here.type, here.size) == ("file", wanted[path].size):
            report.find(here.size, is_folder=False)

    def has_same_content(path: bytes) -> bool:
        if is_quick:
            return True
        is_same = local.has_content(path, snapshot.extents(stored.nodes[path]))
        report.done_files += 1
        report.done_bytes += wanted[path].size
        return is_same

    with shown(session.output, "check", lambda: Reading.of(report)):
        found = list(differences(wanted, local.entries, has_same_content))
    different = (one for one in found if local.place(one.entry.path) not in local.unread)
    return print_differences(session.output, different, len(wanted), local.failures)
