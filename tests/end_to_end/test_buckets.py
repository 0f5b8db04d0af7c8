"""A server over a bucket: killed at any request, its metadata lost, and started with what cannot work."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_UNAVAILABLE, EXIT_USAGE, DieselfsError, Unavailable
from dieselfs.limits import REQUEST_TIMEOUT_S
from tests.support.buckets import BUCKET, REGION, S3Server, needs_gateway, running_gateway, set_credentials
from tests.support.http_proxy import Action, Answer, Pass, Rule, Silence, http_proxy, pass_all
from tests.support.server import RunningServer, running_server, start_server

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("botocore", reason="the extra s3 is not installed")
pytestmark = needs_gateway

END_TIMEOUT_S = 60.0

numbers = random.Random(5)
CONTENTS = {f"folder/{number:02}": numbers.randbytes(50_000) for number in range(20)}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)


def run_server(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "dieselfs_server.main", *options]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=END_TIMEOUT_S, env=environment
    )


def put_all(data: Dataset) -> None:
    for path, content in CONTENTS.items():
        data.put(path, content)
    data.flush()


def read_all(data: Dataset) -> dict[str, bytes]:
    data.refresh()
    return {os.fsdecode(path): bytes(data.get(path)) for path in data.files()}


def test_lost_metadata_is_rebuilt_from_the_bucket(gateway: S3Server, tmp_path: Path) -> None:
    options = ["--store", gateway.url("rebuilt")]
    with (
        running_server(tmp_path / "server", options) as server,
        Dataset(server.settings(), "data", must_exist=False) as data,
    ):
        data.create()
        put_all(data)
        data.delete("folder/07")
        data.flush()
    for file in (tmp_path / "server").glob("metadata.db*"):
        file.unlink()
    expected = {path: content for path, content in CONTENTS.items() if path != "folder/07"}
    with (
        running_server(tmp_path / "server", options) as server,
        Dataset(server.settings(), "data", must_exist=False) as data,
    ):
        data.client.rebuild("data")
        assert read_all(data) == expected
        assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count == 0


def test_a_bucket_that_hangs_costs_a_reader_a_bounded_time(gateway: S3Server, tmp_path: Path) -> None:
    with (
        http_proxy(gateway.endpoint) as proxy,
        running_server(tmp_path / "server", ["--store", gateway.url("hung", proxy.endpoint)]) as server,
        Dataset(server.settings(), "data", must_exist=False) as data,
    ):
        data.create()
        put_all(data)
        data.refresh()
        data.client.be_patient_for(1.0)  # one try, of those that a reader has
        proxy.obey(lambda request, number: Silence())
        started_s = time.monotonic()
        with pytest.raises(Unavailable, match="no answer in time"):
            data.get("folder/03")
        assert time.monotonic() - started_s < REQUEST_TIMEOUT_S
        proxy.obey(pass_all)
        assert data.get("folder/03") == CONTENTS["folder/03"]


def test_what_is_removed_leaves_the_bucket(gateway: S3Server, tmp_path: Path) -> None:
    def chunks() -> list[str]:
        return [key for key in gateway.keys("purged") if "/records/" not in key]

    with (
        running_server(tmp_path / "server", ["--store", gateway.url("purged")]) as server,
        Dataset(server.settings(), "data", must_exist=False) as data,
    ):
        data.create()
        for path in CONTENTS:  # a chunk each
            data.put(path, CONTENTS[path])
            data.flush()
        data.client.put_tag("data", "kept")
        before = chunks()
        assert len(before) >= len(CONTENTS)
        for path in [*CONTENTS][:10]:
            data.delete(path)
        data.flush()
        data.client.delete_tag("data", "kept")
        data.client.purge("data", grace_s=0, is_dry_run=False)
        assert len(set(before) - set(chunks())) == 10
        assert read_all(data) == {path: CONTENTS[path] for path in [*CONTENTS][10:]}
        assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count == 0
        data.client.drop_dataset("data")
        assert chunks() == []


def killing(server: RunningServer, number_at_last: int, is_seen: bool, killed: threading.Event) -> Rule:
    """Kills the server at its request `number_at_last`, before the bucket sees it or after it has carried it out."""

    def rule(request: str, number: int) -> Action:
        if number < number_at_last:
            return Pass()
        if not killed.is_set():
            killed.set()
            if is_seen:
                return Pass(then=server.kill)
            server.kill()
        return Answer(503, "SlowDown")

    return rule


def test_a_server_killed_at_any_request_of_an_upload_leaves_all_or_nothing(
    gateway: S3Server, tmp_path: Path
) -> None:
    """Before the bucket sees the request and after it, on two servers at the same time: each waits for the bucket."""
    with ThreadPoolExecutor(2) as threads:
        kills = [*threads.map(partial(killed_at_each_request, gateway, tmp_path), (False, True))]
    assert min(kills) > 1


def killed_at_each_request(gateway: S3Server, folder: Path, is_seen: bool) -> int:
    """Uploads whose server is killed, each at a later request, until one is whole; how many there were."""
    place = folder / f"server-{is_seen}"
    with http_proxy(gateway.endpoint) as proxy:
        options = ["--store", gateway.url(f"killed-{is_seen}", proxy.endpoint)]
        kills, is_complete = 0, False
        server = start_server(place, options)
        try:
            while not is_complete:
                name, killed = f"data-{kills}", threading.Event()
                with (
                    suppress(DieselfsError),
                    closing(Dataset(server.settings(), name, must_exist=False)) as data,
                ):
                    data.create()
                    proxy.obey(killing(server, kills, is_seen, killed))
                    put_all(data)
                is_complete = not killed.is_set()
                proxy.obey(pass_all)
                server.kill()
                server = start_server(place, options)
                with closing(Dataset(server.settings(), name)) as data:
                    data.client.rebuild(name)
                    found = read_all(data)
                    assert found in ({}, CONTENTS) and (found or not is_complete)
                    assert data.client.fsck(name, is_deep=True, is_repair=False).problem_count == 0
                kills += 1
        finally:
            proxy.obey(pass_all)
            server.kill()
        return kills


@pytest.mark.parametrize(
    ("url", "secret_key", "exit_code", "line"),
    [
        (
            "s3://{bucket}/x?endpoint={endpoint}",
            "wrong",
            EXIT_UNAVAILABLE,
            "403 SignatureDoesNotMatch; check the cred",
        ),
        (
            "s3://absent?endpoint={endpoint}",
            None,
            EXIT_UNAVAILABLE,
            "404 NoSuchBucket; create the bucket first",
        ),
        ("s3://{bucket}?endpoint=http://127.0.0.1:1", None, EXIT_UNAVAILABLE, "Connection refused"),
        ("s3://{bucket}?key=hush", None, EXIT_USAGE, "unknown option 'key'"),
    ],
)
def test_a_server_that_cannot_use_its_bucket_says_so_in_one_line(
    url: str,
    secret_key: str | None,
    exit_code: int,
    line: str,
    gateway: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if secret_key:
        set_credentials(monkeypatch, secret_key=secret_key)
    monkeypatch.setenv("AWS_REGION", REGION)
    store = url.format(bucket=BUCKET, endpoint=gateway.endpoint)
    done = run_server("--init", "--store", store, "--metadata", f"sqlite://{tmp_path}/metadata.db")
    assert done.returncode == exit_code
    (said,) = done.stderr.splitlines()
    assert said.startswith("dieselfs-server: ") and line in said and "hush" not in said
