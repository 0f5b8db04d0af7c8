"""A dataset against a plain dict, through every operation that changes one, in any order, with crashes in
between.

A subclass gives `make_metadata`; `machine.TestCase` is the test. After every step, what the metadata says,
what its files hold, what a rebuild from the chunks alone gives, and what tags and pinned readers see must
agree with the dicts."""

from contextlib import closing, suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AlreadyExists
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets.commit import commit_chunk, read_header
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import Pin, put_pin, remove_pin
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.maintenance.rebuild import rebuild
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.catch_up import catch_up
from tests.support.identity import IDENTITY

DATASET = bytes(range(16))
NAME = "data"
START_NS = 1_800_000_000 * 10**9

Files = dict[bytes, bytes]

_paths = st.sampled_from([b"a", b"d/a", b"d/e/c\xff"])
_contents = st.binary(max_size=12)
_changes = st.lists(st.tuples(_paths, st.none() | _contents), min_size=1, max_size=4)
_steps_s = st.integers(-5, 60)  # clocks step back


class Killed(BaseException):
    """The server ends just here."""


class KillableStore(MemoryStore):
    """Dies before or after the N-th change from when it is told so."""

    countdown = 0
    is_after = False

    def _step(self) -> bool:
        self.countdown -= 1
        if self.countdown == 0 and not self.is_after:
            raise Killed
        return self.countdown == 0

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: object) -> None:
        dies = self._step()
        super().put(dataset_id, chunk_id, parts)  # type: ignore[arg-type]  # passed on as they came
        if dies:
            raise Killed

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        dies = self._step()
        super().delete(dataset_id, chunk_id)
        if dies:
            raise Killed


