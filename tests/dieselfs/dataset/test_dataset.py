"""The library as a user has it, over a real server."""

import multiprocessing
import os
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

import dieselfs
from dieselfs.cluster.secret import read_secret_file
from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, AlreadyExists, Damaged, DieselfsError, InvalidInput, NotFound
from tests.support.server import RunningServer

JPEG = b"\xff\xd8" + bytes(range(256)) * 16


def test_what_was_put_is_got_after_flush(data: Dataset) -> None:
    data.put("train/cat/1.jpg", JPEG, mode=0o600, mtime_ns=1_500_000_000_123_456_789)
    data.put(b"train/\xff\n", b"odd")
    data.put("/empty", b"")
    data.flush()
    assert data.get("train/cat/1.jpg") == JPEG
    assert data.get(b"train/\xff\n") == b"odd"
    assert data.get("empty/") == b""
    status = data.stat("train/cat/1.jpg")
    assert (status.size, status.mtime_ns, status.mode, status.is_file) == (
        len(JPEG),
        1_500_000_000_123_456_789,
        0o100600,
        True,
    )
    assert data.ls() == ["empty", "train"]
    assert data.ls("train") == ["cat", os.fsdecode(b"\xff\n")]
    assert data.stat("train").is_folder
    assert sorted(data.files()) == sorted(["train/cat/1.jpg", "train/" + os.fsdecode(b"\xff\n"), "empty"])
    assert len(data) == 3
    assert data.exists("train/cat") and not data.exists("train/dog")


def test_a_file_larger_than_a_chunk(data: Dataset) -> None:
    large = os.urandom(9_500_000)
    data.put("large.bin", large)
    data.put("small", b"beside it")
    data.flush()
    assert data.get("large.bin") == large
    assert data.get_many(["small", "large.bin", "small"]) == [b"beside it", large, b"beside it"]
    assert data.record().chunks >= 3


def test_views_are_the_same_bytes_without_a_copy(data: Dataset) -> None:
    large = os.urandom(5_000_000)
    contents = {"large.bin": large, "small": b"beside it", "empty": b""}
    for path, content in contents.items():
        data.put(path, content)
    data.writer.put_link(b"link", b"small")
    data.flush()
    for _ in range(3):
        views = data.views([*contents, "link"])
        assert views == [*contents.values(), b"beside it"]
        assert all(view.readonly for view in views)
    figures = data.statistics()
    assert figures["files"]["hits"] + figures["files"]["misses"] == 12
    small, again = data.get_many(["small", "small"], copy=False)
    assert isinstance(small, memoryview) and isinstance(again, memoryview)
    assert small.obj is again.obj  # slices of the chunk
    order = data.shuffle(seed=1)
    assert data.get_many(order, copy=False) == data.get_many(order) == [contents[path] for path in order]
    data.close()
    assert bytes(small) == b"beside it"  # a view keeps its chunk


def test_the_first_views_of_a_process_are_no_copies_either(data: Dataset) -> None:
    contents = {str(number): os.urandom(1000) for number in range(100)}
    for path, content in contents.items():
        data.put(path, content)
    data.flush()
    views = data.views(contents)
    assert views == [*contents.values()]
    assert len({id(view.obj) for view in views}) == 1


def test_what_a_plan_names_is_read_without_the_names(data: Dataset, server: RunningServer) -> None:
    large = os.urandom(5_000_000)
    contents = {"large.bin": large, "small": b"beside it", "empty": b""}
    for path, content in contents.items():
        data.put(path, content)
    data.flush()
    data.ls()
    with Dataset(server.settings(), data.name) as other:
        for reader in (data, other, data):
            order = data.shuffle(seed=2)
            assert reader.get_many(order) == [contents[path] for path in order]
            assert reader.get_nodes(order.nodes) == reader.get_nodes(order.nodes.tolist())
    with pytest.raises(InvalidInput, match="not a file"):
        data.get_nodes([0])
    assert data.get_nodes([]) == data.get_many([]) == data.views([]) == []


def test_memory_is_what_was_asked_for_in_other_processes_too(data: Dataset, server: RunningServer) -> None:
    data.put("file", b"1")
    data.flush()
    with Dataset(server.settings(), data.name, memory_bytes=123_456_789) as reader:
        assert reader.get("file") == b"1"
        assert reader.statistics()["chunk_cache"]["memory_bytes"] == 123_456_789
        copy: Dataset = ForkingPickler.loads(ForkingPickler.dumps(reader))
    assert copy.statistics()["chunk_cache"]["memory_bytes"] == 123_456_789
    copy.close()


