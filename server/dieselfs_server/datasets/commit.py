"""The order of a commit: the chunk durable in the object store, its entries in the metadata store, the reply.

A crash after the first step leaves a chunk that is stored but not applied. `caught_up.py` applies such chunks when a
server starts, and when the metadata store may have lost some. All functions block.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.bundle import bundled_id, encode_bundle, is_bundle
from dieselfs.chunk.cost import check_cost
from dieselfs.chunk.format import (
    PREAMBLE_BYTES,
    ChunkHeader,
    Preamble,
    decode_chunk,
    decode_header,
    decode_preamble,
    decode_stored,
)
from dieselfs.chunk.frames import Compression, Frames
from dieselfs.chunk.ids import ChunkIdSource, chunk_name, chunk_time_s
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.limits import (
    CHUNK_AHEAD_S_MAX,
    CHUNK_ENTRIES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    CHUNK_TARGET_BYTES,
)
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.dataset_names import DatasetNames, other_owner
from dieselfs_server.datasets.references import Chunk, References, StoreFull
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order

VERSION_AHEAD_NS_MAX = 24 * 3600 * 10**9
"""Versions follow the clock. One that is further ahead must have been reserved: it wins over all writes until then."""

CATCH_UP_OVERLAP_S = 3600
"""A starting server checks chunks from this long before the newest applied one: clocks differ, uploads take time."""

LATE_S = CATCH_UP_OVERLAP_S - CHUNK_AHEAD_S_MAX
"""A chunk whose ID is older could be missed by that, beside chunks that are CHUNK_AHEAD_S_MAX ahead. It leaves a record
in the object store, and from then on all chunks of its dataset are compared."""

APPLIED_AT_ONCE = 4
"""Chunks of a bundle, to a metadata store that answers late."""

log = logging.getLogger(__name__)


Admission = Callable[..., AbstractContextManager[object]]
"""Gets preamble and header of a chunk, and of a bundle those of the `others`."""


def any_chunk(
    _preamble: Preamble, _header: ChunkHeader, others: Sequence[Chunk] = ()
) -> AbstractContextManager[object]:
    return nullcontext()


def commit_chunk(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset_id: bytes,
    chunk_id: bytes,
    data: bytearray | bytes,
    now_ns: int,
    uploaded_to: str | None = None,
    admitted: Admission = any_chunk,
) -> int:
    """Verify, store and apply a chunk; returns the dataset's generation. May be repeated.

    Raises what `verified_chunk` and `store_chunk` raise.
    """
    chunk = verified_chunk(metadata, dataset_id, chunk_id, data, now_ns, uploaded_to)
    return store_chunk(store, metadata, dataset_id, *chunk, data, now_ns, admitted)


def verified_chunk(
    metadata: MetadataStore,
    dataset_id: bytes,
    chunk_id: bytes,
    data: bytearray | bytes,
    now_ns: int,
    uploaded_to: str | None = None,
) -> tuple[Preamble, ChunkHeader]:
    """Verify a chunk that is to be stored. `uploaded_to`: the name of the dataset, for what a user writes: the header
    must have this name, its ID must not be ahead of the clock, and it must not cost too much.

    Raises Damaged if the bytes are not this chunk of this dataset, InvalidInput for a chunk that must not be written.
    """
    source = f"chunk {chunk_name(chunk_id)}"
    preamble, header = decode_stored(data, source, chunk_id, dataset_id)
    if uploaded_to is not None:
        _check_upload(chunk_id, header, uploaded_to, now_ns, source)
        check_cost(preamble, header, source)
    newest = int(header.versions.max(initial=0))
    # A clock that was ahead has reserved versions that are: the next ones continue there, and must be accepted.
    if newest > now_ns + VERSION_AHEAD_NS_MAX and newest > metadata.last_version(dataset_id):
        raise InvalidInput(f"{source}: its versions were not reserved here")
    return preamble, header


def store_chunk(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset_id: bytes,
    preamble: Preamble,
    header: ChunkHeader,
    data: bytearray | bytes,
    now_ns: int,
    admitted: Admission = any_chunk,
) -> int:
    """Store and apply a verified chunk; returns the generation. `admitted`: a block in which it is stored, or that
    refuses it.

    Raises AlreadyExists if another chunk has this ID, NotFound if there is no such dataset.
    """
    chunk, now_s = (preamble, header), now_ns // 10**9
    with admitted(*chunk), References(store).claimed(dataset_id, [chunk], now_s):
        return _store(store, metadata, dataset_id, preamble, header, data, now_ns)


def _store(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset_id: bytes,
    preamble: Preamble,
    header: ChunkHeader,
    data: bytearray | bytes,
    now_ns: int,
) -> int:
    # The preamble has the digests of all other bytes.
    _put(store, dataset_id, preamble.chunk_id, data, PREAMBLE_BYTES, now_ns)
    with _undone(store, dataset_id, preamble.chunk_id, header.dataset):
        return metadata.apply(dataset_id, preamble, header, now_ns)


def _put(
    store: ObjectStore, dataset_id: bytes, object_id: bytes, data: bytearray | bytes, head: int, now_ns: int
) -> None:
    """Store a chunk or a bundle. `head`: the number of first bytes that differ in all others."""
    if now_ns // 10**9 - chunk_time_s(object_id) > LATE_S:
        store.create_record(late_record(dataset_id), b"")
    try:
        store.put(dataset_id, object_id, [data])
    except AlreadyExists:
        # The reply to an earlier attempt may have been lost.
        if store.get_range(dataset_id, object_id, 0, head) != bytes(data[:head]):
            raise
    except StorageFull as error:
        raise StoreFull(str(error)) from error


@contextmanager
def _undone(store: ObjectStore, dataset_id: bytes, object_id: bytes, name: str) -> Iterator[None]:
    """A block that applies what was stored. If there is no such dataset, what was stored is removed."""
    try:
        yield
    except NotFound:
        # Its metadata is lost, and perhaps being rebuilt; or it was dropped, and nothing else would find this chunk.
        if DatasetNames(store).find(name) == dataset_id:
            raise Unavailable(
                f"chunk {chunk_name(object_id)} is stored, but the metadata of dataset {name} is lost; rebuild it: "
                f"dlcmd rebuild dl://{name}"
            ) from None
        store.delete(dataset_id, object_id)
        raise


def store_bundle(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset_id: bytes,
    bundle_id: bytes,
    chunks: Sequence[Chunk],
    data: bytes,
    now_ns: int,
    admitted: Admission = any_chunk,
) -> int:
    """As `store_chunk`, all chunks of a bundle: they are stored together, then applied one by one."""
    headers = {preamble.chunk_id: (preamble, header) for preamble, header in chunks}

    def applied(_store: ObjectStore, _dataset_id: bytes, chunk_id: bytes) -> int:
        return metadata.apply(dataset_id, *headers[chunk_id], now_ns)

    *others, last_id = headers
    now_s = now_ns // 10**9
    with (
        admitted(*chunks[-1], others=chunks[:-1]),
        References(store).claimed(dataset_id, chunks, now_s),
    ):
        _put(store, dataset_id, bundle_id, data, len(data), now_ns)
        with (
            _undone(store, dataset_id, bundle_id, chunks[0][1].dataset),
            closing(read_in_order(applied, store, dataset_id, others, APPLIED_AT_ONCE)) as done,
        ):
            for _, generation in done:
                generation.result()
            # Once it is applied, other servers take all of them for applied, and count no hold on a quota.
            return applied(store, dataset_id, last_id)


def late_record(dataset_id: bytes) -> str:
    """Name of the record of a dataset that has chunks of a clock that was far behind."""
    return f"late-{dataset_id.hex()}"


def promotion_record(dataset_id: bytes) -> str:
    """Name of the record of a mirror that becomes a dataset of its own. It is empty until the chunks with entries are
    all stored.
    """
    return f"promotes-{dataset_id.hex()}"


def mirror_record(dataset_id: bytes) -> str:
    """Name of the record of a mirror."""
    return f"mirror-{dataset_id.hex()}"


def lacks_entries(store: ObjectStore, dataset_id: bytes) -> bool:
    """Whether the chunks with entries of a promotion are not all stored: then none of them may be applied. A promotion
    whose server was stopped may begin again after another one has ended; then there is no mirror.
    """
    is_begun = store.get_record(promotion_record(dataset_id)) == b""
    return is_begun and store.get_record(mirror_record(dataset_id)) is not None


def _check_upload(chunk_id: bytes, header: ChunkHeader, name: str, now_ns: int, source: str) -> None:
    """Raise InvalidInput for the chunk of a client that names another dataset, or was made in the future."""
    if header.dataset != name:
        raise InvalidInput(
            f"{source}: its header names dataset {header.dataset!r}, but it is uploaded to {name!r}"
        )
    ahead_s = chunk_time_s(chunk_id) - now_ns // 10**9
    if ahead_s > CHUNK_AHEAD_S_MAX:
        raise InvalidInput(
            f"{source}: made {ahead_s} s in the future, limit {CHUNK_AHEAD_S_MAX} s; "
            "set the clock of the machine that writes, or that of the server"
        )


class ChunkWriter:
    """Packs entries of one dataset into chunks, and commits each when it is full. Blocks. For one thread at a time."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        ids: ChunkIdSource,
        dataset: DatasetRecord,
        now_ns: Callable[[], int] = time.time_ns,
        admitted: Admission = any_chunk,
        stored: Callable[[int, int], object] = lambda *_: None,
        has_versions: bool = False,
        target_bytes: int = CHUNK_TARGET_BYTES,
    ) -> None:
        """`stored` is called after each commit, with its entries and bytes. `has_versions`: all entries are copies of
        stored ones, with their versions, so none is reserved, and none is refused for its path.
        """
        self._store, self._metadata, self._ids = store, metadata, ids
        self._dataset = dataset
        self._now_ns = now_ns
        self._admitted = admitted
        self._stored = stored
        self._has_versions = has_versions
        self.builder = ChunkBuilder(target_bytes, is_of_old=has_versions)
        self.generation = dataset.generation
        self._compression: Compression | None = None

    def compress_as(self, frames: Frames | None) -> None:
        """Compress this chunk and later ones as those with these frames; None changes nothing."""
        if frames is not None:
            self._compression = Compression(frames.level, frames.dictionary)

    @property
    def dataset_id(self) -> bytes:
        return self._dataset.dataset_id

    def new_id(self) -> bytes:
        return self._ids.next()

    def make_room(self, length_bytes: int) -> None:
        """Call it before an entry of this length is added."""
        if self.builder.is_full or self.builder.payload_bytes + length_bytes > CHUNK_PAYLOAD_BYTES_MAX:
            self.write()

    def reserve(self, count: int) -> int:
        return self._metadata.reserve_versions(self._dataset.dataset_id, count, self._now_ns())

    def write(self) -> None:
        """Store and apply the entries so far. Raises StorageFull, Unavailable; then they are not visible."""
        if len(self.builder):
            sealed = self.builder.seal()
            while True:
                with suppress(AlreadyExists):  # another writer has used the same ID: take the next one
                    return self.put(sealed, self._ids.next())

    def put(self, sealed: SealedChunk, chunk_id: bytes) -> None:
        """As `write`, a chunk with this ID. Raises AlreadyExists if another one has it."""
        dataset = self._dataset
        if self._compression is not None:
            sealed = sealed.compressed(self._compression)
        first = 1 if self._has_versions else self.reserve(len(sealed.entries))
        data = b"".join(sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first))
        self.generation = commit_chunk(
            *(self._store, self._metadata, dataset.dataset_id, chunk_id, data, self._now_ns()),
            None if self._has_versions else dataset.name,
            self._admitted,
        )
        self._stored(sealed.whole_entries, sealed.extents_bytes)

    def put_bundle(self, bundle_id: bytes, chunks: Sequence[SealedChunk]) -> None:
        """As `put`, chunks that refer to others, in one object. Raises AlreadyExists if there is such a bundle."""
        dataset, heads, made = self._dataset, list[bytes](), list[Chunk]()
        left, first, end = sum(len(chunk.entries) for chunk in chunks), 0, 0
        for number, sealed in enumerate(chunks, 1):
            entries = len(sealed.entries)
            if first + entries > end:  # versions for many chunks, and for no more entries than one may have
                reserved = max(entries, min(left, CHUNK_ENTRIES_MAX))
                first = self.reserve(reserved)
                end = first + reserved
            chunk_id = bundled_id(bundle_id, number)
            heads.append(b"".join(sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first)))
            identity = self._metadata, dataset.dataset_id, chunk_id, heads[-1]
            made.append(verified_chunk(*identity, self._now_ns(), dataset.name))
            first, left = first + entries, left - entries
        stores, data = (self._store, self._metadata), encode_bundle(bundle_id, heads)
        self.generation = store_bundle(
            *stores, dataset.dataset_id, bundle_id, made, data, self._now_ns(), self._admitted
        )
        for sealed in chunks:
            self._stored(sealed.whole_entries, sealed.extents_bytes)


