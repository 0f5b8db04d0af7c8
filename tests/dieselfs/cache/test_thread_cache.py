"""What a process of a job asks of whom, and what it tells of that."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dieselfs.cache.file_reader import FileReader
from dieselfs.cache.thread_cache import COPIES, HeldPayload, ThreadCache
from dieselfs.cluster.attachment import Attachment
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import NodeClient
from dieselfs.errors import Damaged
from dieselfs.limits import KIB, MIB
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.interface import Arrival, Wanted
from dieselfs.sources.server import ServerSource, SharedMemory
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.node_master import NodeMaster, running_master
from tests.support.peer_nodes import CREDENTIAL, PeerNode, running_node

CHUNKS = 8
FILES_EACH = 32
FILE_BYTES = 64 * KIB
CHUNK_BYTES = FILES_EACH * FILE_BYTES
MUCH_BYTES = 64 * MIB
LITTLE_BYTES = CHUNK_BYTES // 2
"""There is no room for any chunk."""
PASSING_BYTES = 2 * CHUNK_BYTES
"""There is room for one chunk, in transit."""
ME = Member("me", 0, TcpAddress("127.0.0.1", 1), 1 << 30, bytes(16))


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [
        TreeEntry(b"%03d" % n, 0o100644, 0, bytes([n]) * FILE_BYTES) for n in range(CHUNKS * FILES_EACH)
    ]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class Server(ServerSource):
    """A server's chunks, without the server."""

    def __init__(self, packed: PackedDataset, unused: Path) -> None:
        super().__init__(ServerClient(Settings(unused, unused, f"unix:{unused}")), packed.snapshot)
        self.source: MemoryChunkSource = packed.source()

    def shared(self, chunks: Sequence[int], wanted_bytes: int) -> dict[int, SharedMemory]:
        """Nothing: it is on another machine."""
        return {}

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self.source.fetch_chunk_into(chunk, destination)

    def fetch_chunk(self, chunk: int) -> bytearray:
        return bytearray(self.source.fetch_chunk(chunk))

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        return self.source.fetch_many(wanted)

    @property
    def fetched(self) -> int:
        return len(self.source.fetched_chunks) + len(self.source.fetched_extents)


class Process:
    """A process of a job of two nodes."""

    def __init__(
        self, packed: PackedDataset, path: Path, master: NodeMaster, other: PeerNode, memory_bytes: int
    ) -> None:
        self.packed, self.master, self.other = packed, master, other
        self.server = Server(packed, path.parent / "unused")
        node = NodeClient(path, packed.snapshot.digest)
        self.job = Attachment(packed.snapshot, self.server, node, "me", CREDENTIAL)
        self.held = ThreadCache(self.server, memory_bytes, self.job)

    def extents(self, files: Sequence[int]) -> dict[int, list[ExtentRef]]:
        wanted: dict[int, list[ExtentRef]] = {}
        for number in files:
            for extent in self.packed.snapshot.extents(self.packed.snapshot.find(b"%03d" % number)):
                wanted.setdefault(extent.chunk, []).append(extent)
        return wanted

    def reads(self, files: Sequence[int], is_shared_plan: bool = False) -> set[int]:
        """Read files, compare them, and return the chunks that were not in memory."""
        contents, missed = self.held.contents(Wanted(self.extents(files), is_shared_plan), COPIES)
        assert {bytes(content[:1]) for content in contents.values()} == {bytes([number]) for number in files}
        assert all(content == content[:1] * FILE_BYTES for content in contents.values())
        return missed

    @property
    def own(self) -> set[int]:
        return self.job.own_among(range(CHUNKS))


@contextmanager
def process(packed: PackedDataset, memory_bytes: int = MUCH_BYTES) -> Iterator[Process]:
    folder = Path(tempfile.mkdtemp(prefix="node-"))
    path = folder / "master.sock"
    try:
        with (
            running_node(packed, "other") as other,
            running_master(packed, path, [ME, other.member]) as master,
        ):
            running = Process(packed, path, master, other, memory_bytes)
            try:
                yield running
            finally:
                running.held.close()
    finally:
        shutil.rmtree(folder)


def test_slices_of_the_memory_are_copies_and_those_of_the_view_are_not_writable() -> None:
    memory = mmap.mmap(-1, 100)
    memory[:] = bytes([7]) * 100
    payload = HeldPayload.of(memory)
    assert payload.memory[10:13] == payload.view[10:13] == bytes([7]) * 3
    assert type(payload.memory[10:13]) is bytes
    with pytest.raises(TypeError):
        payload.view[0] = 1


