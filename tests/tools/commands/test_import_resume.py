"""An import of each format that was killed or interrupted continues, and ends as one that was not."""

import io
import shutil
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dieselfs_tools.archives.formats import IMPORTED
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY

PUT_CHUNK = "dieselfs.rpc.client:ServerClient.put_chunk"
SAMPLES = REPOSITORY / "tests" / "samples"
RECORDS, RECORD_BYTES = 60, 1000

numbers = np.random.default_rng(7)
CONTENTS = [numbers.bytes(RECORD_BYTES) for _ in range(RECORDS)]


def write_tar(folder: Path) -> str:
    import tarfile

    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for number, content in enumerate(CONTENTS):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return "a.tar.gz"


def write_zip(folder: Path) -> str:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, content in enumerate(CONTENTS):
            archive.writestr(f"{number}.bin", content)
    return "a.zip"


def write_npz(folder: Path) -> str:
    np.savez(folder / "a.npz", *(np.frombuffer(content, np.uint8) for content in CONTENTS))
    return "a.npz"


def write_npy(folder: Path) -> str:
    np.save(folder / "a.npy", np.frombuffer(b"".join(CONTENTS), np.uint8).reshape(RECORDS, RECORD_BYTES))
    return "a.npy"


def write_safetensors(folder: Path) -> str:
    safetensors = pytest.importorskip("safetensors.numpy", reason="the extra test is not installed")
    tensors = {f"{number}": np.frombuffer(content, np.uint8) for number, content in enumerate(CONTENTS)}
    safetensors.save_file(tensors, folder / "a.safetensors")
    return "a.safetensors"


def write_lmdb(folder: Path) -> str:
    lmdb = pytest.importorskip("lmdb", reason="the extra import is not installed")
    with (
        lmdb.open(str(folder / "a.lmdb"), map_size=1 << 24) as environment,
        environment.begin(write=True) as writing,
    ):
        for number, content in enumerate(CONTENTS):
            writing.put(b"%d.bin" % number, content)
    return "a.lmdb"


def write_hdf5(folder: Path) -> str:
    h5py = pytest.importorskip("h5py", reason="the extra import is not installed")
    with h5py.File(folder / "a.h5", "w") as file:
        file["rows"] = np.frombuffer(b"".join(CONTENTS), np.uint8).reshape(RECORDS, RECORD_BYTES)
    return "a.h5"


def write_zarr(folder: Path) -> str:
    zarr = pytest.importorskip("zarr", reason="the extra test is not installed")
    rows = np.frombuffer(b"".join(CONTENTS), np.uint8).reshape(RECORDS, RECORD_BYTES)
    zarr.create_array(folder / "a.zarr", data=rows, chunks=(7, RECORD_BYTES))
    return "a.zarr"


def write_parquet(folder: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra import is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra import is not installed")
    table = pyarrow.table({"image": CONTENTS, "label": [f"{number}" for number in range(RECORDS)]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=7)
    return "a.parquet"


def write_tfrecord(folder: Path) -> str:
    """As TFRecordWriter does: length, its masked CRC, the record, its masked CRC."""
    crc = pytest.importorskip("google_crc32c", reason="the extra import is not installed")

    def masked(content: bytes) -> bytes:
        value: int = crc.value(content)
        return ((((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    with (folder / "a.tfrecord").open("wb") as file:
        for content in CONTENTS:
            length = len(content).to_bytes(8, "little")
            file.write(length + masked(length) + content + masked(content))
    return "a.tfrecord"


def copy_sample(name: str) -> Callable[[Path], str]:
    def copy(folder: Path) -> str:
        shutil.copytree(SAMPLES / name, folder / name)
        return name

    return copy


def write_file(folder: Path) -> str:
    (folder / "a.bin").write_bytes(b"".join(CONTENTS))
    return "a.bin"


WRITERS: dict[str, Callable[[Path], str]] = {
    "tar": write_tar,
    "zip": write_zip,
    "npz": write_npz,
    "npy": write_npy,
    "safetensors": write_safetensors,
    "lmdb": write_lmdb,
    "hdf5": write_hdf5,
    "zarr": write_zarr,
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
    "mds": copy_sample("mosaicml"),
    "litdata": copy_sample("litdata"),
    "file": write_file,
}


def test_each_format_is_tried() -> None:
    assert set(WRITERS) == set(IMPORTED)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("format_name", WRITERS)
def test_it_continues(dlcmd: Dlcmd, dataset: str, format_name: str, signum: signal.Signals) -> None:
    source = WRITERS[format_name](dlcmd.folder)
    chunk_size = "100" if format_name in ("mds", "litdata") else "4K"
    words = ("import", "--json", "--format", format_name, "--chunk-size", chunk_size, source)
    struck = dlcmd.struck(signum, 0, PUT_CHUNK, 3, *words, f"dl://{dataset}/")
    assert struck.returncode not in (0, None)
    resumed = dlcmd(*words, f"dl://{dataset}/").summary
    assert resumed["stored"] > 0 and resumed["failed"] == 0
    whole = dlcmd(*words, f"dl://{dataset}-2/").summary
    assert resumed["stored_bytes"] < whole["stored_bytes"]  # also where only extents of a file were stored
    assert whole["stored"] == resumed["stored"] + resumed["skipped"]
    dlcmd("diff", f"dl://{dataset}", f"dl://{dataset}-2")
    assert dlcmd(*words, f"dl://{dataset}/").summary["stored"] == 0