def test_the_later_put_counts_and_a_delete_deletes(data: Dataset) -> None:
    for version in range(5):
        data.put("file", b"%d" % version)
    data.flush()
    assert data.get("file") == b"4"
    data.put("file", b"new")
    data.put("folder/a", b"a")
    data.put("folder/deep/b", b"b")
    data.flush()
    data.delete("folder")
    data.flush()
    assert data.ls() == ["file"]
    with pytest.raises(NotFound):
        data.get("folder/a")
    with pytest.raises(NotFound):
        data.delete("folder")
    data.put("folder/a", b"again")
    data.flush()
    assert data.get("folder/a") == b"again"


def test_a_reader_sees_one_frozen_generation_until_it_refreshes(data: Dataset, server: RunningServer) -> None:
    data.put("file", b"old")
    data.flush()
    with Dataset(server.settings(), data.name) as reader:
        assert reader.get("file") == b"old"
        data.put("file", b"new")
        data.put("other", b"")
        data.flush()
        assert reader.get("file") == b"old"
        assert reader.ls() == ["file"]
        assert reader.refresh() == data.generation
        assert reader.get("file") == b"new"


def test_a_rename_keeps_everything_but_the_path(data: Dataset) -> None:
    large = os.urandom(9_000_000)
    data.put("a/large", large, mode=0o600, mtime_ns=5)
    data.put("a/b/small", b"small")
    data.writer.put_link(b"a/link", b"b/small")
    data.flush()
    data.rename("a", "moved/here")
    assert data.get("moved/here/large") == large and data.get("moved/here/link") == b"small"
    assert data.stat("moved/here/large")[1:] == (0o100600, len(large), 5)
    assert data.ls() == ["moved"]
    for old, new in (("moved/here", "moved/here/below"), ("moved/here/large", "moved/here/b/small")):
        with pytest.raises((InvalidInput, AlreadyExists)):
            data.rename(old, new)


def test_links_are_followed_inside_the_dataset_only(data: Dataset) -> None:
    data.put("real/file", b"content")
    data.writer.put_link(b"link", b"real/../real/./file")
    data.writer.put_link(b"folder", b"real")
    data.writer.put_link(b"loop", b"loop")
    data.writer.put_link(b"out", b"/etc/passwd")
    data.writer.put_link(b"up", b"../../etc/passwd")
    data.flush()
    assert data.get("link") == b"content"
    assert data.get("folder/file") == b"content"
    assert data.stat("link").is_link
    for path in ("loop", "out", "up"):
        with pytest.raises(NotFound):
            data.get(path)


def test_shuffle_gives_every_file_once_and_the_same_everywhere(data: Dataset, server: RunningServer) -> None:
    names = [f"f{n:03d}" for n in range(200)]
    for name in names:
        data.put(name, name.encode())
    data.flush()
    order = data.shuffle(seed=4, epoch=2, group_chunks=1)
    assert sorted(order) == names != list(order)
    assert len(order) == 200
    assert list(order[10:20]) == list(order)[10:20]
    assert order[-1] == list(order)[-1]
    with Dataset(server.settings(), data.name) as other:
        assert list(other.shuffle(seed=4, epoch=2, group_chunks=1)) == list(order)
    assert data.get_many(order) == [name.encode() for name in order]


def test_saved_metadata_is_loaded_while_it_is_current(
    data: Dataset, server: RunningServer, tmp_path: Path
) -> None:
    data.put("file", b"1")
    data.flush()
    data.save_meta(tmp_path / "meta")
    with Dataset(server.settings(), data.name) as reader:
        reader.load_meta(tmp_path / "meta")
        assert reader.get("file") == b"1"
    data.put("file", b"2")
    data.flush()
    with Dataset(server.settings(), data.name) as reader:
        with pytest.raises(DieselfsError, match="now has generation 2"):
            reader.load_meta(tmp_path / "meta")
        reader.load_meta(tmp_path / "meta", is_stale_allowed=True)
        assert reader.get("file") == b"1"  # its chunk is still there
        reader.put("other", b"3")
        reader.flush()
        assert (reader.get("file"), reader.get("other")) == (b"2", b"3")
    content = bytearray((tmp_path / "meta").read_bytes())
    content[-1] ^= 1
    (tmp_path / "meta").write_bytes(content)
    with Dataset(server.settings(), data.name) as reader, pytest.raises(Damaged):
        reader.load_meta(tmp_path / "meta", is_stale_allowed=True)


