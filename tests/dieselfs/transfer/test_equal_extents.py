"""Uploads of bytes that are stored already: what refers to them, and what is read again."""

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dieselfs.chunk.builder import SealedChunk
from dieselfs.dataset import Dataset
from dieselfs.digests import extent_digest_of
from dieselfs.errors import AccessDenied, Damaged, DieselfsError, SourceChanged
from dieselfs.limits import MIB
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer import equal_extents
from dieselfs.transfer.equal_extents import EqualExtents
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import SourceEntry, TreeUpload, source_entry
from tests.support.dataset import pack_tree


class Streamed(SourceEntry):
    """A file that counts as part of a stream."""

    is_streamed = True


def share(
    data: Dataset,
    files: Sequence[tuple[str, Path]],
    kind: type[SourceEntry] = SourceEntry,
    is_purged: bool = False,
) -> TransferReport:
    """Upload files under these paths. `is_purged`: another one deletes `gone` once the upload has looked."""

    def newest() -> Snapshot:
        nonlocal is_purged
        data.refresh()
        found = data.snapshot
        if is_purged:
            is_purged = False
            data.delete("gone")
            data.flush()
            assert data.client.purge(data.name, 0, False).chunks_removed
        return found

    def walk(failed: object) -> Iterator[SourceEntry]:
        for path, place in files:
            for entry in source_entry(os.fsencode(place), path.encode(), lambda *_: None):
                yield kind(*entry)

    upload = TreeUpload(data.client, data.create(), None, chunk_bytes=MIB, equals=EqualExtents(newest))
    report = upload.run(walk)
    assert report.found_files == report.done_files + report.failed_files
    data.refresh()
    for path, place in dict(files).items():
        assert report.failures or data.get(path) == place.read_bytes()
    return report


def made(folder: Path, **sizes: int) -> dict[str, Path]:
    for name, size in sizes.items():
        (folder / name).write_bytes(os.urandom(size))
    return {name: folder / name for name in sizes}


def test_a_file_of_equal_bytes_many_times_is_stored_once(data: Dataset, tmp_path: Path) -> None:
    found = made(tmp_path, small=100_000, large=2 * MIB + 99_000)
    files = [(f"{name}{turn}", place) for turn in range(7) for name, place in found.items()]
    report = share(data, files)
    assert report.done_bytes == 7 * (report.done_bytes - report.shared_bytes)
    again = share(data, [(f"again/{path}", place) for path, place in files])
    assert again.shared_bytes == again.done_bytes == report.done_bytes
    assert data.record().total_bytes == 14 * (2 * MIB + 199_000)


def test_less_than_a_reference_saves_is_stored_again(data: Dataset, tmp_path: Path) -> None:
    found = made(tmp_path, one=30_000, two=30_000, gap=500_000, three=40_000)
    share(data, list(found.items()))
    few = [(f"few/{name}", found[name]) for name in ("one", "two", "three")]
    assert share(data, few).shared_bytes == 0, "the gap is too large for one reference"
    more = [*few, ("few/gap", found["gap"])]
    assert share(data, [(f"more/{path}", place) for path, place in more]).shared_bytes == 600_000


def test_the_last_source_of_a_path_counts(data: Dataset, tmp_path: Path) -> None:
    found = made(tmp_path, first=100_000, other=100_001)
    share(data, list(found.items()))
    share(data, [("x", found["first"]), ("x", found["other"]), ("y", found["other"]), ("y", found["first"])])


@pytest.mark.parametrize("size", [100_000, 2 * MIB + 5])
def test_bytes_that_are_gone_meanwhile_are_read_again(data: Dataset, tmp_path: Path, size: int) -> None:
    found = made(tmp_path, gone=size)
    share(data, list(found.items()))
    report = share(data, [("again", found["gone"]), ("third", found["gone"])], is_purged=True)
    assert report.done_bytes == 2 * size


def test_a_streamed_file_is_in_memory_unless_it_is_large(data: Dataset, tmp_path: Path) -> None:
    found = made(tmp_path, gone=100_000)
    share(data, list(found.items()))
    share(data, [("again", found["gone"])], Streamed, is_purged=True)
    found = made(tmp_path, gone=2 * MIB)
    share(data, list(found.items()))
    report = share(data, [("large", found["gone"])], Streamed, is_purged=True)
    assert [reason for _, reason in report.failures] == ["the file with the same bytes is gone; run it again"]
    assert not data.exists("large")
    share(data, [("large", found["gone"]), ("other", found["gone"])], Streamed)