def test_a_pinned_payload_has_a_slot_that_no_other_ever_gets(packed: PackedDataset, tmp_path: Path) -> None:
    held = ThreadCache(Server(packed, tmp_path / "unused"), MUCH_BYTES)
    extents = packed.snapshot.extents(packed.snapshot.find(b"000"))
    for _ in range(2):
        held.contents(Wanted({extents[0].chunk: extents}), COPIES)
    payload, slot = held.policy.pinned[extents[0].chunk], held.slots[extents[0].chunk]
    assert held.memories[slot] is payload.memory and held.views[slot] is payload.view
    held.close()
    for _ in range(2):
        assert held.contents(Wanted({extents[0].chunk: extents}), COPIES)[0] == {
            extents[0]: bytes(FILE_BYTES)
        }
    assert not held.policy.pinned and not held.memories and not held.views


def adds_up(figures: dict[str, Any]) -> bool:
    requested: dict[str, int] = figures["requested"]
    ways = ("node_bytes", "peer_bytes", "server_bytes", "failed_bytes")
    counts = ("from_node", "from_peers", "from_servers", "failed")
    return requested["bytes"] == sum(requested[way] for way in ways) and requested["extents"] == sum(
        requested[way] for way in counts
    )


FIRST_OF_EACH = range(0, CHUNKS * FILES_EACH, FILES_EACH)


def test_extents_of_many_chunks_are_one_request_to_each_owner(packed: PackedDataset) -> None:
    with process(packed) as running:
        assert running.reads(FIRST_OF_EACH) == {*range(CHUNKS)}
        others = CHUNKS - len(running.own)
        assert running.job.peers.metrics.numbers()["peers.requests"] == 1 and running.server.fetched == 0
        figures = running.held.metrics.as_dict()
        assert (
            adds_up(figures)
            and figures["requested"]["server_bytes"] == figures["requested"]["failed_bytes"] == 0
        )
        assert figures["chunk_cache"]["shared_chunks"] == len(running.own)
        assert figures["requested"]["node_bytes"] == len(running.own) * CHUNK_BYTES
        assert (
            figures["requested"]["peer_bytes"]
            == figures["chunk_cache"]["extent_bytes"]
            == others * FILE_BYTES
        )


def test_a_chunk_of_another_node_that_is_worth_it_comes_whole_from_there(packed: PackedDataset) -> None:
    with process(packed) as running:
        running.reads(FIRST_OF_EACH)
        seconds = [running.reads([number + 1]) for number in FIRST_OF_EACH]
        assert set().union(*seconds) == {*range(CHUNKS)} - running.own
        assert running.reads([*range(CHUNKS * FILES_EACH)]) == set()
        others = CHUNKS - len(running.own)
        figures = running.held.metrics.as_dict()
        assert (
            adds_up(figures)
            and figures["chunk_cache"]["fetched_chunks"] == others
            and running.server.fetched == 0
        )
        assert figures["requested"]["peer_bytes"] == others * (FILE_BYTES + CHUNK_BYTES)


def test_many_at_once_in_random_order_chunks_of_other_nodes_come_by_the_file(packed: PackedDataset) -> None:
    with process(packed) as running:
        for place in range(2):
            running.reads([number + place for number in FIRST_OF_EACH])
        others = CHUNKS - len(running.own)
        figures = running.held.metrics.as_dict()
        assert figures["chunk_cache"]["fetched_chunks"] == 0 and running.server.fetched == 0
        assert figures["requested"]["peer_bytes"] == 2 * others * FILE_BYTES


def test_one_by_one_in_random_order_a_chunk_of_another_node_costs_two_requests(packed: PackedDataset) -> None:
    with process(packed) as running:
        files = [*range(CHUNKS * FILES_EACH)]
        Random(1).shuffle(files)
        misses = sum(len(running.reads([number])) for number in files)
        others = CHUNKS - len(running.own)
        assert running.job.peers.metrics.numbers()["peers.requests"] == 2 * others
        assert misses == len(running.own) + 2 * others and running.server.fetched == 0


def test_a_process_without_room_has_everything_from_the_nodes_all_the_same(packed: PackedDataset) -> None:
    with process(packed, LITTLE_BYTES) as running:
        for _ in range(3):
            assert running.reads(FIRST_OF_EACH) == {*range(CHUNKS)}
        figures = running.held.metrics.as_dict()
        assert adds_up(figures) and running.server.fetched == 0
        assert (
            figures["requested"]["bytes"] == 3 * CHUNKS * FILE_BYTES == figures["chunk_cache"]["extent_bytes"]
        )
        assert figures["requested"]["node_bytes"] == 3 * len(running.own) * FILE_BYTES
        assert running.job.peers.metrics.numbers()["peers.requests"] == 3


def test_a_shared_chunk_is_held_once_much_of_it_is_wanted(
    packed: PackedDataset,
) -> None:
    with process(packed, PASSING_BYTES) as running:
        own = min(running.own)
        files = [own * FILES_EACH + number for number in range(FILES_EACH)]
        assert running.reads(files[:1]) == {own}
        figures = running.held.metrics.as_dict()
        assert (
            figures["chunk_cache"]["shared_chunks"] == 0
            and figures["requested"]["node_bytes"] == figures["chunk_cache"]["extent_bytes"] == FILE_BYTES
        )
        assert running.reads(files[1:16]) == {own} and running.reads(files) == set()
        figures = running.held.metrics.as_dict()
        assert (
            figures["chunk_cache"]["shared_chunks"] == 1
            and figures["requested"]["node_bytes"] == FILE_BYTES + CHUNK_BYTES
        )
        assert adds_up(figures) and running.server.fetched == 0