def test_saved_metadata_of_another_dataset_is_refused(
    data: Dataset, server: RunningServer, tmp_path: Path
) -> None:
    data.put("file", b"1")
    data.flush()
    data.save_meta(tmp_path / "meta")
    with Dataset(server.settings(), "t-other-dataset", must_exist=False) as other:
        other.put("file", b"2")
        other.flush()
        with pytest.raises(DieselfsError, match="another dataset"):
            other.load_meta(tmp_path / "meta")


def test_purge_keeps_what_is_alive_and_older_readers_go_on(data: Dataset, server: RunningServer) -> None:
    contents = {f"f{n}": os.urandom(100_000) for n in range(60)}
    for path, content in contents.items():
        data.put(path, content)
    data.flush()
    with Dataset(server.settings(), data.name) as old_reader:
        old_reader.ls()
        for path in list(contents)[::2]:
            data.delete(path)
            del contents[path]
        data.flush()
        planned = data.purge(is_dry_run=True)
        assert planned.chunks_rewritten > 0 and data.purge(is_dry_run=True) == planned
        data.purge(grace_s=3600)
        assert old_reader.get("f0")  # deleted by now, but alive in the snapshot of this reader
    data.refresh()
    assert {path: data.get(path) for path in data.ls()} == contents
    before = data.record()
    removed = data.purge(grace_s=0)
    assert removed.chunks_removed == planned.chunks_rewritten and removed.bytes_freed > 0
    assert data.record().chunks == before.chunks - removed.chunks_removed
    data.refresh()
    assert {path: data.get(path) for path in data.ls()} == contents


def test_a_dropped_dataset_is_gone_and_its_name_is_free(data: Dataset, server: RunningServer) -> None:
    data.put("file", b"1")
    data.flush()
    data.delete_dataset()
    with pytest.raises(NotFound, match="there is no dataset"):
        Dataset(server.settings(), data.name)
    with Dataset(server.settings(), data.name, must_exist=False) as again:
        again.put("other", b"2")
        again.flush()
        assert again.ls() == ["other"]


def test_a_with_block_that_fails_stores_nothing_more(data: Dataset, server: RunningServer) -> None:
    with pytest.raises(RuntimeError), Dataset(server.settings(), data.name) as writing:
        writing.put("half", b"meant")
        raise RuntimeError
    data.refresh()
    assert data.ls() == []


@pytest.mark.parametrize(
    "path", ["a/../b", "a//b", ".", "..", "a/.", "a\0b", "x" * 256, "/".join("a" * 3000)]
)
def test_bad_paths_are_refused(data: Dataset, path: str) -> None:
    with pytest.raises(InvalidInput):
        data.put(path, b"")


def test_the_root_and_folders_are_no_files(data: Dataset) -> None:
    with pytest.raises(InvalidInput):
        data.put("", b"")
    data.put("a/b", b"")
    data.flush()
    for path in ("", "a"):
        with pytest.raises(InvalidInput):
            data.get(path)
    with pytest.raises(InvalidInput):
        data.ls("a/b")


def test_many_threads_read_and_write_one_dataset(data: Dataset) -> None:
    def work(number: int) -> None:
        for n in range(50):
            data.put(f"{number}/{n}", f"{number} {n}".encode())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data.flush()
    wrong: list[str] = []

    def check() -> None:
        wrong.extend(path for path in data.files() if data.get(path).decode() != path.replace("/", " "))

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(data) == 200


def _read_all(data: Dataset) -> int:
    assert [data.get(f"f{n}") for n in range(50)] == [b"%d" % n for n in range(50)]
    data.put(f"from-{os.getpid()}", b"child")
    data.flush()
    return data.generation


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_works_in_worker_processes(data: Dataset, method: str) -> None:
    for n in range(50):
        data.put(f"f{n}", b"%d" % n)
    data.flush()
    data.get("f0")  # connections and threads of the parent are in use
    with multiprocessing.get_context(method).Pool(3) as pool:
        generations = pool.map(_read_all, [data] * 6, chunksize=1)
    assert max(generations) >= 1
    data.refresh()
    assert data.get("f49") == b"49"
    assert 1 <= sum(name.startswith("from-") for name in data.ls()) <= 3


