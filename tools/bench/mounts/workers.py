"""The memory of chunks that the workers of a DataLoader take together, who read with the library. This module reads
`/proc`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench.harness.figures import Row, RunFailed, Scale
from bench.harness.forms import SMALL_FILE_BYTES, Home, make_tree, running_home, shuffled, store_tree
from bench.harness.readers import READ_TIMEOUT_S, ForkedProcess, get_batches
from dieselfs.limits import KIB, MIB

WORKERS = (1, 8, 32)
BATCH_FILES = 256
SEGMENT = "dieselfs-chunk"
"""Memory of a chunk that processes share has this name."""


def workers(folder: Path, scale: Scale) -> Iterator[Iterator[Row]]:
    """One table: proportional set sizes after each worker has read each file, in MB of 2^20 bytes. `chunks`: shared
    memory of chunks; `own`: all other memory of the workers, with the interpreter and modules.
    """
    tree = make_tree(folder / "source", scale.small_files // 4, SMALL_FILE_BYTES)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        yield _rows(home, shuffled(tree.paths()), tree.size_bytes)


def _rows(home: Home, paths: list[str], size_bytes: int) -> Iterator[Row]:
    for count in WORKERS:
        with home.dataset(), ExitStack() as stack:  # its connection keeps the server, which has the chunks
            started = [
                stack.enter_context(closing(ForkedProcess(partial(_read, home, paths)))) for _ in range(count)
            ]
            for process in started:
                process.receive(READ_TIMEOUT_S)
            sizes = [_pss_bytes(process.pid) for process in started]
            server_bytes, _ = _pss_bytes(home.server_process())
            chunk_bytes = server_bytes + sum(chunks for chunks, _ in sizes)
            yield {
                "workers": count,
                "dataset, MiB": (size_bytes / MIB, "{:.1f}"),
                "chunks, MiB": (chunk_bytes / MIB, "{:.1f}"),
                "own, MiB each": (sum(own for _, own in sizes) / count / MIB, "{:.1f}"),
            }


def _read(home: Home, paths: list[str], pipe: Connection) -> None:
    with home.dataset() as dataset:
        if get_batches(dataset.get_many, BATCH_FILES, paths) != len(paths):
            raise RunFailed("a worker has not read all files")
        pipe.send(None)
        pipe.recv()


def _pss_bytes(process: int) -> tuple[int, int]:
    """Its memory of chunks, and all other; shared pages count in part."""
    sizes = [0, 0]
    is_other = True
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if line.startswith("Pss:"):
            sizes[is_other] += int(line.split()[1]) * KIB
        elif "-" in line.split(" ", 1)[0]:  # the head of a mapping: addresses first
            is_other = SEGMENT not in line
    return sizes[0], sizes[1]
