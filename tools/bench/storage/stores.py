"""Chunks put to and read from object stores, compared with the backend alone. This module runs dd and rados.

A folder is compared with dd: equal bytes in equal streams, each block of 4 MiB synced. A Ceph pool is compared with
`rados bench`, a bucket with botocore. The environment variable DIESELFS_BENCH_STORES names further stores, separated by
spaces: rados://POOL?conf=FILE&user=client.NAME, s3://BUCKET/PREFIX?endpoint=URL&region=NAME
"""

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import drop_caches, filesystem_type
from bench.harness.stopwatch import measure
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.opening import open_store

STREAMS = 4
_SECONDS_MAX = "600"


def stores(folder: Path, scale: Scale) -> Generator[Trial]:
    with closing(open_store(f"posix://{folder}/chunks", is_new=True)) as store:
        yield from _trials(store, filesystem_type(folder), scale, _Dd(folder, scale.chunks))
    for url in os.environ.get("DIESELFS_BENCH_STORES", "").split():
        with closing(open_store(url, is_new=True)) as store:
            kind = urlsplit(url).scheme
            raw = _Botocore(url, scale.chunks) if kind == "s3" else _RadosBench(url, scale.chunks)
            yield from _trials(store, kind, scale, raw)


def _trials(
    store: ObjectStore, name: str, scale: Scale, raw: "_Dd | _RadosBench | _Botocore"
) -> Generator[Trial]:
    """Each round puts and reads the same chunks."""
    ids, dataset_id, content = ChunkIdSource(), secrets.token_bytes(16), os.urandom(CHUNK_TARGET_BYTES)
    chunk_ids = [ids.next() for _ in range(scale.chunks)]

    def in_streams(call: Callable[[bytes], object]) -> Run:
        with ThreadPoolExecutor(STREAMS) as threads:
            return measure(lambda: [*threads.map(call, chunk_ids)].clear())

    def put() -> Run:
        for chunk_id in chunk_ids:
            store.delete(dataset_id, chunk_id)
        os.sync()
        return in_streams(lambda chunk_id: store.put(dataset_id, chunk_id, [content]))

    def get() -> Run:
        drop_caches()
        return in_streams(lambda chunk_id: len(store.get_range(dataset_id, chunk_id, 0, CHUNK_TARGET_BYTES)))

    try:
        for title, run, raw_run in (("put", put, raw.write), ("get", get, raw.read)):
            amounts = (scale.chunks, "chunks", scale.chunks * CHUNK_TARGET_BYTES)
            sides = [Side("store", run, *amounts), Side(raw.name, raw_run, *amounts)]
            title = f"{name}: {title} {scale.chunks} chunks of 4 MiB, {STREAMS} at once"
            yield Trial(title, sides, scale.rounds, raw.name)
    finally:
        store.delete_dataset(dataset_id)
        raw.clean()


class _Dd:
    name = "dd"

    def __init__(self, folder: Path, count: int) -> None:
        self._files = [folder / f"dd-{stream}" for stream in range(STREAMS)]
        self._source = folder / "dd-source"
        self._source.write_bytes(os.urandom(CHUNK_TARGET_BYTES) * (count // STREAMS))

    def write(self) -> Run:
        for file in self._files:
            file.unlink(missing_ok=True)
        self._source.read_bytes()
        os.sync()
        return measure(
            lambda: self._all([f"if={self._source}", f"of={file}", "oflag=dsync"] for file in self._files)
        )

    def read(self) -> Run:
        drop_caches()
        return measure(lambda: self._all([f"if={file}", "of=/dev/null"] for file in self._files))

    def clean(self) -> None:
        for file in (*self._files, self._source):
            file.unlink(missing_ok=True)

    def _all(self, arguments: Iterable[list[str]]) -> None:
        command = ["dd", f"bs={CHUNK_TARGET_BYTES}", "status=none"]
        running = [subprocess.Popen([*command, *each]) for each in arguments]
        assert [process.wait() for process in running] == [0] * STREAMS


class _RadosBench:
    name = "rados bench"

    def __init__(self, url: str, count: int) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        self._command = ["rados", "-p", parts.netloc, "-c", *options.get("conf", ["/etc/ceph/ceph.conf"])]
        self._command += ["-n", *options.get("user", ["client.dieselfs"])]
        self._count = count

    def write(self) -> Run:
        self.clean()
        objects = ("--max-objects", str(self._count))
        return self._bench("write", "-b", str(CHUNK_TARGET_BYTES), "--no-cleanup", *objects)

    def read(self) -> Run:
        return self._bench("seq")

    def clean(self) -> None:
        subprocess.run([*self._command, "cleanup"], check=True, capture_output=True)

    def _bench(self, kind: str, *options: str) -> Run:
        """Its reported time, scaled to the number of chunks."""
        command = [*self._command, "bench", _SECONDS_MAX, kind, "-t", str(STREAMS), *options]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        spent_s = re.search(r"Total time run:\s+([\d.]+)", text)
        made = re.search(r"Total (?:writes|reads) made:\s+(\d+)", text)
        if spent_s is None or made is None or not int(made[1]):
            raise RunFailed(f"rados bench printed no result: {text}")
        return Run(float(spent_s[1]) * self._count / int(made[1]))


class _Botocore:
    """The SDK that the AWS tools for Python use."""

    name = "botocore"

    def __init__(self, url: str, count: int) -> None:
        from botocore.config import Config
        from botocore.session import Session

        self._bucket = urlsplit(url).netloc
        options = dict(parse_qsl(urlsplit(url).query))
        self._client = Session().create_client(
            "s3",
            endpoint_url=options.get("endpoint"),
            region_name=options.get("region", "us-east-1"),
            config=Config(max_pool_connections=STREAMS),
        )
        self._keys = [f"botocore-{number}" for number in range(count)]
        self._content = os.urandom(CHUNK_TARGET_BYTES)

    def write(self) -> Run:
        self.clean()
        return self._all(
            lambda key: self._client.put_object(Bucket=self._bucket, Key=key, Body=self._content)
        )

    def read(self) -> Run:
        return self._all(lambda key: self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read())

    def clean(self) -> None:
        self._all(lambda key: self._client.delete_object(Bucket=self._bucket, Key=key))

    def _all(self, call: Callable[[str], object]) -> Run:
        with ThreadPoolExecutor(STREAMS) as threads:
            return measure(lambda: [*threads.map(call, self._keys)].clear())
