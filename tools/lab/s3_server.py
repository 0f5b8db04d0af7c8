"""Ceph's radosgw, an S3 server that always ends, and what clients need of any S3 server.

Needs Debian's radosgw beside the packages of `lab.ceph`.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from lab.ceph import RunningCeph, missing_ceph, run_command, running_daemon
from lab.ports import HOST, free_port

START_TIMEOUT_S = 60.0
ACCESS_KEY, SECRET_KEY = "TESTACCESSKEY", "test-secret-key"
BUCKET = "data"
REGION = "us-east-1"

_GATEWAY = """\
[client.rgw]
keyring = {folder}/rgw.keyring
rgw_data = {folder}/rgw
rgw_frontends = beast endpoint={address}:{port} tcp_nodelay=1 {frontend}
rgw_thread_pool_size = 32
rgw_rados_pool_pg_num_min = 1
"""


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


def missing_gateway() -> str | None:
    """The reason why radosgw cannot run here; None if it can."""
    for program in ("radosgw", "radosgw-admin"):
        if shutil.which(program) is None:
            return f"{program} is not installed (package radosgw)"
    return missing_ceph()


@contextmanager
def running_gateway(ceph: RunningCeph, address: str = HOST, frontend: str = "") -> Iterator[S3Server]:
    """radosgw over a cluster with CEPHX, in the network namespace of this thread, until the end of the block.

    `frontend`: more options of its HTTP server, beast.
    """
    port, folder = free_port(), ceph.folder
    with open(ceph.conf, "a") as conf:
        conf.write(_GATEWAY.format(folder=folder, address=address, port=port, frontend=frontend))
    keyring = folder / "rgw.keyring"
    keyring.touch(mode=0o600)
    rights = ["--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"]
    run_command(["ceph-authtool", str(keyring), "--gen-key", "-n", "client.rgw", *rights])
    ceph.command("auth", "add", "client.rgw", "-i", str(keyring))
    command = ["radosgw", "-c", ceph.conf, "-n", "client.rgw", "-f"]
    with running_daemon(command, folder / "rgw.out") as process:
        server = S3Server(f"http://{address}:{port}", process=process.pid)
        wait_until_it_answers(server, process)
        keys = [f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"]
        user = ["--uid=test", "--display-name=test", *keys]
        run_command(["radosgw-admin", "-c", ceph.conf, "user", "create", *user])
        server.client().create_bucket(Bucket=BUCKET)
        yield server


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
