"""The important files of the mounts of a job, in one process: each mount with the service of a node of its own."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import trio

from dieselfs.arrays import Numbers
from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.importance.scored_files import ScoredFiles
from dieselfs.limits import MIB
from dieselfs.prefetch.extent_table import PAGE_BYTES, Extents, ExtentTable
from dieselfs.samples.sample_store import name_for
from dieselfs.sources.decrypted import Decryption
from dieselfs_client.cluster.job_files import JobFiles
from dieselfs_client.cluster.job_nodes import JobNodes
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.prefetch.batches import Batch
from dieselfs_client.prefetch.budget import PrefetchBudget
from dieselfs_client.prefetch.kept_files import KeptFiles
from dieselfs_client.prefetch.tripwires import Tripwires
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.peer_nodes import CREDENTIAL, PeerNode, running_node

FILE_BYTES = 60
CIPHER = DatasetCipher(bytes(range(32)))


def name_of(number: int) -> bytes:
    return b"%05d" % number


def content_of(number: int) -> bytes:
    return name_of(number) * (FILE_BYTES // 5)


def packed_files(files: int, chunk_bytes: int, is_encrypted: bool = False) -> PackedDataset:
    """Files that span chunks where one begins in the rest of a chunk. `is_encrypted`: the snapshot is marked so."""
    entries = [TreeEntry(name_of(n), 0o100644, 0, content_of(n)) for n in range(files)]
    packed = pack_entries(entries, chunk_bytes=chunk_bytes)
    packed.snapshot.header = replace(packed.snapshot.header, is_encrypted=is_encrypted)
    return packed


class Job:
    """The mounts of a job on nodes of their own, and what its members are. `capacity`: of each, in files."""

    def __init__(self, packed: PackedDataset, secret: str, stack: ExitStack, capacity: int) -> None:
        self.packed, self.secret, self.stack, self.capacity = packed, secret, stack, capacity
        find, files = packed.snapshot.find, range(packed.snapshot.header.files)
        self.by_file = {find(name_of(n)): content_of(n) for n in files}
        self.nodes: dict[str, PeerNode] = {}
        self.members: set[str] = set()
        self.mounts: dict[str, Mount] = {}

    def add(self, *names: str) -> "list[Mount]":
        for name in names:
            mount = self.mounts[name] = Mount(self, name)
            self.nodes[name] = self.stack.enter_context(
                running_node(self.packed, name, room_bytes=1 << 20, files=mount.files)
            )
        self.members.update(names)
        return [self.mounts[name] for name in names]

    def others(self, name: str) -> list[Member]:
        return [self.nodes[node].member for node in sorted(self.members - {name})]

    def held(self) -> list[int]:
        """The files in the memory of all members."""
        return sorted(file for name in self.members for file in self.mounts[name].held())


class Mount:
    def __init__(self, job: Job, name: str) -> None:
        self.job, self.name = job, name
        self.scored = ScoredFiles(job.packed.snapshot)
        self.client: PeerClient | None = PeerClient(CREDENTIAL, job.packed.snapshot.digest)
        """None before the mount is in the job."""
        self.folder = name_for(f"{job.secret} {name}")
        nodes = JobNodes(name, partial(job.others, name), lambda: True, self.peers)
        self.files = JobFiles(job.packed.snapshot, nodes, self.scored, self.folder)
        if job.packed.snapshot.header.is_encrypted:
            self.files.decryption = Decryption(job.packed.snapshot, lambda: CIPHER)
        self.files.open(job.capacity, np.ones(len(job.packed.snapshot), np.int64))
        job.stack.callback(self.client.close)
        job.stack.callback(self.files.close)

    def peers(self) -> PeerClient:
        if self.client is None:
            raise Unavailable("not yet")
        return self.client

    def read(self, files: list[int]) -> Counter[str]:
        """As the prefetcher: what the job keeps, and the rest from elsewhere. Returns where the files were."""
        found = self.files.fetch(files)
        assert all(content == self.job.by_file[file] for file, content in found.contents.items())
        assert set(found.wanted).isdisjoint(found.contents)
        self.files.give({file: self.job.by_file[file] for file in found.wanted})
        peers = len([*found.from_peers])
        return +Counter(
            own=len(found.contents) - peers, peers=peers, elsewhere=len(files) - len(found.contents)
        )

    def held(self) -> list[int]:
        store = Path("/dev/shm", self.folder)
        return [int(path.name) for path in store.iterdir() if path.name.isdecimal()] if store.exists() else []


class PlanReader:
    """What the prefetcher of a mount does for an order by importance, over a page cache that only counts."""

    def __init__(self, mount: Mount, waiting_bytes: int = MIB) -> None:
        """`waiting_bytes`: for parts of files that wait for others."""
        self.mount = mount
        snapshot = mount.job.packed.snapshot
        self.table = ExtentTable(snapshot)
        allotment = Allotment(0, 0, waiting_bytes, 1 << 30, mount.job.capacity * PAGE_BYTES)
        self.budget = PrefetchBudget(self.table, allotment, count().__next__)
        self.kept = KeptFiles(self.table, self.budget, Tripwires(snapshot), allotment)
        self.kept.scored, self.kept.job = mount.scored, mount.files
        self.kept.begin()
        self._payloads = mount.job.packed.source().payloads
        self.fetched: set[int] = set()
        """The files of which the first extent did not come from the job."""

    def read(self, files: Sequence[int], times: int = 1) -> None:
        """Read files that the page cache does not have, whose chunks are due in this many parts."""
        self.fetched.clear()
        trio.run(self._read, np.array(files, np.int64), times)

    async def _read(self, files: Numbers, times: int) -> None:
        waiting = [*self.budget.hold(self.table.of_files(files)).by_chunk()]
        for places in np.array_split(np.arange(len(waiting)), times):
            due = Batch(
                {waiting[place][0]: self.budget.charge(waiting[place][1]) for place in places.tolist()}
            )
            found, came = await self.kept.found(due)
            for chunk, content in came.items():
                assert not isinstance(content, DieselfsError)
                await self._arrived(found[chunk], *content)
            for chunk, extents in due.items():
                if chunk in found:
                    extents = extents[~np.isin(extents.numbers, found[chunk].numbers)]
                self.fetched.update(extents.nodes[extents.places == 0].tolist())
                await self._arrived(extents, memoryview(self._payloads[chunk]), extents.offsets)
        assert self.budget.is_stored(self.table.of_files(files)).all()
        self.kept.passed(files)
        self.budget.release(self.table.of_files(files))

    async def _arrived(self, extents: Extents, payload: memoryview, starts: Numbers) -> None:
        columns = (extents.nodes, extents.places, starts, extents.lengths)
        for file, place, start, length in zip(*(column.tolist() for column in columns), strict=True):
            content = self.mount.job.by_file[file][place : place + length]
            assert payload[start : start + length] == content
        assert self.budget.put(extents).all()
        if wanted := self.kept.wanted(extents, payload, starts):
            await trio.to_thread.run_sync(self.mount.files.give, wanted)

    def counted(self) -> Counter[str]:
        """What the mount reports."""
        scored = self.mount.scored
        return Counter(reads=scored.reads, hits=scored.hits, from_peers=scored.from_peers)
