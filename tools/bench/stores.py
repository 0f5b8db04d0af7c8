"""Object stores: chunks put and got, beside what the backend does by itself. This module runs dd and rados.

A folder is compared with dd: as many bytes, in as many streams at once, each 4 MiB on disk before the next. A pool of
Ceph is compared with `rados bench`. Stores in other places than the folder of the benchmarks are named in the
environment variable DIESELFS_BENCH_STORES, separated by spaces: rados://POOL?conf=FILE&user=client.NAME
"""

import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.machine import filesystem_type
from bench.scale import Scale
from bench.stopwatch import measure
from bench.trees import can_drop_caches, drop_caches
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.opening import open_store

STREAMS = 4
RAW_AIM = Aim(Quantity.RATIO, 0.8)
_SECONDS_MAX = "600"


def stores(folder: Path, scale: Scale) -> Generator[Trial]:
    with closing(open_store(f"posix://{folder}/chunks")) as store:
        yield from _trials(store, filesystem_type(folder), scale, _Dd(folder, scale.chunks))
    for url in os.environ.get("DIESELFS_BENCH_STORES", "").split():
        with closing(open_store(url)) as store:
            yield from _trials(store, "rados", scale, _RadosBench(url, scale.chunks))


def _trials(store: ObjectStore, name: str, scale: Scale, raw: "_Dd | _RadosBench") -> Generator[Trial]:
    count = scale.chunks
    chunks = _Chunks(store, count)
    try:
        for title, run, raw_run in (("put", chunks.put, raw.write), ("get", chunks.get, raw.read)):
            amounts = (count, "chunks", count * CHUNK_TARGET_BYTES)
            yield Trial(
                f"{name}: {title} {count} chunks of 4 MiB, {STREAMS} at once",
                [Side("store", run, *amounts, RAW_AIM), Side(raw.name, raw_run, *amounts)],
                scale.rounds,
                base=raw.name,
            )
    finally:
        store.delete_dataset(chunks.dataset_id)
        raw.clean()


class _Chunks:
    """The same chunks in a store, put and got again and again."""

    def __init__(self, store: ObjectStore, count: int) -> None:
        self._store = store
        ids = ChunkIdSource()
        self._chunk_ids = [ids.next() for _ in range(count)]
        self._content = os.urandom(CHUNK_TARGET_BYTES)
        self.dataset_id = secrets.token_bytes(16)

    def put(self) -> Run:
        for chunk_id in self._chunk_ids:
            self._store.delete(self.dataset_id, chunk_id)
        os.sync()
        return measure(
            partial(
                _in_streams,
                lambda chunk_id: self._store.put(self.dataset_id, chunk_id, [self._content]),
                self._chunk_ids,
            )
        )

    def get(self) -> Run:
        _forget()
        return measure(
            partial(
                _in_streams,
                lambda chunk_id: self._store.get_range(self.dataset_id, chunk_id, 0, CHUNK_TARGET_BYTES),
                self._chunk_ids,
            )
        )


def _in_streams(call: Callable[[bytes], object], chunk_ids: Sequence[bytes]) -> None:
    with ThreadPoolExecutor(STREAMS) as threads:
        for _ in threads.map(call, chunk_ids):
            pass


def _forget() -> None:
    if can_drop_caches():
        drop_caches()


class _Dd:
    name = "dd"

    def __init__(self, folder: Path, count: int) -> None:
        self._files = [folder / f"dd-{stream}" for stream in range(STREAMS)]
        self._source = folder / "dd-source"
        self._count = count // STREAMS
        self._source.write_bytes(os.urandom(CHUNK_TARGET_BYTES) * self._count)

    def write(self) -> Run:
        for file in self._files:
            file.unlink(missing_ok=True)
        self._source.read_bytes()
        os.sync()
        return measure(
            lambda: self._all([f"if={self._source}", f"of={file}", "oflag=dsync"] for file in self._files)
        )

    def read(self) -> Run:
        _forget()
        return measure(lambda: self._all([f"if={file}", "of=/dev/null"] for file in self._files))

    def clean(self) -> None:
        for file in (*self._files, self._source):
            file.unlink(missing_ok=True)

    def _all(self, arguments: Generator[list[str]]) -> None:
        running = [
            subprocess.Popen(["dd", f"bs={CHUNK_TARGET_BYTES}", "status=none", *each]) for each in arguments
        ]
        assert [process.wait() for process in running] == [0] * STREAMS


class _RadosBench:
    name = "rados bench"

    def __init__(self, url: str, count: int) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        self._command = ["rados", "-p", parts.netloc]
        self._command += ["-c", *options.get("conf", ["/etc/ceph/ceph.conf"])]
        self._command += ["-n", *options.get("user", ["client.dieselfs"])]
        self._count = count

    def write(self) -> Run:
        self.clean()
        return self._bench("write", "-b", str(CHUNK_TARGET_BYTES), "--no-cleanup")

    def read(self) -> Run:
        return self._bench("seq")

    def clean(self) -> None:
        subprocess.run([*self._command, "cleanup"], check=True, capture_output=True)

    def _bench(self, kind: str, *options: str) -> Run:
        """The time that it states, for as many objects as there are chunks."""
        started_s = time.perf_counter()
        command = [*self._command, "bench", _SECONDS_MAX, kind, "-t", str(STREAMS), *options]
        if kind == "write":
            command += ["--max-objects", str(self._count)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        spent_s = re.search(r"Total time run:\s+([\d.]+)", text)
        made = re.search(r"Total (?:writes|reads) made:\s+(\d+)", text)
        if spent_s is None or made is None or not int(made[1]):
            raise RuntimeError(
                f"rados bench did not end well after {time.perf_counter() - started_s:.0f} s: {text}"
            )
        return Run(float(spent_s[1]) * self._count / int(made[1]))
