"""Payloads as segments: received in parts, and nothing but what was asked for."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from dieselfs.cache.policy import LARGE_EXTENT_BYTES
from dieselfs.chunk.blocks import BLOCK_BYTES, block_range, bytes_of
from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import MIB
from dieselfs.rpc import content_calls, payload_files
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.connection import Connection
from dieselfs.rpc.records import PayloadFile
from dieselfs.settings import Settings
from dieselfs.sources import server as server_source
from dieselfs.sources.interface import Slices
from dieselfs.sources.plain import node_source
from dieselfs.sources.server import AHEAD_CHUNKS, FETCHES_MAX, PART_BYTES, ServerSource, is_intact
from tests.support.descriptors import descriptor_count
from tests.support.server import RunningServer, running_server

CONTENTS = [os.urandom(3 * PART_BYTES + 17), os.urandom(100), os.urandom(MIB)]


class DamagingClient(ServerClient):
    """The first payloads that come have another byte in the middle."""

    def __init__(self, settings: Settings, damaged: int) -> None:
        super().__init__(settings)
        self.damaged = damaged

    def payload_in_parts(
        self,
        dataset: str,
        chunk_id: bytes,
        length_bytes: int,
        parts: Callable[[], Iterator[memoryview]],
        is_sent: bool = False,
        ahead: Sequence[bytes] = (),
        room_of: Callable[[int], memoryview] | None = None,
    ) -> None:
        def damaged_parts() -> Iterator[memoryview]:
            for number, part in enumerate(parts()):
                yield part
                if not number:
                    part[len(part) // 2] ^= 1

        is_damaged, self.damaged = self.damaged > 0, self.damaged - 1
        super().payload_in_parts(
            dataset, chunk_id, length_bytes, damaged_parts if is_damaged else parts, is_sent, ahead, room_of
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        with Dataset(running.settings(), "data", must_exist=False) as data:
            data.create()
            for number, content in enumerate(CONTENTS):
                data.put(str(number), content)
        yield running


@pytest.fixture(params=["tcp", "unix"])
def settings(request: pytest.FixtureRequest, server: RunningServer) -> Settings:
    """Over TCP payloads are sent, over the Unix socket they are read from the server's files."""
    if request.param == "unix":
        return server.settings()
    key_file: Path = server.folder / "reader.key"
    return server.settings(key_file if key_file.exists() else server.user("reader", data="read"))


def test_a_segment_holds_the_payload_whatever_its_length(settings: Settings) -> None:
    with Dataset(settings, "data") as data:
        reader = ServerSource(data.client, data.snapshot)
        for chunk in range(data.snapshot.chunk_count):
            segment = reader.fetch_segment(chunk)
            assert bytes(segment.view) == reader.fetch_chunk(chunk)
            with pytest.raises(PermissionError):
                os.pwrite(segment.descriptor, b"x", 0)
            segment.close()
        assert data.get("0") == CONTENTS[0]


def test_what_came_damaged_is_fetched_once_more_from_its_beginning(settings: Settings) -> None:
    with Dataset(settings, "data") as data:
        client = DamagingClient(settings, FETCHES_MAX - 1)
        reader = ServerSource(client, data.snapshot)
        segment = reader.fetch_segment(0)
        assert is_intact(data.snapshot, 0, Slices.of_payload(segment.view))
        segment.close()
        client.damaged = FETCHES_MAX
        before = descriptor_count()
        with pytest.raises(Damaged, match="digest"):
            reader.fetch_segment(0)
        assert descriptor_count() == before
        client.close()


class DamagingRanges(ServerClient):
    """The first ranges that come, also from files, have another first byte."""

    damaged = 0

    def ranges(self, dataset: str, chunk_id: bytes, ranges: npt.NDArray[np.uint32]) -> bytearray:
        return self._damage(super().ranges(dataset, chunk_id, ranges))

    def part(
        self,
        dataset: str,
        chunk_id: bytes,
        start: int,
        length: int,
        take_checksums: Callable[[bytes], object] | None = None,
    ) -> bytearray | None:
        received = super().part(dataset, chunk_id, start, length, take_checksums)
        return None if received is None else self._damage(received)

    def _damage(self, received: bytearray) -> bytearray:
        received[0] ^= self.damaged > 0
        self.damaged -= 1
        return received