def test_small_streamed_files_refer_together(data: Dataset, tmp_path: Path) -> None:
    found = made(tmp_path, **{f"f{number}": 20_000 for number in range(20)})
    share(data, list(found.items()), Streamed)
    report = share(data, [(f"again/{name}", place) for name, place in found.items()], Streamed)
    assert report.shared_bytes == 20 * 20_000


@pytest.mark.parametrize("size", [100_000, 2 * MIB + 5])
@pytest.mark.parametrize("refusal", [AccessDenied, Damaged])
def test_servers_that_make_no_references_get_the_bytes(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, refusal: type[DieselfsError]
) -> None:
    found = made(tmp_path, a=size)
    share(data, list(found.items()))
    put_chunk = data.client.put_chunk

    def refusing(dataset: str, chunk_id: bytes, parts: Sequence[bytes], key_id: bytes = b"") -> int:
        if b"chunk://" in parts[0]:
            raise refusal("only older servers, or what is stored is damaged")
        return put_chunk(dataset, chunk_id, parts, key_id)

    monkeypatch.setattr(data.client, "put_chunk", refusing)
    report = share(data, [("b", found["a"]), ("c", found["a"])])
    assert report.done_bytes == 2 * size


def test_a_file_that_fails_counts_once_and_leaves_no_reference(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made(tmp_path, a=3 * MIB)
    share(data, list(found.items()))
    chunks = data.record().chunks
    monkeypatch.setattr(equal_extents, "REFERENCE_BYTES_MIN", 4 * MIB)  # so it would be read again

    class Changed(SourceEntry):
        def contents(self, ranges: Iterable[tuple[int, int]]) -> Generator[bytes]:
            yield from super().contents(islice(ranges, 2))
            raise SourceChanged("changed while it was read")

    report = share(data, [("b", found["a"])], Changed)
    assert (report.found_files, report.failed_files, len(report.failures)) == (1, 1, 1)
    assert data.record().chunks == chunks


def test_large_streamed_files_wait_in_bounded_memory(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_extents, "WAITING_MAX", 3)
    waited = list[int]()
    references = EqualExtents.references

    def counted(self: EqualExtents) -> tuple[list[SealedChunk], set[bytes]]:
        waited.append(sum(map(len, self.waiting.values())))
        return references(self)

    monkeypatch.setattr(EqualExtents, "references", counted)
    found = made(tmp_path, a=2 * MIB)
    share(data, list(found.items()))
    report = share(data, [(f"again{number}", found["a"]) for number in range(9)], Streamed)
    assert report.shared_bytes == 18 * MIB and max(waited) <= 4


def test_waiting_files_take_bounded_memory(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_extents, "WAITING_MAX", 3)
    monkeypatch.setattr(equal_extents, "HELD_BYTES_MAX", 500_000)
    found = made(tmp_path, a=100_000)
    for kind in SourceEntry, Streamed:
        report = share(data, [(f"{kind.__name__}{number}", found["a"]) for number in range(700)], kind)
        assert report.shared_bytes >= 699 * 100_000


def test_extents_are_found_by_their_digests(tmp_path: Path) -> None:
    source = np.random.default_rng(3)
    contents = [source.bytes(int(size)) for size in source.integers(1, 9, 60)]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    snapshot = pack_tree(tmp_path).snapshot
    index = equal_extents._Index(snapshot)
    asked = contents + [source.bytes(9) for _ in range(20)]
    numbers = index.find_many([extent_digest_of(content) for content in asked])
    assert [number < 0 for number in numbers] == [content not in contents for content in asked]
    refs = snapshot.extent_refs(numbers[: len(contents)])
    assert [ref.digest for ref in refs] == [extent_digest_of(content) for content in contents]
    (tmp_path / "empty").mkdir()
    nothing = equal_extents._Index(pack_tree(tmp_path / "empty").snapshot)
    assert nothing.find_many([bytes(16)]).tolist() == [-1]
