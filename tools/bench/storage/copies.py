"""Copies inside an embedded server: of all files, so that the copy refers to the chunks, and of all but a file of each
chunk, so that the bytes are copied. This module reads `/proc`.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import DATASET, LARGE_FILE_BYTES, Home, make_tree, running_home, store_tree
from bench.harness.stopwatch import measure
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB
from dieselfs.rpc.records import CopyRequest

_LEFT_OUT = CHUNK_TARGET_BYTES // LARGE_FILE_BYTES // 2
"""Of as many files, one is left out: two of each chunk."""


def copies(folder: Path, scale: Scale) -> Generator[Trial]:
    tree, numbers = make_tree(folder / "source", scale.large_files, LARGE_FILE_BYTES), count()
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        with home.dataset() as dataset:
            generation, nodes = dataset.snapshot.generation, len(dataset.snapshot)
        bits = np.ones(-(-nodes // 8) * 8, np.uint8)
        bits[nodes:] = 0
        bits[nodes % _LEFT_OUT : nodes : _LEFT_OUT] = 0
        some = np.packbits(bits, bitorder="little").tobytes()

        def copied(selection: bytes) -> Run:
            target = f"copy-{next(numbers)}"
            base = CopyRequest(DATASET, b"", target, b"", is_merged=True)
            request = base._replace(selection=selection, generation=generation) if selection else base
            return _copied(home, request)

        ways = {"the bytes are copied": some, "the chunks are referred to": b""}
        sides = [
            Side(name, partial(copied, selection), tree.files, "files", tree.size_bytes)
            for name, selection in ways.items()
        ]
        yield Trial(f"Copies inside a server of {tree.title}", sides, scale.rounds, "the bytes are copied")


def _copied(home: Home, request: CopyRequest) -> Run:
    with home.dataset() as dataset:
        client, process = dataset.client, home.server_process()
        client.ensure_dataset(request.target_dataset)
        before = _written_bytes(process)
        run = measure(lambda: client.copy_entries(request), {"server": [process]})
        written = _written_bytes(process) - before
        client.drop_dataset(request.target_dataset)
    if not written:
        raise RunFailed("the server has written nothing")
    return replace(run, seen={"MiB written": written / MIB})


def _written_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])