def read_header(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> tuple[Preamble, ChunkHeader]:
    """Preamble and header of a stored chunk. Raises NotFound; Damaged after two reads, as a store may give wrong bytes
    once, and who calls this takes the files of a damaged chunk for lost.
    """
    try:
        return _read_header(store, dataset_id, chunk_id)
    except Damaged as error:
        log.warning("%s; reading it again", error)
    return _read_header(store, dataset_id, chunk_id)


def _read_header(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> tuple[Preamble, ChunkHeader]:
    preamble = read_preamble(store, dataset_id, chunk_id)
    header = store.get_range(dataset_id, chunk_id, PREAMBLE_BYTES, preamble.header_length)
    return preamble, decode_header(preamble, header, f"chunk {chunk_name(chunk_id)}", dataset_id)


def read_preamble(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> Preamble:
    """Raises NotFound, Damaged. A bundle that is listed itself is damaged."""
    if is_bundle(chunk_id):
        with suppress(NotFound):
            store.size(dataset_id, bundled_id(chunk_id, 1))  # raises what is wrong with the bundle
        raise Damaged(f"bundle {chunk_name(chunk_id)} was damaged when it was read first")
    head = store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
    return decode_preamble(head, f"chunk {chunk_name(chunk_id)}", chunk_id)


def read_chunk(
    store: ObjectStore, dataset_id: bytes, chunk_id: bytes
) -> tuple[Preamble, ChunkHeader, memoryview]:
    """A whole stored chunk: preamble, header and payload, whose digests are verified. Whoever passes on its files calls
    `check_extents` as well. Raises NotFound, Damaged.

    Memory is taken only for an object of the length that its preamble states.
    """
    preamble = read_preamble(store, dataset_id, chunk_id)
    check_size(store, dataset_id, preamble)
    data = store.get_range(dataset_id, chunk_id, 0, preamble.object_length)
    return decode_chunk(
        data, f"chunk {chunk_name(chunk_id)}", chunk_id, dataset_id, are_extents_checked=False
    )


def check_size(store: ObjectStore, dataset_id: bytes, preamble: Preamble) -> None:
    """Raise Damaged unless the stored object has the length that its preamble states, and its source is there."""
    size = store.size(dataset_id, preamble.chunk_id)
    if size != preamble.stored_length:
        expected = f"its preamble requires {preamble.stored_length}"
        raise Damaged(f"chunk {chunk_name(preamble.chunk_id)} has {size} bytes; {expected}")
    if preamble.is_attached:
        store.get_range(dataset_id, preamble.chunk_id, preamble.object_length, 0)


def _claim_name(names: DatasetNames, dataset: DatasetRecord) -> None:
    """Make the record of a dataset's name if it is missing. Logs if another dataset has the name."""
    try:
        owner = names.claim(dataset.name, dataset.dataset_id, is_made=True)
    except Damaged as error:
        log.error("%s", error)
        return
    if owner != dataset.dataset_id:
        log.error("%s", other_owner(dataset.name, owner, dataset.dataset_id))


def versions_ahead(metadata: MetadataStore, dataset: DatasetRecord, now_ns: int) -> str | None:
    """What to say about a dataset whose versions are far ahead of the clock; None if they are not."""
    ahead_h = (metadata.last_version(dataset.dataset_id) - now_ns) // (3600 * 10**9)
    if ahead_h < VERSION_AHEAD_NS_MAX // (3600 * 10**9):
        return None
    return (
        f"the versions of dataset {dataset.name} are {ahead_h:,} h ahead of this server's clock: a clock was wrong; "
        "check the clocks of all servers; writes continue after these versions"
    )


def _sound_header(
    store: ObjectStore, dataset: DatasetRecord, chunk_id: bytes
) -> tuple[Preamble, ChunkHeader] | None:
    """None, and an error in the log, for a damaged chunk."""
    try:
        found = read_header(store, dataset.dataset_id, chunk_id)
        check_source(store, found[1])
        return found
    except Damaged as error:
        log.error("dataset %s: %s", dataset.name, error)
        return None


def check_source(store: ObjectStore, header: ChunkHeader) -> None:
    """Raise Damaged if the chunk refers to one that is lost or damaged: its files cannot be read."""
    if header.source is not None and header.source.is_chunk:
        try:
            read_header(store, *header.source.chunk)
        except NotFound as error:
            raise Damaged(f"the files of a chunk are in another one: {error}") from None


def catch_up_dataset(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset: DatasetRecord,
    now_ns: int,
    since_s: int | None = None,
    more: Callable[[], bool] = lambda: True,
) -> tuple[int, int | None]:
    """Apply chunks that are stored but not applied; returns their number, and from what time on some are left: None if
    these were all. Skips damaged ones. Raises Damaged, once all are applied, if the metadata still lacks a part.

    `since_s`: look at chunks since then; 0: of any age, because applied ones may have been lost, and IDs of chunks have
    the clocks of their writers; None: since shortly before the newest one that is applied, or 0 if a writer's clock was
    far behind. `more`: whether to apply one more, after the first one. Of a mirror that is being promoted, none is.
    """
    _claim_name(DatasetNames(store), dataset)
    if (ahead := versions_ahead(metadata, dataset, now_ns)) is not None:
        log.warning("%s", ahead)
    # A mirror has no file while entries of its promotion are missing.
    if not dataset.files and lacks_entries(store, dataset.dataset_id):
        return 0, None
    if since_s is None and store.get_record(late_record(dataset.dataset_id)) is not None:
        since_s = 0
    if since_s == 0:
        known = {chunk.chunk_id for chunk in metadata.chunks(dataset.dataset_id)}
        is_applied: Callable[[bytes], bool] = known.__contains__
    else:
        if since_s is None:
            until_s = now_ns // 10**9 + CHUNK_AHEAD_S_MAX  # a purge makes later ones while a clock is wrong
            newest_s = metadata.newest_chunk_time_s(dataset.dataset_id, until_s)
            since_s = max(newest_s - CATCH_UP_OVERLAP_S, 0)
        is_applied = partial(metadata.has_chunk, dataset.dataset_id)
    applied = 0
    for chunk_id in store.list_chunks(dataset.dataset_id, since_s):
        if is_applied(chunk_id):
            continue
        if applied and not more():
            return applied, chunk_time_s(chunk_id)
        found = _sound_header(store, dataset, chunk_id)
        if found is not None:
            metadata.apply(dataset.dataset_id, *found, now_ns)
            applied += 1
    metadata.check_whole(dataset.dataset_id)
    return applied, None
