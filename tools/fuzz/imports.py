"""The parsers of `dlcmd import`, as targets: formats of others, whose files come from anywhere. This module writes
temporary files.

`libraries.py` has the formats that libraries in C read.
"""

import io
import json
import os
import struct
import tarfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dieselfs.errors import DieselfsError
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.transfer.upload import ENTRY_ERRORS
from dieselfs_tools.archives.formats import required
from dieselfs_tools.archives.importing import (
    array_files,
    bucket_files,
    sample_shards,
    tar_file,
    tfrecord_file,
    zarr_folder,
    zip_file,
)
from dieselfs_tools.archives.importing.inputs import DirectOpener, Input
from dieselfs_tools.archives.importing.naming import Names, Template
from dieselfs_tools.archives.importing.record import ArrayForm, Range, Record, npy
from dieselfs_tools.cli.output import Output
from fuzz.target import Target, of_text

_QUIET = Output(is_quiet=True)
_TIME_NS = 1_700_000_000_000_000_000
Reader = Callable[[Input], Iterator[Record]]


def _import(
    read: Reader, files: Mapping[str, bytes], fuzzed: str, data: bytes, is_in_place: bool = False
) -> None:
    """Read a source in which the file `fuzzed` is `data`, as `dlcmd import` does, or `attach`. `files` are the others;
    without any, the source is the file.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        for name, content in {**files, fuzzed: data}.items():
            Path(folder, name).write_bytes(content)
        name = folder if files else os.path.join(folder, fuzzed)
        source = Input(name, stack, DirectOpener(name, _QUIET))
        source.form = ArrayForm(is_in_place=is_in_place)
        names, template = Names(b"", is_renaming=True), Template("{name}")
        for record in read(source):
            with suppress(*ENTRY_ERRORS):  # this record fails alone
                if record.fault:
                    continue
                names.place(template.fill(record.name, b"source", 0, record.fields), record.is_folder)
                if is_in_place:
                    assert all(map(is_inside, record.ranges))
                    continue
                if record.size <= CHUNK_TARGET_BYTES:
                    record.load()
                else:
                    deque(record.contents([(0, CHUNK_TARGET_BYTES)]), maxlen=0)


def is_inside(piece: Range) -> bool:
    """Whether the file has these bytes."""
    return 0 <= piece.offset <= os.path.getsize(piece.file) - piece.length


def _reading(
    read: Reader,
    files: Mapping[str, bytes] | None = None,
    fuzzed: str = "source",
    is_in_place: bool = False,
) -> Callable[[bytes], None]:
    return partial(_import, read, files or {}, fuzzed, is_in_place=is_in_place)


def _npy() -> bytes:
    return npy(np.arange(24, dtype=np.float32).reshape(2, 3, 4))


def _zarr() -> bytes:
    """The metadata of an array of 4 x 16 bytes in one shard of two chunks."""
    plain: dict[str, object] = {"name": "bytes"}
    inner = {"chunk_shape": [2, 16], "codecs": [plain], "index_codecs": [plain], "index_location": "end"}
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 16],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 16]}},
        "chunk_key_encoding": {"name": "v2"},
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }
    return json.dumps(array).encode()


_ZARR = "zarr.json"
_ZARR_SHARD = bytes(64) + struct.pack("<4Q", 0, 32, 32, 32)


def _safetensors() -> bytes:
    tensors = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [8, 12]},
    }
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(12))


def _tar(form: int) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as archive:
        folder = tarfile.TarInfo("train")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, content in (("train/cat.txt", b"meow\n"), ("n" * 120, b""), ("ü", b"x" * 600)):
            file = tarfile.TarInfo(name)
            file.size = len(content)
            file.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
            archive.addfile(file, io.BytesIO(content))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo(f"link{kind!r}")
            link.type, link.linkname = kind, "train/cat.txt"
            archive.addfile(link)
    return written.getvalue()


def _zip() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("train/", b"")
        archive.writestr("train/cat.txt", b"meow\n" * 20, zipfile.ZIP_DEFLATED)
        archive.writestr("empty", b"")
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, b"train/cat.txt")
    return written.getvalue()


def _frame(content: bytes) -> bytes:
    try:
        crc32c = required("google_crc32c").value
    except DieselfsError:  # the extra is not installed: the target refuses everything
        return content
    length = struct.pack("<Q", len(content))
    sums = [struct.pack("<I", tfrecord_file.masked_crc(crc32c(part))) for part in (length, content)]
    return length + sums[0] + content + sums[1]


def _field(number: int, content: bytes) -> bytes:
    """A field of protobuf, of bytes or a message."""
    return bytes([number << 3 | 2, len(content)]) + content


_FEATURES = ((b"a", 3, b"\1\2"), (b"b", 1, b"\xff\xd8\xff"), (b"c", 2, struct.pack("<f", 0.5)))
_EXAMPLE = _field(
    1,
    b"".join(
        _field(1, _field(1, name) + _field(2, _field(kind, _field(1, value))))
        for name, kind, value in _FEATURES
    ),
)


def _in_frames(data: bytes) -> None:
    """`data` as the content of a record whose checksums are right."""
    _import(tfrecord_file.read, {}, "source", _frame(data))


def _shard(*samples: bytes) -> bytes:
    offsets = [4 + 4 * (len(samples) + 1)]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    return struct.pack(f"<I{len(offsets)}I", len(samples), *offsets) + b"".join(samples)


_VALUES = (
    struct.pack("<q", 7),
    "süß".encode(),
    bytes([8, 2 << 2 | 0, 1, 2]) + b"ab",  # an array of uint8, 1 x 2
    bytes([0, 1]),  # an array of uint8, of one dimension of 2 bytes, whose sizes are in the index
)
_MDS_SHARD = _shard(
    struct.pack("<II", len(_VALUES[1]), len(_VALUES[2])) + b"".join((_VALUES[0], *_VALUES[1:]))
)
_MDS_INDEX = json.dumps(
    {
        "version": 2,
        "shards": [
            {
                "column_names": ["n", "t", "a", "s"],
                "column_encodings": ["int", "str", "ndarray", "ndarray:uint8:2"],
                "column_sizes": [8, None, None, 2],
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": "shard", "bytes": len(_MDS_SHARD), "hashes": {}},
                "samples": 1,
                "zip_data": None,
            }
        ],
    }
).encode()

_LITDATA_VALUES = (
    struct.pack("<q", 7),
    struct.pack("<II2I", 4, 2, 1, 2) + b"ab",
    b'{"a": 1}',
    struct.pack(">III", 2, 1, 1) + struct.pack("<d", 0.5),
)
_LITDATA_SHARD = _shard(
    struct.pack(f"<{len(_LITDATA_VALUES)}I", *map(len, _LITDATA_VALUES)) + b"".join(_LITDATA_VALUES)
)
_LEAF: dict[str, object] = {"type": None, "context": None, "children_spec": []}
_SPEC = {"type": "builtins.dict", "context": json.dumps([*"iajt"]), "children_spec": [_LEAF] * 4}
_LITDATA_INDEX = json.dumps(
    {
        "chunks": [{"chunk_bytes": len(_LITDATA_SHARD), "chunk_size": 1, "dim": None, "filename": "shard"}],
        "config": {
            "compression": None,
            "data_format": ["int", "numpy", "json", "tensor"],
            "data_spec": json.dumps([1, _SPEC]),
            "encryption": None,
            "item_loader": "PyTreeLoader",
        },
    }
).encode()

_INDEX, _SHARD = bucket_files.INDEX, "shard"

IMPORT_TARGETS = (
    Target("tar", _reading(tar_file.read), [_tar(form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]),
    Target("zip", _reading(zip_file.read), [_zip()]),
    Target("tfrecord", _reading(tfrecord_file.read), [_frame(b"one") + _frame(_EXAMPLE)]),
    Target("tfrecord-example", _in_frames, [_EXAMPLE]),
    Target("mds-index", _reading(sample_shards.read_mds, {_SHARD: _MDS_SHARD}, _INDEX), [_MDS_INDEX]),
    Target("mds-shard", _reading(sample_shards.read_mds, {_INDEX: _MDS_INDEX}, _SHARD), [_MDS_SHARD]),
    Target(
        "litdata-index",
        _reading(sample_shards.read_litdata, {_SHARD: _LITDATA_SHARD}, _INDEX),
        [_LITDATA_INDEX],
    ),
    Target(
        "litdata-shard",
        _reading(sample_shards.read_litdata, {_INDEX: _LITDATA_INDEX}, _SHARD),
        [_LITDATA_SHARD],
    ),
    Target("npy", _reading(array_files.read_npy), [_npy()]),
    Target("safetensors", _reading(array_files.read_safetensors), [_safetensors()]),
    Target("npy-in-place", _reading(array_files.read_npy, is_in_place=True), [_npy()]),
    Target(
        "safetensors-in-place", _reading(array_files.read_safetensors, is_in_place=True), [_safetensors()]
    ),
    Target("zarr-metadata", _reading(zarr_folder.read, {"0.0": _ZARR_SHARD}, _ZARR, True), [_zarr()]),
    Target("zarr-shard", _reading(zarr_folder.read, {_ZARR: _zarr()}, "0.0", True), [_ZARR_SHARD]),
    Target("zarr-shard-decoded", _reading(zarr_folder.read, {_ZARR: _zarr()}, "0.0"), [_ZARR_SHARD]),
    Target("import-template", of_text(Template), [b"{folder}/{stem}{ext}"]),
)