class DatasetMachine(RuleBasedStateMachine):
    def make_metadata(self) -> MetadataStore:
        """An empty metadata store."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.store = KillableStore()
        self.metadata = self.make_metadata()
        self.metadata.create_dataset(NAME, DATASET)
        self.tags = TagStore(self.store, IDENTITY)
        self.now_ns = START_NS
        self.ids = ChunkIdSource(clock=lambda: self.now_ns // 10**9, machine=bytes(6), first_counter=1)
        self.files: Files = {}
        self.tagged: dict[str, Files] = {}
        self.pinned: dict[str, tuple[Snapshot, Files]] = {}

    def teardown(self) -> None:
        if hasattr(self, "metadata"):
            self.metadata.close()

    # -- what can be done --------------------------------------------------------------------------------

    @rule(step_s=_steps_s)
    def time_passes(self, step_s: int) -> None:
        self.now_ns += step_s * 10**9

    @rule(changes=_changes)
    def write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        """Put (or with None delete) in one chunk; of several changes of one path the last counts."""
        self._write(changes)
        self._remember(changes)

    def _write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        builder = ChunkBuilder()
        for path, content in changes:
            if content is None:
                builder.add_delete(path)
            else:
                builder.add_file(path, content, 0o644, 0)
        first = self.metadata.reserve_versions(DATASET, len(changes), self.now_ns)
        chunk_id = self.ids.next()
        data = b"".join(builder.seal().encode(chunk_id, NAME, DATASET, first))
        commit_chunk(self.store, self.metadata, DATASET, chunk_id, data, self.now_ns)

    def _remember(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        for path, content in changes:
            if content is None:
                self.files.pop(path, None)
            else:
                self.files[path] = content

    @rule(
        path=_paths, content=st.binary(min_size=3, max_size=12), cut=st.integers(1, 2), is_whole=st.booleans()
    )
    def write_across_chunks(self, path: bytes, content: bytes, cut: int, is_whole: bool) -> None:
        """A file that spans chunks; cut short, it never becomes visible."""
        version = self.metadata.reserve_versions(DATASET, 1, self.now_ns)
        for place, part in ((0, content[:cut]), (cut, content[cut:]))[: 2 if is_whole else 1]:
            builder = ChunkBuilder()
            builder.add_file(path, part, 0o644, 0, len(content), place, version)
            chunk_id = self.ids.next()
            data = b"".join(builder.seal().encode(chunk_id, NAME, DATASET, version))
            commit_chunk(self.store, self.metadata, DATASET, chunk_id, data, self.now_ns)
        if is_whole:
            self.files[path] = content

    @rule(changes=_changes, is_after=st.booleans())
    def write_and_die(self, changes: list[tuple[bytes, bytes | None]], is_after: bool) -> None:
        """Killed before the chunk is stored, or after it and before it is applied; then started again."""
        self.store.countdown, self.store.is_after = 1, is_after
        with suppress(Killed):
            self._write(changes)
        catch_up(self.store, self.metadata, self.now_ns)
        if is_after:
            self._remember(changes)

    @rule(name=st.sampled_from(["v1", "v2"]))
    def tag(self, name: str) -> None:
        try:
            self.tags.add(self._snapshot(), name)
            self.tagged[name] = dict(self.files)
        except AlreadyExists:
            assert name in self.tagged

    @precondition(lambda self: self.tagged)
    @rule()
    def untag(self) -> None:
        name, _ = self.tagged.popitem()
        self.tags.remove(NAME, DATASET, name)

    @rule(holder=st.sampled_from(["m1", "m2"]))
    def pin(self, holder: str) -> None:
        snapshot = self._snapshot()
        record = Pin(holder, snapshot.generation, snapshot.header.updated_ns, 1 << 62)
        put_pin(self.metadata, DATASET, record)
        self.pinned[holder] = (snapshot, dict(self.files))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        holder, _ = self.pinned.popitem()
        remove_pin(self.metadata, DATASET, holder)

    @rule(times=st.sampled_from([1, 2, 2]), grace_s=st.sampled_from([0, 0, 30]))
    def purge(self, times: int, grace_s: int) -> None:
        """Twice in a row: what the first one makes dead, the second one may remove."""
        for _ in range(times):
            self._purge(grace_s)

    def _purge(self, grace_s: int) -> None:
        purge(
            self.store,
            self.metadata,
            self.metadata.dataset(NAME),
            self.tags,
            self.now_ns,
            grace_s,
            is_dry_run=False,
        )

    @rule(dies_at=st.integers(1, 3), is_after=st.booleans())
    def purge_and_die(self, dies_at: int, is_after: bool) -> None:
        """Killed at one of its changes of the object store; then started again."""
        self.store.countdown, self.store.is_after = dies_at, is_after
        with suppress(Killed):
            self._purge(grace_s=0)
        self.store.countdown = 0
        catch_up(self.store, self.metadata, self.now_ns)

    @rule()
    def lose_all_metadata_and_rebuild(self) -> None:
        self.metadata.drop_dataset(DATASET)
        rebuild(self.store, self.metadata, NAME, DATASET, self.now_ns)
        self._renew_pins()

    def _renew_pins(self) -> None:
        """As every mount does each minute."""
        for holder, (snapshot, _) in self.pinned.items():
            record = Pin(holder, snapshot.generation, snapshot.header.updated_ns, 1 << 62)
            put_pin(self.metadata, DATASET, record)

    @rule()
    def rebuild_in_place(self) -> None:
        rebuild(self.store, self.metadata, NAME, DATASET, self.now_ns)
        self._renew_pins()

    # -- what must hold ----------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        content = signed(build_snapshot(self.metadata.entry_table(DATASET)), IDENTITY)
        return Snapshot(content, "snapshot of the machine")

    def _read(self, snapshot: Snapshot) -> Files:
        found = {}
        for node in snapshot.walk():
            if not snapshot.stat(node).is_file:
                continue
            content = b""
            for extent in snapshot.extents(node):
                chunk_id = snapshot.chunk_id(extent.chunk)
                preamble, _ = read_header(self.store, DATASET, chunk_id)
                start = preamble.payload_start + extent.offset
                content += self.store.get_range(DATASET, chunk_id, start, extent.length)
            found[snapshot.path(node)] = content
        return found

    @invariant()
    def everybody_sees_what_they_must(self) -> None:
        if not hasattr(self, "metadata"):
            return
        snapshot = self._snapshot()
        snapshot.verify()
        assert self._read(snapshot) == self.files
        record = self.metadata.dataset(NAME)
        assert (record.files, record.total_bytes) == (len(self.files), sum(map(len, self.files.values())))
        for name, files in self.tagged.items():
            assert self._read(self.tags.get(NAME, DATASET, name)) == files
        for pinned, files in self.pinned.values():
            assert self._read(pinned) == files
        with closing(SqliteMetadata(":memory:")) as rebuilt:
            rebuild(self.store, rebuilt, NAME, DATASET, self.now_ns)
            again = Snapshot(build_snapshot(rebuilt.entry_table(DATASET)), "rebuilt")
            assert self._read(again) == self.files


MACHINE_SETTINGS = settings(max_examples=20, stateful_step_count=20)
