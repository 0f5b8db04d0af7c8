"""What a step waits with the four strategies of "Asynchronous I/O Strategy for Large-Scale Deep Learning Applications".

Tables II to V, figures 9 and 10. Batches come through the library from a store behind a pipe of a certain rate, and a
step computes by sleeping. Files are read one by one or a buffer at a time, when they are needed or ahead. The steps of
the largest buffer are left out at the beginning. This module starts processes and threads.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import DATASET, make_tree
from bench.papers.deepio import SlowFiles, store_order
from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.settings import Settings
from lab.server import running_server, upload

EXPOSED = "exposed, ms a step"
BATCH, FILE_BYTES = 32, 16_000
RATE = 50e6
"""Bytes a second of the store: a batch takes 10 ms and the time of its requests."""
COMPUTING_S = 0.01
FULL_STEPS, QUICK_STEPS = 256, 40
BUFFERS = (1, 2, 4, 16)
"""Batches."""
AHEAD = 4
"""Batches, of the strategy without a buffer. With two buffers, one is read ahead."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """`buffer`: batches that are read together; 0 reads file by file."""

    buffer: int
    is_ahead: bool


STRATEGIES = {
    "file by file": Strategy(0, False),
    "file by file, ahead": Strategy(0, True),
    "a buffer": Strategy(4, False),
    "two buffers": Strategy(4, True),
}


def buffer_name(batches: int) -> str:
    return f"two buffers of {batches} batch{'es' if batches > 1 else ''}"


def strategies(folder: Path, scale: Scale) -> Generator[Trial]:
    steps = QUICK_STEPS if scale.is_quick else FULL_STEPS
    tree = make_tree(folder / "source", steps * BATCH, FILE_BYTES)
    # Chunks that a server shares would not come through the pipe.
    with running_server(folder / "server", ["--shared-memory", "0"]) as server:
        settings = server.settings()
        with Dataset(settings, DATASET, must_exist=False) as data:
            upload(data, tree.folder)

        def side(name: str, strategy: Strategy) -> Side:
            return Side(name, partial(_epoch, settings, strategy), tree.files, "files", tree.size_bytes)

        title = f"{tree.title}, batches of {BATCH}, {1e3 * COMPUTING_S:g} ms a step"
        of_each = [side(name, strategy) for name, strategy in STRATEGIES.items()]
        yield Trial(f"{title}, strategies", of_each, scale.rounds, of_each[0].name)
        sizes = [side(buffer_name(batches), Strategy(batches, True)) for batches in BUFFERS]
        yield Trial(f"{title}, sizes of buffers", sizes, scale.rounds, sizes[0].name)


def _epoch(settings: Settings, strategy: Strategy) -> Run:
    waited_s = []
    with Dataset(settings, DATASET, memory_bytes=4 * CHUNK_TARGET_BYTES) as data, ExitStack() as stack:
        files, plan = SlowFiles(data, RATE), data.plan(seed=1, group_chunks=0)
        batches = _batches(files, store_order(plan)[0].tolist(), strategy.buffer)
        if strategy.is_ahead:
            batches = _ahead(batches, strategy.buffer or AHEAD, stack)
        started_s = time.perf_counter()
        while True:
            before_s = time.perf_counter()
            if next(batches, None) is None:
                break
            waited_s.append(time.perf_counter() - before_s)
            time.sleep(COMPUTING_S)
        duration_s = time.perf_counter() - started_s
    counted = waited_s[BUFFERS[-1] :]
    return Run(duration_s, seen={EXPOSED: 1e3 * sum(counted) / len(counted)})


def _batches(files: SlowFiles, nodes: Sequence[int], buffer: int) -> Iterator[list[bytes]]:
    step = max(buffer, 1) * BATCH
    for first in range(0, len(nodes), step):
        part = nodes[first : first + step]
        contents = files.get_nodes(part) if buffer else [files.get_nodes([node])[0] for node in part]
        for start in range(0, len(part), BATCH):
            yield contents[start : start + BATCH]


def _ahead(batches: Iterator[list[bytes]], depth: int, stack: ExitStack) -> Iterator[list[bytes]]:
    """The same batches, of which a thread reads `depth` ahead. The block of `stack` waits for its end."""
    queue: Queue[list[bytes] | None] = Queue(depth)

    def read() -> None:
        for each in batches:
            queue.put(each)
        queue.put(None)

    thread = Thread(target=read, daemon=True)
    thread.start()
    stack.callback(thread.join)
    return iter(queue.get, None)
