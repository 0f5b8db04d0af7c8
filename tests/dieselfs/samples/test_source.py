"""Which source a root names, and reading from one that looks like a mount. tests/end_to_end has real mounts."""

import errno
import json
import os
import pickle  # noqa: TID251  # as a DataLoader hands a source to spawned workers
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.samples import source as source_module
from dieselfs.samples.reading_list import Listed
from dieselfs.samples.source import MountSource, open_source, snapshot_of
from dieselfs.shuffle.ahead_name import extents_ahead
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry.stalls import CAUSES
from tests.support.dataset import pack_tree

FILES = {"train/a,b/1.jpg": b"one", "train/a,b/2.jpg": b"", "train/c/3.jpg": b"x" * 100_000}


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A folder that has what a mount has."""
    place = tmp_path / "mount"
    for path, content in FILES.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    snapshot = pack_tree(place).snapshot
    (tmp_path / "snapshot").write_bytes(snapshot.content)
    info = {
        "snapshot": str(tmp_path / "snapshot"),
        "digest": snapshot.digest.hex(),
        "options": {"memory_bytes": 1 << 20},
    }
    (place / ".dieselfs/shuffle").mkdir(parents=True)
    (place / ".dieselfs/info").write_text(json.dumps(info))
    return place


def test_a_mount_is_found_from_any_folder_in_it(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mount / "train")
    (mount.parent / "link").symlink_to(mount / "train/c")
    for root, folder in (
        (mount, b""),
        (str(mount), b""),
        (mount / "train", b"train"),
        (f"{mount}/train/a,b/", b"train/a,b"),
        (".", b"train"),
        ("./c", b"train/c"),
        (Path("c"), b"train/c"),
        (mount.parent / "link", b"train/c"),
    ):
        source, found = open_source(root)
        assert isinstance(source, MountSource)
        assert found == folder


def test_files_of_a_mount_are_read_by_their_nodes(mount: Path) -> None:
    source, _ = open_source(mount)
    nodes = [source.snapshot.require(path.encode()) for path in FILES]
    for reader in (source, pickle.loads(pickle.dumps(source))):
        assert reader.read_many(nodes) == list(FILES.values())
    os.truncate(mount / "train/c/3.jpg", 1000)
    with pytest.raises(Damaged, match="ends after 1000 of 100000 bytes"):
        source.read_many(nodes)


def test_the_snapshot_must_be_the_one_that_is_mounted(mount: Path) -> None:
    (mount / "train/new.jpg").write_bytes(b"new")
    Path(mount.parent, "snapshot").write_bytes(pack_tree(mount).snapshot.content)
    with pytest.raises(Damaged, match="not the snapshot of the mount"):
        open_source(mount)


def test_options_of_a_connection_are_for_datasets(mount: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="options of a connection are for datasets"):
        open_source(mount, server="tcp://nowhere:1")
    with pytest.raises(InvalidInput, match="options of a connection are for datasets"):
        open_source(mount, memory_bytes=1 << 30)
    with pytest.raises(NotFound, match="no dataset is mounted there"):
        open_source(tmp_path / "nowhere")


def test_a_share_is_declared_by_reading_its_list(mount: Path) -> None:
    source, _ = open_source(mount)
    plan = Plan(source.snapshot, PlanSpec(1, 2, 3, folder=b"train/a,b"))
    share = plan.share(1, 2, batch=2, start=0)
    name = str(ShareName.of(share))
    assert name == f"cursor={plan.cursor(0)},folder=train%2Fa%2Cb,rank=1,world=2,batch=2,drop_last=0,null=1"
    with pytest.raises(FileNotFoundError):
        source.declare(share)
    (mount / ".dieselfs/shuffle" / name).write_text("list")
    source.declare(share)


def test_the_first_worker_declares_the_share_of_all(mount: Path) -> None:
    source, _ = open_source(mount)
    plan = Plan(source.snapshot, PlanSpec(1, 2, 3))
    (mount / ".dieselfs/shuffle" / str(ShareName.of(plan.share(batch=2)))).write_text("list")
    for worker in range(2):
        source.declare(plan.share(batch=2, worker=worker, workers=2))
    with pytest.raises(FileNotFoundError):
        source.declare(plan.share(batch=1, worker=0, workers=2))


def test_a_mount_that_refuses_what_is_read_next_is_not_told_again(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one notes each such name as an error. One whose daemon is replaced just now is told."""
    source, _ = open_source(mount)
    assert isinstance(source, MountSource)
    asked, answers = list[str](), [errno.ENOTCONN, errno.ENOTCONN, errno.EINVAL, 0]

    def stat(path: str) -> None:
        asked.append(path)
        raise OSError(answers.pop(0), "refused")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        assert not any(source._tell_ahead([1, 2]) for _ in range(9))
    assert len(asked) == 3 and asked[0].endswith("+1-2")