@given(st.data())
@hypothesis.settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_blocks_are_those_of_the_payload(settings: Settings, data: st.DataObject) -> None:
    with Dataset(settings, "data") as opened:
        reader = ServerSource(opened.client, opened.snapshot)
        chunk = data.draw(st.integers(0, opened.snapshot.chunk_count - 1))
        payload = reader.fetch_chunk(chunk)
        _, blocks = block_range(0, len(payload))
        for _ in range(3):
            first = data.draw(st.integers(0, blocks - 1))
            end = data.draw(st.integers(first + 1, blocks))
            start, length = bytes_of(first, end, len(payload))
            assert reader.fetch_blocks(chunk, first, end) == payload[start : start + length]


def test_a_damaged_block_is_fetched_once_more(settings: Settings) -> None:
    with Dataset(settings, "data") as data:
        client = DamagingRanges(settings)
        reader = ServerSource(client, data.snapshot)
        client.damaged = FETCHES_MAX - 1
        assert reader.fetch_blocks(0, 0, 1) == reader.fetch_chunk(0)[:BLOCK_BYTES]
        client.damaged = FETCHES_MAX
        with pytest.raises(Damaged, match="checksum of a block"):
            reader.fetch_blocks(0, 0, 1)
        client.close()


class OddChecksums(ServerClient):
    """Checksums that come with a file are not those of its blocks."""

    def part(
        self,
        dataset: str,
        chunk_id: bytes,
        start: int,
        length: int,
        take_checksums: Callable[[bytes], object] | None = None,
    ) -> bytearray | None:
        if take_checksums is not None:
            take_checksums(bytes(8))
        return super().part(dataset, chunk_id, start, length)


@pytest.mark.parametrize(("kind", "calls"), [(ServerClient, 1), (OddChecksums, 2)])
def test_the_checksums_of_blocks_come_with_the_file(
    server: RunningServer, kind: type[ServerClient], calls: int
) -> None:
    with Dataset(server.settings(), "data") as data, closing(kind(server.settings())) as client:
        source = ServerSource(client, data.snapshot)
        payload = ServerSource(data.client, data.snapshot).fetch_chunk(0)
        before = calls_and_bytes(data)[0]
        for first in (0, 2, 1):
            start = first * BLOCK_BYTES
            assert source.fetch_blocks(0, first, first + 1) == payload[start : start + BLOCK_BYTES]
        assert calls_and_bytes(data)[0] == before + calls + 1, "that of the status"


MANY = 2 * AHEAD_CHUNKS + 5


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """A dataset of MANY chunks, of one file each."""
    with running_server(tmp_path_factory.mktemp("many")) as server:
        with Dataset(server.settings(), "many", must_exist=False) as data:
            data.create()
            for number in range(MANY):
                data.put(str(number), str(number).encode())
                data.flush()
        with Dataset(server.settings(), "many") as data:
            yield data


def calls_and_bytes(data: Dataset) -> tuple[int, int]:
    """Calls to the server, with this one, and bytes of chunks that it has sent, so far."""
    metrics = data.client.status().metrics
    return int(metrics["rpc.requests"]), int(metrics["payloads.sent_bytes"])


def fetch(source: ServerSource, data: Dataset, chunks: Sequence[int]) -> tuple[int, int, int]:
    """Fetch chunks; the calls to the server for it, and the bytes that it and that the source have counted."""
    before = calls_and_bytes(data)
    for chunk in chunks:
        assert len(source.fetch_chunk(chunk)) == data.snapshot.chunk_payload_length(chunk)
    calls, sent_bytes = calls_and_bytes(data)
    received_bytes = sum(map(data.snapshot.chunk_payload_length, chunks))
    return calls - before[0] - 1, sent_bytes - before[1], received_bytes


def test_a_run_of_chunks_takes_one_call_for_many_files(many: Dataset) -> None:
    source = node_source(many.client, many.snapshot, None)
    order = [*range(MANY)]
    order[5], order[6] = order[6], order[5]  # of several threads
    calls, sent_bytes, received_bytes = fetch(source, many, order)
    assert calls == AHEAD_CHUNKS + 2  # the first ones, and two for files ahead
    assert sent_bytes == received_bytes
    assert fetch(source, many, order[::-1])[0] == MANY


