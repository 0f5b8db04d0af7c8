"""The memory of the processes of a mount that nobody reads, in each view. This module reads `/proc`."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bench.harness.figures import Row, Scale
from bench.harness.forms import SMALL_FILE_BYTES, VIEWS, Home, make_tree, mounted, running_home, store_tree
from dieselfs.errors import MountError
from dieselfs.limits import KIB, MIB
from lab.mount_processes import processes_of

FILES = 1000
SETTLE_S = 4.0
"""The keeper, and the push of the metadata, come after the mount is ready."""


def idle(folder: Path, scale: Scale) -> Iterator[Iterator[Row]]:
    """One table: the proportional set size of each process, in MB of 2^20 bytes, and the sum."""
    tree = make_tree(folder / "source", FILES, SMALL_FILE_BYTES)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        yield _rows(home, folder)


def _rows(home: Home, folder: Path) -> Iterator[Row]:
    for view in VIEWS:
        with suppress(MountError), mounted(home, folder / view, view=view):
            time.sleep(SETTLE_S)
            found = {
                kind: sum(map(_pss_bytes, processes)) / MIB
                for kind, processes in processes_of(folder / view).items()
            }
            cells = {f"{kind}, MiB": (size, "{:.1f}") for kind, size in found.items()}
            yield {"view": view, **cells, "all, MiB": (sum(found.values()), "{:.1f}")}


def _pss_bytes(process: int) -> int:
    """Its memory, of which shared pages count in part."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) * KIB if found else 0
