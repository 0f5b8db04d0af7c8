"""The main job over every kind of object store, by a server of its own: compressed upload, mount, compare; and
trouble.
"""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dieselfs.chunk.format import PREAMBLE_BYTES
from dieselfs.chunk.frames import Compression
from dieselfs.chunk.ids import parse_chunk_name
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, StorageFull, Unavailable
from dieselfs.limits import LOST_MACHINE_S
from dieselfs.transfer.upload import TreeUpload, walk_source
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_server.datasets.commit import read_header
from dieselfs_server.store.posix import PosixStore
from lab.ceph import CEPHX, running_ceph
from tests.support.buckets import needs_gateway, running_gateway, set_credentials
from tests.support.ceph import needs_ceph
from tests.support.server import RunningServer, running_server
from tests.support.small_disk import small_disk
from tests.support.trees import odd_tree

FILES = 400
CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = odd_tree(tmp_path_factory.mktemp("source") / "tree")
    numbers = random.Random(3)
    (root / "many").mkdir()
    for number in range(FILES):
        size = numbers.randrange(1, 60_000)
        content = numbers.randbytes(size) if number % 2 else b"line of a text\n" * (size // 15)
        (root / "many" / f"{number:04}").write_bytes(content)
    return root


@contextmanager
def uploaded(
    server: RunningServer, source: Path, compression: Compression | None = None
) -> Iterator[Dataset]:
    with Dataset(server.settings(), "data", must_exist=False) as dataset:
        upload = TreeUpload(
            dataset.client, dataset.create(), None, chunk_bytes=CHUNK_BYTES, compression=compression
        )
        report = upload.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
        assert not report.failures
        assert (report.sent_bytes < 0.8 * report.done_bytes) == (compression is not None)
        dataset.refresh()
        yield dataset


def check_mount(server: RunningServer, source: Path, folder: Path) -> None:
    """Mount the dataset; every byte of every file is as in the source."""
    mountpoint = folder / "mount"
    mountpoint.mkdir()
    control.mount("data", mountpoint, MountOptions(server=server.unix, log_file=str(folder / "mount.log")))
    try:
        command = ["diff", "-r", "--no-dereference", str(source), str(mountpoint)]
        compared = subprocess.run(command, capture_output=True, check=False)
        assert compared.returncode == 0, compared.stdout[-2000:]
    finally:
        control.unmount(mountpoint)


@contextmanager
def ceph_url(folder: Path) -> Iterator[str]:
    with running_ceph(folder / "ceph", CEPHX) as ceph:
        ceph.make_pool("data")
        yield ceph.url("data")


@contextmanager
def s3_url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    set_credentials(monkeypatch)
    with running_gateway(folder / "gateway") as gateway:
        yield gateway.url("chunks")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("rados", marks=needs_ceph),
        pytest.param("s3", marks=needs_gateway),
        "tiered",
        pytest.param("tiered rados", marks=needs_ceph),
        pytest.param("tiered s3", marks=needs_gateway),
    ],
)
def test_what_was_uploaded_is_mounted_and_the_same(
    kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        slow = f"posix://{tmp_path}/slow"
        if "rados" in kind:
            slow = stack.enter_context(ceph_url(tmp_path))
        elif "s3" in kind:
            slow = stack.enter_context(s3_url(tmp_path, monkeypatch))
        tiered = f"tiered:fast=posix://{tmp_path}/fast,slow={slow},size=1GiB"
        options = ["--store", tiered if "tiered" in kind else slow]
        with running_server(tmp_path / "server", options) as server:
            with uploaded(server, source, Compression()):
                check_mount(server, source, tmp_path)
            assert not (tmp_path / "server" / "chunks").exists()
        with running_server(tmp_path / "server", options) as server:  # and after a new start
            (tmp_path / "again").mkdir()
            check_mount(server, source, tmp_path / "again")


DAMAGES = (
    "missing",
    "empty",
    "truncated",
    "preamble flipped",
    "header flipped",
    "payload flipped",
    "another chunk's",
)


def damage(path: Path, other: bytes, kind: str) -> None:
    """Spoil the object of a chunk."""
    content = bytearray(path.read_bytes())
    match kind:
        case "missing":
            path.unlink()
            return
        case "empty":
            content.clear()
        case "truncated":
            del content[len(content) // 2 :]
        case "preamble flipped":
            content[17] ^= 4
        case "header flipped":
            content[PREAMBLE_BYTES + 100] ^= 4
        case "payload flipped":
            content[-7] ^= 4
        case "another chunk's":
            content = bytearray(other)
    path.write_bytes(content)


def test_damage_costs_the_files_of_its_chunk_and_names_it(source: Path, tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server, uploaded(server, source) as dataset:
        objects = sorted(
            path for path in (tmp_path / "server" / "chunks").rglob("*/*/*") if len(path.name) == 22
        )
        store = PosixStore(tmp_path / "server" / "chunks")
        (dataset_id,) = store.list_datasets()
        paths_by_kind: dict[str, set[bytes]] = {}
        for kind, path in zip(DAMAGES, objects[1:], strict=False):
            _, header = read_header(store, dataset_id, parse_chunk_name(path.name))
            paths_by_kind[kind] = set(header.paths)
            damage(path, objects[0].read_bytes(), kind)
        assert len(paths_by_kind) == len(DAMAGES)
        failed: dict[bytes, str] = {}
        for number in range(FILES):
            name = b"many/%04d" % number
            try:
                assert dataset.get(name) == (source / os.fsdecode(name)).read_bytes()
            except DieselfsError as error:
                failed[name] = str(error)
        for kind, path in zip(DAMAGES, objects[1:], strict=False):
            lost = paths_by_kind[kind] & failed.keys()
            assert all(path.name in failed[name] for name in lost), (kind, [failed[name] for name in lost])
            if kind == "header flipped":
                assert not lost  # the index and the bytes of the files are elsewhere; fsck finds it
            elif kind == "payload flipped":
                assert len(lost) <= 1
            else:
                assert lost
        assert failed.keys() <= set().union(*paths_by_kind.values())


def test_a_full_or_read_only_store_refuses_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "8m") as disk,
        running_server(tmp_path / "server", ["--store", f"posix://{disk}/chunks"]) as server,
    ):
        numbers = random.Random(4)
        stored: dict[str, bytes] = {}
        with (
            pytest.raises(StorageFull, match=r"object store is full: .* kept for deletes"),
            Dataset(server.settings(), "data", must_exist=False) as dataset,
        ):
            dataset.create()
            for number in range(20):
                content = numbers.randbytes(1 << 20)
                dataset.put(f"{number}", content)
                dataset.flush()
                stored[f"{number}"] = content
        assert 3 < len(stored) < 9
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(Unavailable, match="Read-only"), Dataset(server.settings(), "data") as dataset:
            dataset.put("small", b"x")
        with Dataset(server.settings(), "data") as dataset:
            assert {name: bytes(dataset.get(name)) for name in stored} == stored


@needs_ceph
def test_a_store_that_hangs_costs_a_reader_a_bounded_time(tmp_path: Path) -> None:
    with running_ceph(tmp_path / "ceph", CEPHX) as ceph:
        ceph.make_pool("data")
        with (
            running_server(tmp_path / "server", ["--store", ceph.url("data")]) as server,
            Dataset(server.settings(), "data", must_exist=False) as dataset,
        ):
            dataset.create()
            dataset.put("file", b"content")
            dataset.flush()
            dataset.refresh()
            dataset.client.be_patient_for(1.0)  # one try, of those that a reader has
            with ceph.hung():
                started_s = time.monotonic()
                with pytest.raises(Unavailable, match="Connection timed out"):
                    dataset.get("file")
                assert time.monotonic() - started_s < LOST_MACHINE_S
            assert dataset.get("file") == b"content"
