"""The formats of `dlcmd import`, `attach` and `export`, one row each. No I/O but of what recognizes a folder.

A new format is a module and a row in `FORMATS`: options, completion, error messages and the tests of the documents use
the table. The modules are imported when a source or a target has their format.

A module of `importing` has the function `read`, which yields the records of an `Input`. A function of `exporting` has
the arguments of `export_archive`, and returns the exit code.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from dieselfs.errors import InvalidInput
from dieselfs.names import printable

AUTO = "auto"
AS_IT_IS = "file"
"""The format of a source that is one record, with its bytes, also compressed ones."""
STANDARD_OUTPUT = "-"
EXTRA = "import"
"""The extra of the distribution with the packages that formats need."""

WHOLE_NAME = "{name}"
NUMBERED = "{source}/{name}"
"""For formats whose records are numbered, so that shards do not have the same names."""

Reader = Callable[[Any], Iterator[Any]]
"""From an `Input` to each `Record` in it."""

Exporter = Callable[..., int]


class Recognizable(Protocol):
    """What is known of a source before it is read. `head`: its first bytes; of a folder, none."""

    name: str
    is_folder: bool
    head: bytes


def required(package: str) -> Any:
    """The package. Raises InvalidInput with what to install."""
    try:
        return import_module(package)
    except ImportError as error:
        raise InvalidInput(
            f"this format needs the package {package.partition('.')[0]} ({error}): "
            f"in a checkout: pip install '.[{EXTRA}]'"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Format:
    """`title`: its name in documents. `reader`: the module that imports it, and after a dot the end of its
    functions, if it has several; `writer`: module and function that export it; empty if it cannot be.

    `is_attachable`: the values of its sources are ranges of them. `is_stream`: it can be written to standard output.
    `magics`: the bytes that files have at `magic_offset`. `has_check`: the reader's module has a function `recognizes`
    for what they do not show. `suffixes`: of its files; the first one is that of a target. `template`: the names of
    records, unless --name is given. `package`: what it needs beside the standard library. `is_mapped`: its library maps
    the whole file. `is_divisible`: the reader's module has a function `starts`, and several processes can read a large
    file.
    """

    name: str
    title: str
    reader: str = ""
    writer: str = ""
    is_attachable: bool = True
    is_stream: bool = False
    magics: tuple[bytes, ...] = ()
    magic_offset: int = 0
    has_check: bool = False
    suffixes: tuple[str, ...] = ()
    template: str = WHOLE_NAME
    package: str = ""
    is_mapped: bool = False
    is_divisible: bool = False

    def read(self) -> Reader:
        """What reads the records. Raises InvalidInput if a package is missing."""
        if self.package:
            required(self.package)
        reader: Reader = self._of_reader("read")
        return reader

    def starts(self, source: Any, jobs: int) -> Iterator[int]:
        """Where parts of an `Input` begin that `jobs` processes can read, but for the first: ascending, above 0."""
        if self.is_divisible and jobs > 1:
            yield from self._of_reader("starts")(source, jobs)

    def export(self) -> Exporter:
        """What writes a dataset. Raises InvalidInput if a package is missing."""
        if self.package:
            required(self.package)
        module, _, function = self.writer.partition(".")
        exporter: Exporter = getattr(import_module(f"dieselfs_tools.archives.exporting.{module}"), function)
        return exporter

    def recognizes(self, source: Recognizable) -> bool:
        """Whether the first bytes of a file, or the content of a folder, are of this format."""
        if source.head.startswith(self.magics, self.magic_offset):
            return True
        return self.has_check and bool(self._of_reader("recognizes")(source))

    def _of_reader(self, function: str) -> Any:
        module, _, part = self.reader.partition(".")
        found = import_module(f"dieselfs_tools.archives.importing.{module}")
        return getattr(found, f"{function}_{part}" if part else function)


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")

FORMATS = {
    one.name: one
    for one in (
        Format(name="erofs", title="EROFS", writer="export.export_image", suffixes=(".erofs",)),
        Format(
            name="tar",
            title="tar",
            reader="tar_file",
            writer="tar_writer.export_tar",
            is_stream=True,
            has_check=True,
            is_divisible=True,
            suffixes=(".tar", ".tgz"),
        ),
        Format(name="webdataset", title="WebDataset", writer="tar_writer.export_shards"),
        Format(
            name="zip", title="zip", reader="zip_file", magics=_ZIP, is_divisible=True, suffixes=(".zip",)
        ),
        Format(
            name="npz",
            title="npz",
            reader="zip_file",
            magics=_ZIP,
            is_divisible=True,
            suffixes=(".npz",),
            template=NUMBERED,
        ),
        Format(
            name="lmdb",
            title="LMDB",
            reader="lmdb_file",
            writer="lmdb_writer.export",
            magics=(b"\xde\xc0\xef\xbe",),
            magic_offset=16,
            has_check=True,
            suffixes=(".lmdb", ".mdb"),
            package="lmdb",
            is_mapped=True,
        ),
        Format(
            name="npy", title="NumPy", reader="array_files.npy", magics=(b"\x93NUMPY",), suffixes=(".npy",)
        ),
        Format(
            name="safetensors",
            title="safetensors",
            reader="array_files.safetensors",
            has_check=True,
            suffixes=(".safetensors",),
        ),
        Format(
            name="hdf5",
            title="HDF5",
            reader="hdf5_file",
            magics=(b"\x89HDF\r\n\x1a\n",),
            suffixes=(".hdf5", ".h5"),
            package="h5py",
        ),
        Format(name="zarr", title="zarr", reader="zarr_folder", has_check=True),
        Format(
            name="parquet",
            title="Parquet",
            reader="parquet_file",
            magics=(b"PAR1",),
            suffixes=(".parquet",),
            template=NUMBERED,
            package="pyarrow",
        ),
        Format(
            name="tfrecord",
            title="TFRecord",
            reader="tfrecord_file",
            has_check=True,
            suffixes=(".tfrecord", ".tfrecords"),
            template=NUMBERED,
            package="google_crc32c",
        ),
        Format(
            name="mds",
            title="MosaicML Streaming (MDS)",
            reader="sample_shards.mds",
            has_check=True,
            suffixes=(".mds",),
        ),
        Format(
            name="litdata",
            title="LitData",
            reader="sample_shards.litdata",
            is_attachable=False,
            has_check=True,
        ),
        Format(name=AS_IT_IS, title="file as it is", reader="array_files.file"),
        Format(name="folder", title="folder", writer="export.export_folder"),
    )
}
"""By the names that `--format` takes; WebDataset shards are imported as tar files."""

IMPORTED = tuple(one.name for one in FORMATS.values() if one.reader)
ATTACHED = tuple(one.name for one in FORMATS.values() if one.reader and one.is_attachable)
EXPORTED = tuple(one.name for one in FORMATS.values() if one.writer)
TARGETS = {one.suffixes[0]: one for one in FORMATS.values() if one.writer and one.suffixes}
"""The formats of targets by their suffix."""


def format_of(source: Recognizable, name: str = AUTO) -> Format:
    """The format with this name, or that of the source's first bytes. Raises InvalidInput."""
    if name != AUTO:
        return FORMATS[name]
    found = [one for one in FORMATS.values() if one.reader and one.recognizes(source)]
    lower_name = source.name.lower()
    for one in found:
        if lower_name.endswith(one.suffixes):  # zip and npz have the same first bytes
            return one
    if found:
        return found[0]
    what = "the folder" if source.is_folder else "its first bytes"
    raise InvalidInput(
        f"{printable(source.name.encode('utf-8', 'surrogateescape'))}: the format is not recognized by {what}; "
        f"name it: --format {'|'.join(IMPORTED)}"
        + (" (plain folders: dlcmd put -r)" if source.is_folder else f" ({AS_IT_IS}: as it is)")
    )


def format_of_target(target: str, name: str = AUTO) -> Format:
    """The format with this name, or that of a target's suffix; `-` is a tar stream. Raises InvalidInput."""
    if name != AUTO:
        return FORMATS[name]
    if target == STANDARD_OUTPUT:
        return next(one for one in FORMATS.values() if one.is_stream)
    for suffix, one in TARGETS.items():
        if target.endswith(suffix):
            return one
    raise InvalidInput(
        f"{target}: the suffix is not {', '.join(TARGETS)}; name the format: --format {'|'.join(EXPORTED)}"
    )