def test_what_the_daemon_of_a_mount_has_done(mount: Path) -> None:
    source, _ = open_source(mount)
    assert isinstance(source, MountSource) and source.daemon_work() is None
    stats = mount / ".dieselfs/stats"
    stats.write_text('{"reads": {"waited_s": {"sum": 2.5}}, "work": {"spent_s": {"push": 1.5, "server": 3}}}')
    work = source.daemon_work()
    assert work is not None and work.waited_s == 2.5
    assert dict(zip(CAUSES, work.spent.tolist(), strict=True)) == dict.fromkeys(CAUSES, 0.0) | {
        "push": 1.5,
        "server": 3.0,
    }
    for other in ("{}", "[]", '{"work": {"spent_s": 5}}', "{"):
        stats.write_text(other)
        assert source.daemon_work() is None


def test_what_no_name_has_room_for_is_not_declared(mount: Path) -> None:
    folder = "x" * 250
    (mount / folder).mkdir()
    (mount / folder / "1.jpg").write_bytes(b"one")
    snapshot = pack_tree(mount).snapshot
    share = Plan(snapshot, PlanSpec(folder=folder.encode())).share()
    assert len(str(ShareName.of(share))) > 255
    MountSource(str(mount), snapshot).declare(share)


def test_the_name_of_a_share_of_the_whole_dataset(mount: Path) -> None:
    snapshot: Snapshot = open_source(mount)[0].snapshot
    share = Plan(snapshot, PlanSpec(skips=Skips([range(1)]))).share(batch=2, start=1, drop_last=True)
    cursor, *others = str(ShareName.of(share)).split(",")
    assert Cursor.parse(cursor.removeprefix("cursor=")).position == 1
    assert others == ["rank=0", "world=1", "batch=2", "drop_last=1", "null=1"]


def test_what_lies_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b/deep").mkdir(parents=True)
    (tmp_path / "b/deep/file").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    snapshot = snapshot_of(str(tmp_path))
    assert [snapshot.path(node) for node in snapshot.walk(0)] == [
        b"a",
        b"b",
        b"b/deep",
        b"b/deep/file",
        b"empty",
    ]
    assert snapshot.size(snapshot.require(b"b/deep/file")) == 5
    assert snapshot.stat(snapshot.require(b"empty")).is_folder
    assert sorted(Plan(snapshot, PlanSpec(1)).share().paths) == ["a", "b/deep/file"]


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the folder is empty, and no dataset is mounted there"):
        snapshot_of(str(tmp_path))
    with pytest.raises(NotFound, match="no such folder"):
        snapshot_of(str(tmp_path / "nowhere"))


def test_a_mount_is_told_which_parts_of_files_are_read_next(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def look_up(path: str) -> None:
        folder, name = os.path.split(path)
        assert folder == f"{mount}/.dieselfs/shuffle"
        told.append(name)

    monkeypatch.setattr(source_module, "AHEAD_BYTES", 1)
    source, _ = open_source(mount)
    assert isinstance(source, MountSource)
    numbers = [1, 0]
    source.partial_files = np.flatnonzero(source.snapshot.column("counts"))
    progress = source.announce(Listed(np.array(numbers, np.uint32), np.array([1, 2]), False))
    monkeypatch.setattr(os, "stat", look_up)
    for step in range(3):
        progress(step)
    monkeypatch.undo()
    assert [
        number for name in told for number in extents_ahead(name.encode(), source.snapshot.digest, 2)
    ] == numbers
    source.close()


def test_the_kernel_reads_listed_parts_of_files_ahead_if_a_mount_does_not(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advised: list[tuple[str, int, int]] = []

    def advise(descriptor: int, place: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        advised.append((os.readlink(f"/proc/self/fd/{descriptor}"), place, length))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(source_module, "AHEAD_BYTES", 1)
    source, _ = open_source(mount)
    assert isinstance(source, MountSource) and not source.takes_lists
    names = ["train/c/3.jpg", "train/a,b/1.jpg"]
    source.partial_files = np.array([source.snapshot.require(name.encode()) for name in names])
    assert source.takes_lists
    zero = np.zeros(1, np.int64)
    extents = [int(source.snapshot.extent_numbers(node, zero)[0]) for node in source.partial_files.tolist()]
    progress = source.announce(Listed(np.array(extents, np.uint32), np.array([1, 2]), False))
    expected = [(f"{mount}/{name}", 0, len(FILES[name])) for name in names]
    progress(0)
    assert advised == expected[:1]
    progress(1)
    progress(2)
    assert advised == expected
    source.close()
