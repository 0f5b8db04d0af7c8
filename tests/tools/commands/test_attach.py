"""dlcmd attach: files of every format's own writer, without their bytes; and sources that are not what they were."""

import gzip
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import EXIT_DAMAGED, EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_REFUSED, EXIT_USAGE
from dieselfs.raw_array import raw_form, raw_name
from dieselfs.samples.tokens import TokenSamples
from dieselfs.settings.table import EMBEDDED
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY
from tests.support.http_files import web_file
from tests.support.server import RunningServer
from tests.tools.commands.test_import_ import tar_of

SAMPLES = REPOSITORY / "tests/samples"
CONTENT = {f"train/{n:05}.jpg": os.urandom(3000 + n) for n in range(40)}


def write_tar(folder: Path) -> str:
    (folder / "a.tar").write_bytes(tar_of({**CONTENT, "empty": b"", "large": os.urandom(9 << 20)}))
    return "a.tar"


def write_pax_tar(folder: Path) -> str:
    with tarfile.open(folder / "pax.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(20):
            member = tarfile.TarInfo(f"ä{number}" * 40)
            member.size, member.mtime = 1000, 1.5
            archive.addfile(member, BytesIO(os.urandom(1000)))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "target"
        archive.addfile(link)
    return "pax.tar"


def write_zip(folder: Path) -> str:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_STORED) as archive:
        for name, content in CONTENT.items():
            archive.writestr(name, content)
    return "a.zip"


def write_npz(folder: Path) -> str:
    np.savez(folder / "a.npz", images=np.arange(100_000), labels=np.arange(10))
    return "a.npz"


def write_lmdb(folder: Path) -> str:
    lmdb = pytest.importorskip("lmdb", reason="the extra 'import' is not installed")
    with lmdb.open(str(folder / "x.lmdb"), map_size=64 << 20, max_dbs=2, lock=False) as environment:
        labels = environment.open_db(b"labels")
        with environment.begin(write=True) as transaction:
            for number in np.random.default_rng(1).permutation(300).tolist():
                transaction.put(b"train/%05d.jpg" % number, os.urandom(number * 50))
                transaction.put(b"%d" % number, b"%d" % (number % 10), db=labels)
            transaction.delete(b"train/00007.jpg")
    return "x.lmdb"


def write_tfrecord(folder: Path) -> str:
    pytest.importorskip("google_crc32c", reason="the extra 'import' is not installed")
    shutil.copy(SAMPLES / "tensorflow.tfrecord", folder / "a.tfrecord")
    return "a.tfrecord"


def write_raw_tfrecord(folder: Path) -> str:
    pytest.importorskip("google_crc32c", reason="the extra 'import' is not installed")
    shutil.copy(SAMPLES / "tensorflow-raw.tfrecord", folder / "raw.tfrecord")
    return "raw.tfrecord"


def write_mds(folder: Path) -> str:
    shutil.copytree(SAMPLES / "mosaicml", folder / "mds")
    return "mds"


