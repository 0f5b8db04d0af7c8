"""Ceph's radosgw over a cluster in memory, on loopback, which always ends; and credentials for S3.

Needs Debian's radosgw beside the packages of `lab.ceph`.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lab.ceph import CEPHX, missing_ceph, run_command, running_ceph, running_daemon
from lab.s3_server import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    S3Server,
    rclone_program,
    running_rclone,
    wait_until_it_answers,
)
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

_GATEWAY = """\
[client.rgw]
keyring = {folder}/rgw.keyring
rgw_data = {folder}/rgw
rgw_frontends = beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{tls_port} ssl_certificate={certificate} \\
    ssl_private_key={key} tcp_nodelay=1
rgw_thread_pool_size = 32
rgw_rados_pool_pg_num_min = 1
"""


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
            wait_until_it_answers(server, process)
            user = [
                "--uid=test",
                "--display-name=test",
                f"--access-key={ACCESS_KEY}",
                f"--secret-key={SECRET_KEY}",
            ]
            run_command(["radosgw-admin", "-c", ceph.conf, "user", "create", *user])
            server.client().create_bucket(Bucket=BUCKET)
            yield server
