"""Redis restarted from nothing in the middle of an upload and under a mount: no acknowledged file is lost or wrong."""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.settings.table import FUSE, IMAGE, OVERLAY
from dieselfs.snapshot.saved import save_snapshot
from dieselfs.transfer.sender import ChunkSender
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from tests.end_to_end.test_redis_servers import options
from tests.support.redis import needs_redis, running_redis
from tests.support.server import running_server

pytestmark = needs_redis

ACKNOWLEDGED_MIN = 20


def test_redis_starts_from_nothing_during_an_upload_and_a_mount(tmp_path: Path) -> None:
    contents = {b"f%03d" % n: os.urandom(60_000) for n in range(400)}
    acknowledged: set[bytes] = set()
    enough = threading.Event()

    def note(chunk: SealedChunk, _: int) -> None:
        acknowledged.update(entry[0] for entry in chunk.entries)
        if len(acknowledged) >= ACKNOWLEDGED_MIN:
            enough.set()

    with (
        running_redis(tmp_path / "redis") as redis,
        running_server(tmp_path / "server", options(tmp_path, redis, "one")) as server,
        contextlib.closing(Dataset(server.settings(), "data", must_exist=False)) as data,
    ):
        data.put("mounted", b"seen by the mount")
        data.put("large", bytes(range(256)) * 40_000)
        data.flush()
        mountpoint = tmp_path / "mount"
        mountpoint.mkdir()
        control.mount("data", mountpoint, MountOptions(server=server.unix, log_file=str(tmp_path / "log")))
        try:
            sender = ChunkSender(data.client, data.create(), note)
            uploader = threading.Thread(target=_upload, args=(sender, contents))
            uploader.start()
            assert enough.wait(60)
            redis.kill()
            redis.start()  # it keeps nothing
            uploader.join()
            sender.abandon()
            # Who has mounted goes on reading, also what was not read before.
            assert (mountpoint / "mounted").read_bytes() == b"seen by the mount"
            data.client.rebuild("data")
            assert (mountpoint / "large").read_bytes() == bytes(range(256)) * 40_000
        finally:
            control.unmount(mountpoint)
        data.refresh()
        found = {os.fsencode(path): data.get(path) for path in data.files()}
        assert found.pop(b"mounted") == b"seen by the mount" and found.pop(b"large")
        assert acknowledged <= found.keys()
        assert all(contents[path] == content for path, content in found.items())
        assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count == 0


def test_a_saved_snapshot_is_mounted_while_redis_is_away(tmp_path: Path) -> None:
    """In all views at the same time: each waits for Redis before it gives up."""
    contents = {f"train/{number}": os.urandom(5_000) for number in range(50)}
    places = {view: tmp_path / view for view in (FUSE, OVERLAY, IMAGE) if view == FUSE or not os.geteuid()}
    saved = tmp_path / "saved.snapshot"
    with (
        running_redis(tmp_path / "redis") as redis,
        running_server(tmp_path / "server", options(tmp_path, redis, "one")) as server,
        contextlib.ExitStack() as stack,
    ):
        with contextlib.closing(Dataset(server.settings(), "data", must_exist=False)) as data:
            for path, content in contents.items():
                data.put(path, content)
            data.flush()
            save_snapshot(data.snapshot, saved)
        redis.kill()

        def mount(view: str) -> None:
            places[view].mkdir()
            log = str(tmp_path / f"{view}.log")
            control.mount(str(saved), places[view], MountOptions(server=server.unix, view=view, log_file=log))
            stack.callback(control.unmount, places[view])

        with ThreadPoolExecutor(len(places)) as threads:
            list(threads.map(mount, places))
        saved.unlink()
        views = {mount.mountpoint: mount.view for mount in control.mounts()}
        for view, place in places.items():
            assert views[str(place)] == view
            order = (place / ".dieselfs/shuffle/seed=1,epoch=0").read_text().split()
            assert sorted(order) == sorted(contents) and order != sorted(order)
            assert {path: (place / path).read_bytes() for path in order} == contents


def _upload(sender: ChunkSender, contents: dict[bytes, bytes]) -> None:
    builder = ChunkBuilder()
    with contextlib.suppress(DieselfsError):  # once the metadata is lost, an upload is refused
        for path, content in contents.items():
            builder.add_file(path, content, 0o644, 0)
            if len(builder) == 5:
                sender.submit(builder.seal())
        sender.wait_stored()