def write_parquet(folder: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'import' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'import' is not installed")
    images = [os.urandom(5000 + n) for n in range(40)]
    columns = [{"bytes": one, "path": f"{n}.jpg"} for n, one in enumerate(images)], [*range(40)]
    table = pyarrow.table(dict(zip(("image", "label"), columns, strict=True)))
    parquet.write_table(
        table, folder / "a.parquet", row_group_size=16, compression="none", use_dictionary=False
    )
    return "a.parquet"


@pytest.mark.parametrize(
    "write",
    [
        write_tar,
        write_pax_tar,
        write_zip,
        write_npz,
        write_lmdb,
        write_tfrecord,
        write_raw_tfrecord,
        write_mds,
        write_parquet,
    ],
)
def test_attached_files_are_those_of_an_import(
    dlcmd: Dlcmd, dataset: str, write: Callable[[Path], str]
) -> None:
    source = write(dlcmd.folder)
    dlcmd("import", source, f"dl://{dataset}-imported/")
    summary = dlcmd("attach", "--json", source, f"dl://{dataset}/").summary
    assert summary["attached"] > 0 and summary["failed"] == 0
    dlcmd("diff", f"dl://{dataset}-imported", f"dl://{dataset}")
    trees = {}
    for name in (f"{dataset}-imported", dataset):
        trees[name] = dlcmd("verify", f"dl://{name}").text.split()[0]
    assert trees[dataset] == trees[f"{dataset}-imported"]
    assert dlcmd("fsck", "--deep", f"dl://{dataset}").text.endswith("clean\n")
    listed = dlcmd("attach", "--list", "--json", f"dl://{dataset}")
    assert sum(one["files"] for one in listed.objects) == summary["attached"]
    assert listed.summary["unreadable"] == 0


def write_rows_of_npy(folder: Path) -> dict[str, Any]:
    images = np.random.default_rng(1).random((50, 6, 4), np.float32)
    np.save(folder / "train.npy", images)
    return {f"train/{row:08}": image for row, image in enumerate(images)}


def write_safetensors(folder: Path) -> dict[str, Any]:
    numpy = pytest.importorskip("safetensors.numpy", reason="the extra 'test' is not installed")
    tensors = {
        "layer.0.weight": np.arange(5000, dtype=np.float16),
        "b": np.array(2.5),
        "none": np.zeros((0, 3)),
    }
    numpy.save_file(tensors, folder / "model.safetensors")
    return tensors


def write_hdf5(folder: Path) -> dict[str, Any]:
    h5py = pytest.importorskip("h5py", reason="the extra 'import' is not installed")
    rng = np.random.default_rng(1)
    arrays = {
        "train/images": rng.integers(0, 255, (40, 8, 6, 3), np.uint8),
        "train/masks": rng.random((40, 16)) > 0.5,
        "chunked": rng.random((50, 7), np.float32),
        "waves": np.arange(70, dtype=np.complex64).reshape(35, 2),
    }
    with h5py.File(folder / "x.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=(16, 3) if name == "chunked" else None)
        file["bytes/0"] = rng.integers(0, 255, 500, np.uint8)
        rows = {
            f"{name}/{row:08}": value for name, array in arrays.items() for row, value in enumerate(array)
        }
        return {**rows, "bytes/0": file["bytes/0"][()]}


def write_zarr(folder: Path) -> dict[str, Any]:
    zarr = pytest.importorskip("zarr", reason="the extra 'test' is not installed")
    images = np.random.default_rng(1).integers(0, 255, (299, 8, 6), np.uint8)
    zarr.create_array(folder / "x", data=images, chunks=(2, 8, 6), shards=(6, 8, 6), compressors=None)
    return {f"x/{row:08}": image for row, image in enumerate(images)}


def write_zarr_of_columns(folder: Path) -> dict[str, Any]:
    """Of rows in three files."""
    zarr = pytest.importorskip("zarr", reason="the extra 'test' is not installed")
    images = np.random.default_rng(1).integers(0, 255, (50, 8, 6), np.uint8)
    zarr.create_array(folder / "x", data=images, chunks=(20, 3, 6), compressors=None)
    return {f"x/{row:08}": image for row, image in enumerate(images)}


@pytest.mark.parametrize(
    "write", [write_rows_of_npy, write_safetensors, write_hdf5, write_zarr, write_zarr_of_columns]
)
def test_attached_arrays_are_their_bytes(
    dlcmd: Dlcmd, dataset: str, write: Callable[[Path], dict[str, Any]]
) -> None:
    arrays = write(dlcmd.folder)
    (source,) = dlcmd.folder.iterdir()
    summary = dlcmd("attach", "--json", source.name, f"dl://{dataset}/").summary
    empty = sum(not array.size for array in arrays.values())
    assert (summary["attached"], summary["failed"]) == (len(arrays) - empty, 0)
    dlcmd("get", "-r", f"dl://{dataset}", "got")
    for path in filter(Path.is_file, (dlcmd.folder / "got").rglob("*")):
        name = str(path.relative_to(dlcmd.folder / "got"))
        dtype, shape = raw_form(name)
        array = arrays.pop(name.removesuffix(raw_name("", dtype, shape)))
        found = np.frombuffer(path.read_bytes(), dtype).reshape(shape)
        assert found.dtype == array.dtype and np.array_equal(found, array)
    assert not arrays


@pytest.mark.parametrize("write", [write_rows_of_npy, write_hdf5])
def test_arrays_on_the_web(dlcmd: Dlcmd, dataset: str, write: Callable[[Path], dict[str, Any]]) -> None:
    arrays = write(dlcmd.folder)
    (source,) = dlcmd.folder.iterdir()
    with web_file(source.read_bytes(), source.name) as file:
        summary = dlcmd("attach", "--json", file.url, f"dl://{dataset}/").summary
        assert (summary["attached"], summary["failed"]) == (len(arrays), 0)
        assert dlcmd("fsck", "--deep", f"dl://{dataset}").text.endswith("clean\n")
        name, array = next(iter(arrays.items()))
        path = raw_name(name, str(array.dtype), array.shape)
        assert dlcmd("cat", f"dl://{dataset}/{path}").stdout == array.tobytes()


def test_tokens_are_attached_as_they_are(dlcmd: Dlcmd, dataset: str) -> None:
    """Files that no format divides, also compressed and empty ones."""
    np.save(dlcmd.folder / "a.npy", np.arange(5_000_000, dtype=np.uint16))
    (dlcmd.folder / "a.gz").write_bytes(gzip.compress(b"1" * 9_000))
    (dlcmd.folder / "empty").touch()
    for verb in ("import", "attach"):
        own = f"dl://{dataset}-{verb}"
        summary = dlcmd(verb, "--format", "file", "--json", "a.npy", "a.gz", "empty", f"{own}/").summary
        assert summary["failed"] == 0 and (verb == "import" or summary["attached"] == 2)
        for name in ("a.npy", "a.gz", "empty"):
            assert dlcmd("cat", f"{own}/{name}").stdout == (dlcmd.folder / name).read_bytes()
    for name, root in (("megatron", "megatron/tokens.bin"), ("litdata-tokens", "litdata-tokens")):
        files = [str(path) for path in (SAMPLES / name).iterdir()]
        dlcmd("attach", "--format", "file", *files, f"dl://{dataset}/{name}/")
        with (
            TokenSamples(SAMPLES / root, 32) as local,
            TokenSamples(f"{dataset}/{root}", 32, server=EMBEDDED, home=dlcmd.home) as attached,
        ):
            wanted, found = (each.__getitems__(range(len(each))) for each in (local, attached))
            assert wanted and np.array_equal(wanted, found)
    ran = dlcmd(
        "attach", "--format", "file", str(SAMPLES / "megatron"), f"dl://{dataset}/", exit_code=EXIT_PARTIAL
    )
    assert ran.stderr.rstrip().endswith("megatron: it is a folder: name the files in it")


def test_a_tar_file_on_the_web(dlcmd: Dlcmd, dataset: str) -> None:
    location = f"dl://{dataset}"
    with web_file(tar_of(CONTENT)) as file:
        summary = dlcmd("attach", "--json", "--chunk-size", "50K", file.url, f"{location}/").summary
        assert (summary["attached"], summary["failed"]) == (len(CONTENT), 0)
        assert set(file.ranges) == {
            "bytes=0-0",
            f"bytes=0-{len(file.content) - 1}",
        }  # not again for the digests
        file.statuses = [503]
        dlcmd("get", "-r", location, "got")
        for name, content in CONTENT.items():
            assert (dlcmd.folder / "got" / name).read_bytes() == content
        assert dlcmd("fsck", "--deep", location).text.endswith("clean\n")
        file.etag = '"2"'
        ran = dlcmd("get", "-r", "-f", location, "again", exit_code=EXIT_DAMAGED)
        assert f"{file.url}: it has changed since it was attached" in ran.stderr
        ran = dlcmd("attach", "--list", location, exit_code=EXIT_DAMAGED)
        assert "1 cannot be read" in ran.lines[-1]
        file.etag = '"1"'
        dlcmd("purge", "--copy", "--grace", "0s", location)
        file.statuses = [404]
    assert dlcmd("cat", f"{location}/train/00000.jpg").stdout == CONTENT["train/00000.jpg"]


def test_nothing_is_copied(dlcmd: Dlcmd, dataset: str) -> None:
    own = Dlcmd(dlcmd.folder / "own", dlcmd.folder)
    write_tar(dlcmd.folder)
    own("attach", "a.tar", f"dl://{dataset}/")
    stored = sum(path.stat().st_size for path in (own.home / "chunks").rglob("*") if path.is_file())
    assert stored < 20_000


def test_a_dry_run_stores_nothing(dlcmd: Dlcmd, dataset: str) -> None:
    (dlcmd.folder / "a.tar").write_bytes(tar_of({"a/b.jpg": b"1234", "a/none": b""}))
    ran = dlcmd("attach", "-n", "--name", "{source}/{index:03}{ext}", "a.tar", f"dl://{dataset}")
    assert ran.lines == [
        f"would attach a.tar: a/b.jpg -> dl://{dataset}/a/000.jpg",
        f"would copy a.tar: a/none -> dl://{dataset}/a/001",
        "would attach 2 entries (4 B)",
    ]
    dlcmd("info", f"dl://{dataset}", exit_code=EXIT_NOT_FOUND)


def test_what_has_no_bytes_in_the_source_is_refused_by_name(dlcmd: Dlcmd, dataset: str) -> None:
    with zipfile.ZipFile(dlcmd.folder / "a.zip", "w") as archive:
        archive.writestr("stored", b"1" * 10_000, zipfile.ZIP_STORED)
        archive.writestr("packed", b"2" * 10_000, zipfile.ZIP_DEFLATED)
    ran = dlcmd("attach", "a.zip", f"dl://{dataset}/", exit_code=EXIT_PARTIAL)
    assert (
        "a.zip: packed: the source has it compressed or in another form; store it with dlcmd import"
        in ran.stderr
    )
    assert ran.text.startswith("attached 1 file (9.8 KiB), 1 failed in ")
    assert dlcmd("cat", f"dl://{dataset}/stored").stdout == b"1" * 10_000


def test_numbers_of_parquet_are_attached_as_wholes(dlcmd: Dlcmd, dataset: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'import' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'import' is not installed")
    numbers = np.arange(1000, dtype=np.float32)
    table = pyarrow.table({"n": numbers, "list": [[1]] * 1000})
    parquet.write_table(table, dlcmd.folder / "a.parquet", compression="none", use_dictionary=False)
    ran = dlcmd("attach", "--whole", "a.parquet", f"dl://{dataset}/", exit_code=EXIT_PARTIAL)
    assert "a.parquet: list: it is nested; store its rows with dlcmd import" in ran.stderr
    assert dlcmd("cat", f"dl://{dataset}/a/n/00000000.1000.float32").stdout == numbers.tobytes()
    change(dlcmd.folder / "a.parquet", "truncated")
    dlcmd("attach", "--whole", "a.parquet", f"dl://{dataset}/", exit_code=EXIT_DAMAGED)


def test_a_member_with_a_wrong_checksum_is_refused(dlcmd: Dlcmd, dataset: str) -> None:
    write_zip(dlcmd.folder)
    packed = bytearray((dlcmd.folder / "a.zip").read_bytes())
    name = b"train/00007.jpg"
    packed[packed.index(name) + len(name) + 5] ^= 1
    (dlcmd.folder / "a.zip").write_bytes(packed)
    ran = dlcmd("attach", "a.zip", f"dl://{dataset}/", exit_code=EXIT_DAMAGED)
    assert "a.zip: train/00007.jpg: damaged: its checksum is wrong" in ran.stderr
    assert "attached 39 files" in ran.text


@pytest.mark.parametrize("name", ["a.tar.gz", "-", "https://x.org/a.tar?key=1", "litdata", "none.tar"])
def test_sources_that_cannot_be_attached(dlcmd: Dlcmd, dataset: str, name: str) -> None:
    with tarfile.open(dlcmd.folder / "a.tar.gz", "w:gz"):
        pass
    shutil.copytree(SAMPLES / "litdata", dlcmd.folder / "litdata")
    exit_code = EXIT_NOT_FOUND if name == "none.tar" else EXIT_USAGE
    ran = dlcmd("attach", name, f"dl://{dataset}/", exit_code=exit_code)
    assert len(ran.stderr.splitlines()) == 1
    assert name.partition("?")[0] in ran.stderr and ("dlcmd import" in ran.stderr or name == "none.tar")
    dlcmd("attach", f"dl://{dataset}/", exit_code=EXIT_USAGE)
    dlcmd("attach", "--list", "a.tar", f"dl://{dataset}/", exit_code=EXIT_USAGE)


def change(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "removed":
        file.unlink()
    elif how == "truncated":
        os.truncate(file, len(content) // 2)
    elif how == "replaced":
        file.unlink()
        file.write_bytes(content)
        os.utime(file, ns=(0, 7))
    else:
        times = os.stat(file)
        with file.open("r+b") as opened:
            for place in range(600, len(content), 500):
                opened.seek(place)
                opened.write(b"!")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("how", ["removed", "truncated", "replaced", "changed in secret"])
def test_a_source_that_changed_fails_for_its_files_only(dlcmd: Dlcmd, dataset: str, how: str) -> None:
    location = f"dl://{dataset}"
    names = list(CONTENT)
    for number in range(2):
        shard = {name: CONTENT[name] for name in names[number::2]}
        (dlcmd.folder / f"{number}.tar").write_bytes(tar_of(shard))
    dlcmd("attach", "0.tar", "1.tar", f"{location}/")
    change(dlcmd.folder / "0.tar", how)
    ran = dlcmd("get", "-r", location, "got", exit_code=EXIT_DAMAGED)
    got = {str(path.relative_to(dlcmd.folder / "got")) for path in (dlcmd.folder / "got").rglob("*.jpg")}
    assert got == set(names[1::2])
    assert all(CONTENT[name] == (dlcmd.folder / "got" / name).read_bytes() for name in got)
    source = str(dlcmd.folder / "0.tar")
    assert f"{names[0]}: " in ran.stderr and source in ran.stderr
    assert source in dlcmd("fsck", "--deep", location, exit_code=EXIT_DAMAGED).text
    if how != "changed in secret":
        ran = dlcmd("attach", "--list", location, exit_code=EXIT_DAMAGED)
        assert ran.lines[0].startswith(f"{source}  20 files (")
        assert "1 cannot be read: attach what has changed again, or dlcmd detach it" in ran.lines[-1]
        dlcmd("fsck", location, exit_code=EXIT_DAMAGED)
    shard = {name: CONTENT[name] for name in names[0::2]}
    (dlcmd.folder / "0.tar").write_bytes(tar_of(shard))
    dlcmd("attach", "0.tar", f"{location}/")
    dlcmd("get", "-r", location, "again")
    for name, content in CONTENT.items():
        assert (dlcmd.folder / "again" / name).read_bytes() == content
    dlcmd("rebuild", location)
    assert dlcmd("cat", f"{location}/{names[0]}").stdout == CONTENT[names[0]]


def test_copies_of_attached_files_need_no_source(dlcmd: Dlcmd, dataset: str) -> None:
    location = f"dl://{dataset}"
    names = list(CONTENT)
    (dlcmd.folder / "a.tar").write_bytes(tar_of(CONTENT))
    dlcmd("attach", "a.tar", f"{location}/")
    dlcmd("cp", "-r", f"{location}/train", f"dl://{dataset}-copy/")
    dlcmd("mv", f"{location}/{names[0]}", f"{location}/moved")
    (dlcmd.folder / "a.tar").unlink()
    dlcmd("get", "-r", f"dl://{dataset}-copy", "got")
    assert all((dlcmd.folder / "got" / name).read_bytes() == content for name, content in CONTENT.items())
    assert dlcmd("cat", f"{location}/moved").stdout == CONTENT[names[0]]
    assert dlcmd("attach", "--list", f"dl://{dataset}-copy", "--json").summary["sources"] == 0
    dlcmd("cat", f"{location}/{names[1]}", exit_code=EXIT_DAMAGED)


def test_copies_with_purge(dlcmd: Dlcmd, dataset: str) -> None:
    location = f"dl://{dataset}"
    write_tar(dlcmd.folder)
    dlcmd("attach", "a.tar", f"{location}/")
    before = dlcmd("verify", location).text
    dlcmd("rm", f"{location}/train/00000.jpg")
    dlcmd("purge", "--grace", "0s", location)
    assert dlcmd("attach", "--list", "--json", location).summary["sources"] == 1
    dlcmd("attach", "a.tar", f"{location}/")
    assert dlcmd("purge", "--copy", "-n", location).text.startswith("would have copied 4 attached chunks; ")
    assert dlcmd("purge", "--copy", "--grace", "0s", "--json", location).summary["copied_chunks"] == 4
    (dlcmd.folder / "a.tar").unlink()
    assert dlcmd("attach", "--list", "--json", location).summary["sources"] == 0
    assert dlcmd("verify", location).text == before
    assert dlcmd("fsck", "--deep", location).text.endswith("clean\n")


def test_a_server_attaches_what_its_operator_allows(
    dlcmd: Dlcmd, dataset: str, server: RunningServer
) -> None:
    """This one allows nothing."""
    (dlcmd.folder / "a.tar").write_bytes(tar_of({"a": b"1234"}))
    client = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.unix})
    ran = client("attach", "a.tar", f"dl://{dataset}/", exit_code=EXIT_REFUSED)
    assert "this server attaches nothing: see its setting attach_roots" in ran.stderr