def test_of_a_shared_chunk_a_plan_is_read_from_memory_at_once(packed: PackedDataset) -> None:
    with process(packed, PASSING_BYTES) as running:
        own = min(running.own)
        assert running.reads([own * FILES_EACH], is_shared_plan=True) == {own}
        assert running.reads([own * FILES_EACH + 1], is_shared_plan=True) == set()
        assert running.held.metrics.as_dict()["chunk_cache"]["shared_chunks"] == 1


def test_of_a_chunk_of_another_node_a_rank_of_a_plan_takes_its_extents(packed: PackedDataset) -> None:
    with process(packed) as running:
        other = min({*range(CHUNKS)} - running.own)
        files = [other * FILES_EACH + number for number in range(FILES_EACH)]
        for number in range(0, FILES_EACH, 4):
            assert running.reads(files[number : number + 4], is_shared_plan=True) == {other}
        figures = running.held.metrics.as_dict()
        assert (
            figures["chunk_cache"]["fetched_chunks"] == 0
            and figures["requested"]["peer_bytes"] == CHUNK_BYTES
            and adds_up(figures)
        )
        assert running.reads(files[: FILES_EACH // 4], is_shared_plan=True) == {
            other
        }  # unless it is much at one time
        assert running.held.metrics.as_dict()["chunk_cache"]["fetched_chunks"] == 1


def test_what_nobody_has_comes_from_the_server(packed: PackedDataset) -> None:
    with process(packed) as running:
        own = running.own
        running.job.close()
        assert running.reads(FIRST_OF_EACH) == {*range(CHUNKS)} and running.server.fetched == CHUNKS
        figures = running.held.metrics.as_dict()
        assert adds_up(figures) and figures["requested"]["server_bytes"] == CHUNKS * FILE_BYTES and own


def test_what_is_damaged_everywhere_counts_as_failed(packed: PackedDataset) -> None:
    with process(packed) as running:
        servers = [running.server.source, running.master.server, running.other.server]
        own, foreign = min(running.own), min({*range(CHUNKS)} - running.own)
        for source in servers:
            assert isinstance(source, MemoryChunkSource)
            source.payloads[own][0] ^= 1  # of the first file of each
            source.payloads[foreign][0] ^= 1
        with pytest.raises(Damaged):
            running.reads(FIRST_OF_EACH)
        figures = running.held.metrics.as_dict()
        assert adds_up(figures) and figures["requested"]["failed_bytes"] == 2 * FILE_BYTES
        assert running.reads([number + 1 for number in FIRST_OF_EACH]) != set()
        assert adds_up(running.held.metrics.as_dict())


def test_without_a_job_the_figures_add_up_too(packed: PackedDataset, tmp_path: Path) -> None:
    server = Server(packed, tmp_path / "unused")
    reader = FileReader(server, MUCH_BYTES)
    names = [b"%03d" % number for number in FIRST_OF_EACH]
    for _ in range(2):
        assert [content[:1] for content in reader.get_many(names)] == [bytes([n]) for n in FIRST_OF_EACH]
    figures = reader.metrics.as_dict()
    assert adds_up(figures) and figures["requested"]["server_bytes"] == CHUNKS * (FILE_BYTES + CHUNK_BYTES)
    server.source.payloads[0][FILE_BYTES] ^= 1
    damaged = FileReader(server, MUCH_BYTES)
    assert damaged.get(names[0]) == bytes(FILE_BYTES)
    with pytest.raises(Damaged):
        damaged.get(b"001")
    figures = damaged.metrics.as_dict()
    assert adds_up(figures) and figures["requested"]["failed_bytes"] == CHUNK_BYTES + FILE_BYTES


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_reads_on_and_counts_from_zero(packed: PackedDataset) -> None:
    with process(packed) as running:
        reader = FileReader(running.server, MUCH_BYTES, running.job)
        names = [b"%03d" % number for number in FIRST_OF_EACH]
        assert len(reader.get_many(names)) == CHUNKS
        child = os.fork()
        if not child:
            code = 1
            try:
                is_right = (
                    len(reader.get_many([b"%03d" % (number + 1) for number in FIRST_OF_EACH])) == CHUNKS
                )
                figures = reader.metrics.as_dict()
                is_right &= (
                    adds_up(figures) and figures["files"]["hits"] + figures["files"]["misses"] == CHUNKS
                )
                code = (
                    0
                    if is_right and figures["requested"]["bytes"] == figures["requested"]["peer_bytes"] > 0
                    else 2
                )
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        figures = reader.metrics.as_dict()
        assert adds_up(figures) and figures["files"]["misses"] == CHUNKS