@pytest.mark.parametrize("is_of_job", [True, False])
def test_no_file_is_opened_that_is_not_read(many: Dataset, is_of_job: bool) -> None:
    """In a job, also not for a run that ends; without one, not for chunks in any other order."""
    source = node_source(many.client, many.snapshot, None, opens_ahead=not is_of_job)
    steps = [*range(AHEAD_CHUNKS)] if is_of_job else [*range(0, MANY, 2), *range(1, MANY, 2)]
    calls, sent_bytes, received_bytes = fetch(source, many, steps)
    assert (calls, sent_bytes) == (len(steps), received_bytes)


@pytest.mark.parametrize("trouble", ["refuses", "is older", "is away"])
def test_a_server_that_opens_no_files_ahead_fails_no_fetch(
    many: Dataset, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def opened(connection: Connection, arguments: dict[str, object], timeout_s: float) -> list[PayloadFile]:
        if trouble == "is away":
            connection.close()
            raise Unavailable("lost the server")
        if trouble == "is older":  # it does not know the call
            connection.call_for_files("ping", {}, timeout_s)
        connection.call_for_files("open_payloads", arguments | {"chunk_ids": b"short"}, timeout_s)
        raise AssertionError("not refused")

    monkeypatch.setattr(content_calls, "opened_files", opened)
    source = node_source(many.client, many.snapshot, None)
    _, sent_bytes, received_bytes = fetch(source, many, range(MANY))
    assert sent_bytes == received_bytes
    assert many.client.failures() == 0


LARGE_CHUNKS = 64


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """A dataset of LARGE_CHUNKS chunks, each of one extent that is read in blocks."""
    with running_server(tmp_path_factory.mktemp("large")) as server:
        with Dataset(server.settings(), "large", must_exist=False) as data:
            data.create()
            for number in range(LARGE_CHUNKS):
                data.put(f"{number:02}", bytes([number]) * LARGE_EXTENT_BYTES)
                data.flush()
        with Dataset(server.settings(), "large") as data:
            yield data


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be done in the background is done before the read returns."""

    class Now:
        def __init__(self, target: Callable[[], None], **_: Any) -> None:
            self.start = target

    monkeypatch.setattr(server_source, "Thread", Now)


def read_blocks(data: Dataset, source: ServerSource, chunks: Sequence[int]) -> int:
    """Read a block of each chunk, and verify it; the calls to the server for it."""
    extents = [data.snapshot.sole_extent_at(b"%02d" % number) for number in range(LARGE_CHUNKS)]
    numbers = {extent[0]: number for number, extent in enumerate(extents) if extent is not None}
    before = calls_and_bytes(data)[0]
    for chunk in chunks:
        first = chunk % (LARGE_EXTENT_BYTES // BLOCK_BYTES)
        content = bytes(source.fetch_blocks(chunk, first, first + 1))
        assert content == bytes([numbers[chunk]]) * BLOCK_BYTES
    return calls_and_bytes(data)[0] - before - 1


@pytest.mark.usefixtures("at_once")
def test_reads_at_random_places_soon_need_no_calls(large: Dataset) -> None:
    for seed in range(5):
        with closing(ServerClient(large.client.settings)) as client:
            source = node_source(client, large.snapshot, None)
            order = np.random.default_rng(seed).permutation(LARGE_CHUNKS).tolist()
            assert read_blocks(large, source, order) < LARGE_CHUNKS // 2
            assert read_blocks(large, source, order) == 0


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("reason", ["one read", "a job", "too many chunks"])
def test_nothing_is_opened_around_a_chunk_without_a_reason(
    large: Dataset, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "too many chunks":
        monkeypatch.setattr(payload_files, "OPENED_SHARE", 0.0)
    chunks = [LARGE_CHUNKS // 2] if reason == "one read" else [*range(LARGE_CHUNKS)]
    before = descriptor_count()
    with closing(ServerClient(large.client.settings)) as client:
        source = node_source(client, large.snapshot, None, opens_ahead=reason != "a job")
        assert read_blocks(large, source, chunks) == len(chunks)
    assert descriptor_count() == before


@pytest.mark.usefixtures("at_once")
def test_blocks_that_were_damaged_after_their_file_was_opened_are_refused(large: Dataset) -> None:
    with closing(DamagingRanges(large.client.settings)) as client:
        source = node_source(client, large.snapshot, None)
        read_blocks(large, source, [*range(LARGE_CHUNKS)])
        client.damaged = FETCHES_MAX
        with pytest.raises(Damaged, match="checksum of a block"):
            source.fetch_blocks(LARGE_CHUNKS - 1, 0, 1)
        assert read_blocks(large, source, [LARGE_CHUNKS - 1]) == 0