def test_a_dataset_pickles_as_its_generation(data: Dataset) -> None:
    data.put("file", b"old")
    data.flush()
    packed = ForkingPickler.dumps(data)  # as a DataLoader does with its dataset
    assert len(packed) < 2000
    data.put("file", b"new")
    data.flush()
    copy: Dataset = ForkingPickler.loads(packed)
    assert copy.get("file") == b"old"
    copy.close()


def test_a_job_travels_to_spawned_processes_without_its_secret(
    server: RunningServer, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DIESELFS_HOME", str(tmp_path / "home"))
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    with dieselfs.connect(data.name, server=server.unix, job="mine", job_secret=secret) as opened:
        packed = bytes(ForkingPickler.dumps(opened))
        assert read_secret_file(secret).secret not in packed and secret.read_bytes() not in packed
        copy: Dataset = ForkingPickler.loads(packed)
        copy.close()
        secret.chmod(0o644)
        with pytest.raises(
            AccessDenied, match="chmod 600"
        ):  # so the copy joins the job, with the secret of the file
            ForkingPickler.loads(packed)
        secret.chmod(0o600)
    with pytest.raises(InvalidInput, match="in Python: job='NAME'"):
        dieselfs.connect(data.name, server=server.unix, job="auto", job_secret=secret)
    with pytest.raises(InvalidInput, match="job_secret=FILE"):
        dieselfs.connect(data.name, server=server.unix, job="mine")


def test_connect_by_name_and_by_location(
    server: RunningServer, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.put("file", b"1")
    data.flush()
    monkeypatch.setenv("DIESELFS_SERVER", server.unix)
    monkeypatch.setenv("DIESELFS_HOME", str(server.folder / "home"))
    for name in (data.name, f"dl://{data.name}", f"dl://{data.name}/"):
        with dieselfs.connect(name) as opened:
            assert opened.get("file") == b"1"
    with pytest.raises(NotFound):
        dieselfs.connect("no-such-dataset")
    with pytest.raises(InvalidInput):
        dieselfs.connect("../etc")
    for name in (f"{data.name}/train", f"dl://{data.name}/train/x"):
        with pytest.raises(InvalidInput, match=rf"write connect\('{data.name}'\) .* ls\('train"):
            dieselfs.connect(name)


def test_what_goes_wrong_is_what_python_users_expect(server: RunningServer, data: Dataset) -> None:
    data.put("val/a", b"12345")
    data.flush()
    with pytest.raises(FileNotFoundError, match="val/b: no such file or folder"):
        data.get("val/b")
    with pytest.raises(NotFound):
        data.stat("nowhere")
    for read in (data.get_many, data.views):
        with pytest.raises(InvalidInput, match="'val' is one path: give a list of paths"):
            read("val")
    with pytest.raises(InvalidInput, match="seed is 'x': give a whole number from 0 to"):
        data.plan(seed="x")  # type: ignore[arg-type]  # as somebody may call it
    with data.open("val/a") as file:
        assert (file.seek(2), file.read(2), file.read()) == (2, b"34", b"5")


def test_a_closed_dataset_says_so(server: RunningServer, data: Dataset) -> None:
    data.put("a", b"1")
    data.flush()
    with Dataset(server.settings(), data.name) as other:
        assert other.get("a") == b"1"
    for use in (lambda: other.get("a"), lambda: other.put("b", b""), lambda: other.ls()):
        with pytest.raises(InvalidInput, match=f"dataset {data.name} is closed: open it again"):
            use()
    other.close()


def test_the_version_and_the_tag_are_shown(server: RunningServer, data: Dataset) -> None:
    assert dieselfs.__version__.count(".") >= 1
    with pytest.raises(AttributeError):
        getattr(dieselfs, "no_such_name")  # noqa: B009  # as the name is not there
    assert f"Dataset '{data.name}' at" in repr(data)
    tagged = Dataset(server.settings(), data.name, tag="v3", must_exist=False)
    assert f"Dataset '{data.name}@v3' at" in repr(tagged)
    tagged.close()
