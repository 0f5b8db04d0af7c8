"""`.dieselfs/` as programs see it: through the kernel."""

import errno
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.settings.table import FUSE, KERNEL
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.mount.points.options import MountOptions
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.mounted import RunningMount, mounted

FILES = 20_000
"""More lines than one read brings."""

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries(
        TreeEntry(b"train/class-%d/%06d.jpg" % (number % 10, number), 0o100644, 0, b"%d" % number)
        for number in range(FILES)
    )


@pytest.fixture(scope="module")
def running(
    packed: PackedDataset, options: MountOptions, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningMount]:
    folder = tmp_path_factory.mktemp("mounted")
    with mounted(packed, folder, options=replace(options, scores=options.view == FUSE)) as running:
        yield running


@pytest.fixture
def control(running: RunningMount) -> Path:
    return running.path / ".dieselfs"


@pytest.fixture(scope="module")
def order(packed: PackedDataset) -> bytes:
    """The text of `shuffle/seed=1,epoch=2`."""
    return b"".join(path.encode() + b"\n" for path in Plan(packed.snapshot, PlanSpec(1, 2)).share().paths)


NAME = "seed=1,epoch=2"


def test_it_is_found_but_not_listed(running: RunningMount, options: MountOptions, control: Path) -> None:
    assert os.listdir(running.path) == ["train"]
    assert {folder for folder, _, _ in os.walk(running.path)} & {str(control)} == set()
    # pyfuse3 looks up what it lists, and warmth is asked of other nodes.
    late = ["warm"] if options.driver == KERNEL else []
    assert sorted(os.listdir(control)) == ["cursor", "errors", "info", "scores", "shuffle", "stats", *late]
    assert os.listdir(control / "shuffle") == []
    assert stat.S_ISDIR((control / "shuffle/..").stat().st_mode)
    with pytest.raises(FileNotFoundError):
        (control / "nothing").stat()


def test_info_and_stats(packed: PackedDataset, control: Path) -> None:
    info = json.loads((control / "info").read_bytes())
    assert info["dataset"] == "packed"
    assert info["digest"] == packed.snapshot.digest.hex()
    assert isinstance(json.loads((control / "stats").read_bytes()), dict)


