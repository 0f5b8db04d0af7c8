"""One server with one and with two workers: chunks, ranges and `stat` a second for clients over TCP with TLS.

All servers run at once over data of their own, and one is asked at a time. Clients share this machine's processors, so
the processor seconds of the server matter more than its rate. This module starts processes.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import LARGE_FILE_BYTES
from bench.harness.readers import Work, read_together
from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES, KIB
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from lab.server import running_server

WORKERS = (1, 2)
CLIENTS = 4
"""Processes with a connection each; divisible by each number of workers."""
DATASET = "bench"
CHUNKS = 16
FILES_PER_CHUNK = CHUNK_TARGET_BYTES // LARGE_FILE_BYTES
RANGES_PER_REQUEST = 8
_BUFFER_BYTES = 256 * KIB


class _Chunks(NamedTuple):
    ids: list[bytes]
    lengths: list[int]


Ask = Callable[[ServerClient, _Chunks, int], int]
"""Asks for something by its number; returns the bytes received."""


def _chunk(client: ServerClient, chunks: _Chunks, number: int) -> int:
    """A whole payload, into the same memory again and again."""
    place, memory = number % len(chunks.ids), memoryview(bytearray(_BUFFER_BYTES))
    length = chunks.lengths[place]
    parts = [memory[: min(_BUFFER_BYTES, length - start)] for start in range(0, length, _BUFFER_BYTES)]
    client.payload_in_parts(DATASET, chunks.ids[place], length, lambda: iter(parts), is_sent=True)
    return length


def _ranges(client: ServerClient, chunks: _Chunks, number: int) -> int:
    """Every fourth file of a chunk, as a node of a job asks for its share."""
    place = number % len(chunks.ids)
    starts = np.arange(RANGES_PER_REQUEST, dtype=np.uint32) * 4 * LARGE_FILE_BYTES
    ranges = np.stack((starts, np.full_like(starts, LARGE_FILE_BYTES)), axis=1)
    return len(client.ranges(DATASET, chunks.ids[place], ranges))


def _stat(client: ServerClient, chunks: _Chunks, number: int) -> int:
    client.stat(DATASET, b"folder/%d" % (number % (CHUNKS * FILES_PER_CHUNK)))
    return 0


ASKING: dict[str, tuple[Ask, float, int]] = {
    "chunks of 4 MB": (_chunk, 0.1, CHUNK_TARGET_BYTES),
    f"requests of {RANGES_PER_REQUEST} ranges of 110 kB": (
        _ranges,
        0.2,
        RANGES_PER_REQUEST * LARGE_FILE_BYTES,
    ),
    "stat of a file": (_stat, 1.0, 0),
}
"""How to ask, the share of `Scale.requests`, and about how many bytes each gives."""


def server_workers(folder: Path, scale: Scale) -> Generator[Trial]:
    with ExitStack() as stack:
        servers: dict[int, tuple[Settings, int]] = {}
        for workers in WORKERS:
            running = stack.enter_context(running_server(folder / f"{workers}", ("--workers", f"{workers}")))
            servers[workers] = (
                running.settings(running.user("bench", all_datasets="admin")),
                running.process.pid,
            )
        chunks = {workers: _stored(settings) for workers, (settings, _) in servers.items()}
        for title, (ask, share, size_bytes) in ASKING.items():
            asked = max(int(scale.requests * share) // CLIENTS, 1)
            sides = []
            for workers, (settings, process) in servers.items():
                clients = [
                    partial(_client, settings, chunks[workers], number, ask, asked)
                    for number in range(CLIENTS)
                ]
                run: Callable[[], Run] = partial(
                    read_together, clients, asked * CLIENTS, {"server": [process]}
                )
                name = f"{workers} worker{'s' if workers > 1 else ''}"
                sides.append(Side(name, run, asked * CLIENTS, "requests", asked * CLIENTS * size_bytes))
            yield Trial(f"{title}, {CLIENTS} clients, TLS", sides, scale.rounds, base=sides[0].name)


def _stored(settings: Settings) -> _Chunks:
    """A dataset of full chunks."""
    content = np.random.default_rng(1).bytes(LARGE_FILE_BYTES)
    with Dataset(settings, DATASET, must_exist=False) as dataset:
        for number in range(CHUNKS * FILES_PER_CHUNK):
            dataset.put(f"folder/{number}", content)
    with Dataset(settings, DATASET) as dataset:
        snapshot = dataset.snapshot
        lengths = [snapshot.chunk_payload_length(chunk) for chunk in range(snapshot.chunk_count)]
        places = [place for place, length in enumerate(lengths) if length > CHUNK_TARGET_BYTES * 3 // 4]
        return _Chunks([snapshot.chunk_id(place) for place in places], [lengths[place] for place in places])


def _client(settings: Settings, chunks: _Chunks, start: int, ask: Ask, requests: int) -> Work:
    client = ServerClient(settings, start)
    ask(client, chunks, 0)  # connects

    def ask_all() -> int:
        for number in range(requests):
            ask(client, chunks, start * requests + number)
        return requests

    return ask_all
