"""Mounts of one job of an encrypted dataset, each as on a node of its own: every chunk leaves the server once.
`tests/cluster` says the same of a plain dataset, and what a lost node costs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.limits import MIB
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.mount.points.options import MountOptions
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

FILES = 400
FILE_BYTES = 100_000
CHUNKS = FILES * FILE_BYTES // (4 * MIB) + 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIESELFS_IDENTITY", str(server.settings().home / "identity"))
        with Dataset(server.settings(), "job", must_exist=False) as data:
            data.client.encrypt(data.create())
            for number in range(FILES):
                data.put(f"{number}", content(number))
        yield server


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (FILE_BYTES // 4)


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # of a machine of its own
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("0123456789abcdef" * 4)
    return path


def options(server: RunningServer, secret: Path, number: int, nodes: int, **more: Any) -> MountOptions:
    return MountOptions(
        server=server.unix,
        memory_bytes=256 * MIB,
        log_file=str(secret.parent / f"mount-{number}.log"),
        job="training",
        job_nodes=nodes,
        job_node=f"node-{number}",
        job_rank=number,
        job_host="127.0.0.1",
        job_secret=str(secret),
        **more,
    )


@pytest.fixture
def mountpoints(tmp_path: Path) -> Iterator[list[Path]]:
    places = [tmp_path / f"mount-{number}" for number in range(3)]
    for place in places:
        place.mkdir()
    yield places
    for place in places:
        while mount_at(str(place)) is not None:
            unmount(str(place), lazily=True)


_MOUNT = """
import sys
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions, parse_options
control.mount("job", sys.argv[1], parse_options(sys.argv[2], MountOptions()))
"""


def mount_together(server: RunningServer, secret: Path, places: list[Path], **more: Any) -> None:
    """They wait for each other, so they are mounted at the same time."""
    from dieselfs_client.mount.points.options import format_options

    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        _MOUNT,
                        str(place),
                        format_options(options(server, secret, number, len(places), **more)),
                    ],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                )
            )
            for number, place in enumerate(places)
        ]
        assert [process.wait(100) for process in running] == [0] * len(places)


def read_all(place: Path) -> None:
    for number in range(FILES):
        assert (place / str(number)).read_bytes() == content(number)


def job_stats(place: Path) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads((place / ".dieselfs/stats").read_text())
    return stats


def loads(places: list[Path]) -> int:
    """Chunks that left the server."""
    stats = [job_stats(place) for place in places]
    return sum(each["node_cache"]["fetched_chunks"] + each["requested"]["from_servers"] for each in stats)


def test_every_chunk_leaves_the_server_once(
    server: RunningServer, secret: Path, mountpoints: list[Path]
) -> None:
    mount_together(server, secret, mountpoints)
    for place in mountpoints:
        read_all(place)
    assert loads(mountpoints) == CHUNKS
    for number, place in enumerate(mountpoints):
        stats = job_stats(place)
        assert (
            stats["job"]["members"] == ["node-0", "node-1", "node-2"]
            and stats["job"]["node"] == f"node-{number}"
        )
        assert stats["requested"]["from_peers"] > 0 and stats["requested"]["failed"] == 0
    assert sum(job_stats(place)["job"]["own_chunks"] for place in mountpoints) == CHUNKS


def test_oneshot_brings_the_dataset_into_the_pool_before_it_is_read(
    server: RunningServer, secret: Path, mountpoints: list[Path]
) -> None:
    places = mountpoints[:2]
    mount_together(server, secret, places, policy="oneshot")
    deadline_s = time.monotonic() + 60
    # A node is warm, too, while it does not know the other one, and owns nothing yet.
    while loads(places) < CHUNKS or any(job_stats(place)["job"]["warmth"] < 1 for place in places):
        assert time.monotonic() < deadline_s, [job_stats(place)["job"] for place in places]
        time.sleep(0.05)
    assert loads(places) == CHUNKS
    read_all(places[0])
    assert loads(places) == CHUNKS


def test_what_a_job_needs_is_said_when_it_is_missing(
    server: RunningServer, secret: Path, mountpoints: list[Path]
) -> None:
    with pytest.raises(InvalidInput, match="job=NAME"):
        control.mount("job", mountpoints[0], MountOptions(server=server.unix, job="auto"))
    with pytest.raises(InvalidInput, match="job_secret=FILE"):
        control.mount("job", mountpoints[0], MountOptions(server=server.unix, job="training"))
    secret.chmod(0o644)
    with pytest.raises(AccessDenied, match="can be read by others"):
        control.mount("job", mountpoints[0], options(server, secret, 0, 1))