def test_stats_are_new_each_time_they_are_opened(control: Path) -> None:
    """And the same however often they are read while they are open."""
    with open(control / "stats", "rb") as first:
        text = first.read()
        while (control / "stats").read_bytes() == text:  # the time since the start is in it
            pass
        first.seek(0)
        assert first.read() == text
        os.posix_fadvise(first.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        first.seek(0)
        assert first.read() == text


def test_tools_that_read_files(control: Path, order: bytes) -> None:
    path = str(control / "shuffle" / NAME)
    for command, expected in (
        (["cat", path], order),
        (["wc", "-l", path], b"%d %s\n" % (FILES, path.encode())),
        (["tail", "-n", "2", path], b"".join(order.splitlines(keepends=True)[-2:])),
        (["head", "-n", "2", path], b"".join(order.splitlines(keepends=True)[:2])),
        (["grep", "-c", "class-3/", path], b"%d\n" % (FILES // 10)),
        (["stat", "-c", "%s %A", path], b"%d -r--r--r--\n" % len(order)),
        (["dd", f"if={path}", "bs=999", "skip=7", "count=1", "status=none"], order[7 * 999 : 8 * 999]),
    ):
        assert subprocess.run(command, capture_output=True, check=True).stdout == expected
    with open(path) as file:
        assert [line.rstrip("\n") for line in file] == order.decode().splitlines()


def test_losses_need_an_option_in_the_view_fuse(packed: PackedDataset, driver: str, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, options=MountOptions(driver=driver, view=FUSE)) as running:
        with pytest.raises(OSError) as refused:
            (running.path / ".dieselfs/scores").write_text("1.0 train/class-0/000000.jpg\n\n")
        assert refused.value.errno == errno.EROFS
        assert stat.S_IMODE((running.path / "train/class-0/000000.jpg").stat().st_mode) == 0o644


def test_losses_that_are_written_decide_the_order(running: RunningMount, control: Path) -> None:
    """As programs write: with a shell, and through a buffer that is larger than a request."""
    name = "policy=importance,seed=5,folder=train%2Fclass-0"
    paths = (control / "shuffle" / f"{name},epoch=0").read_text().splitlines()
    assert len(set(paths)) == len(paths) == FILES // 10
    hard = set(paths[:200])
    with open(control / "scores", "w") as scores:
        scores.writelines(f"{float(path in hard)} {path}\n" for path in sorted(paths))
        scores.write("\n")
    command = f"printf '9 {paths[0]}\\n\\n' > {control}/scores"
    subprocess.run(["sh", "-c", command], check=True)
    drawn = (control / "shuffle" / f"{name},epoch=1").read_text().splitlines()
    assert len(drawn) == len(paths) and set(drawn) < set(paths)
    mean = sum(path in hard for path in drawn) / len(hard)
    assert 1.5 < mean < 4.5  # scores of ranks 1,800 and 0: 7.5 and 2.3
    stats = json.loads((control / "stats").read_bytes())
    assert stats["importance"].items() >= {"batches": 2, "scored_files": len(paths)}.items()
    with pytest.raises(OSError) as malformed:
        (control / "scores").write_text("nonsense\n")
    assert malformed.value.errno == errno.EINVAL
    assert "'nonsense' is not LOSS PATH" in (control / "errors").read_text()


def test_every_line_is_the_path_of_a_file(running: RunningMount, control: Path) -> None:
    lines = (control / "shuffle" / "rank=3,world=500").read_text().splitlines()
    assert len(lines) == FILES // 500
    for line in lines:
        number = int(re.findall(r"\d+", line)[-1])
        assert (running.path / line).read_bytes() == b"%d" % number


def test_ranks_partition_the_epoch(control: Path, order: bytes) -> None:
    shares = [
        (control / "shuffle" / f"{NAME},rank={rank},world=3,batch=7").read_bytes().splitlines()
        for rank in range(3)
    ]
    assert sorted(line for share in shares for line in share) == sorted(order.splitlines())


def test_many_readers_at_once(control: Path, order: bytes) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda _: (control / "shuffle" / NAME).read_bytes(), range(16))
        stats = pool.map(lambda _: json.loads((control / "stats").read_bytes()), range(48))
        assert all(text == order for text in texts)
        assert all(stats)


def assert_errno(code: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]


def test_a_bad_name_is_refused_and_the_reason_can_be_read(control: Path) -> None:
    assert_errno(errno.EINVAL, (control / "shuffle" / "seed=1,rank=8,world=8").read_bytes)
    assert_errno(errno.EINVAL, (control / "shuffle" / "speed=1").stat)
    errors = (control / "errors").read_text().splitlines()
    assert "shuffle/seed=1,rank=8,world=8\trank is 8: give a whole number from 0 to 7" in errors[-2]
    assert "'speed=1' is not a KEY=VALUE" in errors[-1]
    assert stat.S_IMODE((control / "errors").stat().st_mode) == 0o400


def test_nothing_in_it_can_be_changed(control: Path) -> None:
    for change in (
        lambda: (control / "stats").write_bytes(b"x"),
        lambda: os.unlink(control / "stats"),
        lambda: os.mkdir(control / "new"),
        lambda: os.truncate(control / "shuffle" / NAME, 0),
    ):
        assert_errno(errno.EROFS, change)


def test_nothing_of_the_dataset_can_be_changed(running: RunningMount) -> None:
    """Also where the kernel lets writes through to `.dieselfs/scores`."""
    file = running.path / "train/class-0/000000.jpg"

    def append() -> None:
        with open(file, "ab", 0) as appended:
            appended.write(b"x")

    for change in (
        append,
        lambda: file.write_bytes(b"x"),
        lambda: os.truncate(file, 0),
        lambda: os.utime(file),
        lambda: os.chmod(file, 0o600),
        lambda: os.unlink(file),
        lambda: os.rename(file, running.path / "new"),
        lambda: os.link(file, running.path / "new"),
        lambda: os.symlink("target", running.path / "new"),
        lambda: (running.path / "new").touch(),
        lambda: os.mkdir(running.path / "new"),
        lambda: os.rmdir(running.path / "train"),
        lambda: os.mkfifo(running.path / "new"),
        lambda: os.setxattr(file, "user.name", b"value"),
    ):
        with pytest.raises(OSError) as refused:
            change()
        assert refused.value.errno in (errno.EROFS, errno.ENOTSUP), errno.errorcode[refused.value.errno or 0]
    assert file.read_bytes() == b"0"
    assert not (running.path / "new").exists()


def test_reading_declares_and_looking_does_not(control: Path, packed: PackedDataset) -> None:
    name = "seed=99,rank=1,world=4"
    digest = packed.snapshot.digest.hex()[:24]
    (control / "shuffle" / name).stat()
    assert ".s99." not in (control / "cursor").read_text()
    (control / "shuffle" / name).read_bytes()
    assert f"order2.{digest}.s99.e0.p" in (control / "cursor").read_text()


def test_a_cursor_that_is_read_can_be_gone_on_from(control: Path, packed: PackedDataset) -> None:
    (control / "shuffle" / "seed=7").read_bytes()
    (cursor,) = [line for line in (control / "cursor").read_text().splitlines() if ".s7." in line]
    lines = (control / "shuffle" / f"cursor={cursor},rank=0,world=2").read_text().splitlines()
    position = int(cursor.split(".p")[1].split(".")[0])
    assert lines == list(Plan(packed.snapshot, PlanSpec(7)).share(rank=0, world=2, start=position).paths)


def test_what_a_dataset_has_of_that_name_is_hidden(options: MountOptions, tmp_path: Path) -> None:
    packed = pack_entries(
        [
            TreeEntry(path, 0o100644, 0, path)
            for path in (b".a", b".dieselfs/stats", b"folder/.dieselfs/stats", b"z")
        ]
    )
    with mounted(packed, tmp_path, options=options) as running:
        for _ in range(2):
            assert sorted(os.listdir(running.path)) == [".a", "folder", "z"]
            assert b"{" in (running.path / ".dieselfs/stats").read_bytes()
        assert (running.path / "folder/.dieselfs/stats").read_bytes() == b"folder/.dieselfs/stats"


def test_names_that_cannot_stand_in_a_line(options: MountOptions, tmp_path: Path) -> None:
    names = [b"new\nline", b"\xff\xfe", b"plain"]
    packed = pack_entries(TreeEntry(name, 0o100644, 0, name) for name in names)
    with mounted(packed, tmp_path, options=options) as running:
        shuffle = running.path / ".dieselfs/shuffle"
        assert_errno(errno.EINVAL, (shuffle / "seed=1").stat)
        found = (shuffle / "seed=1,null=1").read_bytes().split(b"\0")
        assert sorted(found) == sorted([b"", *names])
        for name in found[:-1]:
            with open(os.path.join(os.fsencode(running.path), name), "rb") as file:
                assert file.read() == name
