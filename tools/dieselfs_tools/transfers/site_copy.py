"""Copies between the servers of two sites, which need not reach each other. This module waits for sockets, and starts
threads.

The payload of a chunk of which all is wanted is stored as it is, under a new ID and a header for the new dataset; of
other chunks the wanted extents are packed. All bytes are verified against the signed snapshot of the source. An
interrupted copy continues: what the target has is skipped, also extents of files that are not complete there.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from secrets import token_hex
from threading import Lock

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.ids import chunk_name
from dieselfs.dataset import Dataset
from dieselfs.digests import Buffer, extent_digest_of
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, NotFound
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import SCHEME, printable, split_path
from dieselfs.rpc.records import CopyProgress, CopyReport, CopyRequest, Existing
from dieselfs.snapshot.pin import PIN_INTERVAL_S, PIN_LEASE_S, node_name
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.snapshot.subtree import subtree_snapshot, walk_order
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.copy_plan import CopyPlan, is_selected, plan_copy, planned_report
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.tree_digest import digest_of_snapshot
from dieselfs_tools.cli.session import Session

FETCHES = 4
"""Chunks that are fetched at a time. Each takes memory, at most CHUNK_PAYLOAD_BYTES_MAX."""

Progressed = Callable[[CopyProgress], object]
Owned = tuple[int, ExtentRef]
"""The node of a file, and one of its extents."""
Fetched = tuple[bytearray | None, list[bytes | memoryview]]
"""The payload, if all of it is wanted, and the bytes of the extents."""


class SiteCopies:
    """Copies from the site of one session to that of another."""

    def __init__(self, source: Session, target: Session, digests: list[tuple[bytes, str]]) -> None:
        """`digests`: gets the paths of the trees that are equal to their sources, with their digests
        (`dieselfs.transfer.tree_digest`).
        """
        self._source = source
        self._target = target
        self._digests = digests

    def run(self, request: CopyRequest, progressed: Progressed) -> CopyReport:
        """As `ServerClient.copy_entries`. Raises DieselfsError if the copy differs at the end."""
        state = f"{request.dataset}@{request.tag}" if request.tag else request.dataset
        data = self._source.dataset(state, 0 if request.tag else request.generation)
        tree, there = data.snapshot, self._there(request)
        for each in filter(None, (data, there)):
            if each.client.keys(each.name):
                raise InvalidInput(
                    f"{SCHEME}{each.name} is encrypted: between sites, copy it with 'get' and 'put --encrypt'"
                )
        if there is not None:
            _check_folders_above(there.snapshot, request.target_path)
        is_wanted = is_selected(tree, request.selection) if request.selection else lambda _: True
        plan = plan_copy(tree, there.snapshot if there is not None else None, request, is_wanted)
        if request.is_dry_run or there is None:
            return planned_report(plan, there.generation if there is not None else 0)
        with pinned(data) as renew_pin:
            generation = _TreeCopy(plan, data.chunks, there, progressed).run(renew_pin)
        if plan.order.entries:
            there.refresh()
        rule = request.existing if request.existing == Existing.KEEP else Existing.REPLACE
        left = plan_copy(tree, there.snapshot, request._replace(existing=rule, is_merged=True), is_wanted)
        if left.order.entries:
            raise DieselfsError(
                f"{left.order.entries:,} entries of {SCHEME}{there.name} differ from the source after the copy: "
                "they were changed meanwhile; run the same command again"
            )
        self._note_digest(there, tree, request)
        return CopyReport(plan.order.entries, plan.order.total_bytes, plan.skipped, 0, generation)

    def _there(self, request: CopyRequest) -> Dataset | None:
        """The dataset to copy to; None if it does not exist in a dry run."""
        try:
            return self._target.dataset(request.target_dataset)
        except NotFound:
            if not request.is_dry_run:
                raise
            return None

    def _note_digest(self, there: Dataset, tree: Snapshot, request: CopyRequest) -> None:
        """The digest of a folder that has what the source has, and nothing else. Files that span chunks are read."""
        top, copy = tree.require(request.path), there.snapshot
        below, copied = walk_order(tree, top), walk_order(copy, copy.require(request.target_path))
        if not tree.stat(top).is_folder or len(below) != len(copied):
            return
        folder = copy
        if request.target_path:
            folder = Snapshot(subtree_snapshot(copy, request.target_path), copy.source)
        digest = digest_of_snapshot(folder, ServerSource(there.client, folder), is_quick=True)
        self._digests.append((request.target_path, digest.hex()))


def _check_folders_above(target: Snapshot, path: bytes) -> None:
    """Raise InvalidInput if a new path is below a file or a link."""
    while path := split_path(path)[0]:
        node = target.find(path)
        if node >= 0 and not target.stat(node).is_folder:
            raise InvalidInput(f"{SCHEME}{target.dataset}/{printable(path)} is not a folder")


@contextmanager
def pinned(data: Dataset) -> Iterator[Callable[[], None]]:
    """A purge of the source keeps its chunks, as long as the function is called now and then."""
    header = data.snapshot.header
    named = header.dataset, f"copy from {node_name()} ({token_hex(4)})", header.generation, header.updated_ns
    last_s = float("-inf")

    def renew() -> None:
        nonlocal last_s
        if time.monotonic() - last_s > PIN_INTERVAL_S:
            last_s = time.monotonic()
            with suppress(DieselfsError):  # the lease is longer than several tries
                data.client.pin(*named, PIN_LEASE_S)

    try:
        yield renew
    finally:
        with suppress(DieselfsError):  # else it expires
            data.client.pin(*named, 0)


class _TreeCopy:
    """One copy, by `run`."""

    def __init__(self, plan: CopyPlan, chunks: ServerSource, target: Dataset, progressed: Progressed) -> None:
        self._plan = plan
        self._chunks = chunks
        self._target = target
        self._progressed = progressed
        self._builder = ChunkBuilder()
        self._sender = ChunkSender(target.client, target.record(), self._count)
        self._pending: dict[int, tuple[int, frozenset[tuple[int, int]]]] = {}
        self._lock = Lock()  # guards the next one
        self._progress = CopyProgress(0, 0, plan.order.entries, plan.order.total_bytes)

    def _count(self, chunk: SealedChunk, _generation: int) -> None:
        with self._lock:
            done = self._progress.done + chunk.whole_entries, self._progress.done_bytes + len(chunk.payload)
            self._progress = CopyProgress(*done, *self._progress[2:])
            self._progressed(self._progress)

    def run(self, renew_pin: Callable[[], None]) -> int:
        """Copy; returns the generation of the target. Raises Damaged, NotFound, StorageFull, Unavailable. Interrupted,
        each entry at the target is complete or absent.
        """
        fetching = ThreadPoolExecutor(FETCHES, "dieselfs-fetch")
        try:
            self._add_empty()
            ahead: deque[tuple[list[Owned], Future[Fetched]]] = deque()
            for extents in self._by_chunk():
                renew_pin()
                ahead.append((extents, fetching.submit(self._fetched, extents)))
                if len(ahead) >= FETCHES:
                    self._add_files(*ahead.popleft())
            while ahead:
                renew_pin()
                self._add_files(*ahead.popleft())
            self._seal()
            generation = self._sender.wait_stored()
        except BaseException:
            self._sender.abandon()
            raise
        finally:
            fetching.shutdown(wait=False, cancel_futures=True)
        self._sender.close()
        return generation

    def _add_empty(self) -> None:
        """Folders, links and empty files."""
        order = self._plan.order
        for kind in (order.folders, order.links, order.empty_files):
            for node in kind.tolist():
                if self._builder.is_full:
                    self._seal()
                self._plan.add_empty(node, self._builder)

    def _by_chunk(self) -> Iterator[list[Owned]]:
        """The extents to copy of each chunk: those of it that the target does not have."""
        order, source = self._plan.order, self._plan.source
        for start, end in zip(order.starts[:-1], order.starts[1:], strict=True):
            refs = source.extent_refs(order.extents[start:end])
            owned = zip(order.owners[start:end].tolist(), refs, strict=True)
            if missing := [each for each in owned if not self._is_there(*each)]:
                yield missing

    def _version(self, node: int) -> tuple[int, frozenset[tuple[int, int]]]:
        """The version of all extents of a file that spans chunks, and those that an interrupted copy has stored."""
        if node not in self._pending:
            stat, path = self._plan.source.stat(node), self._plan.new_path(node)
            found = self._target.client.pending_file(self._target.name, path)
            wanted = {(each.place, each.length): each.digest for each in self._plan.source.extents(node)}
            is_like = found.version and (found.size, found.mtime_ns) == (stat.size, stat.mtime_ns)
            self._pending[node] = (
                (found.version, frozenset(found.extents))
                if is_like and found.extents.items() <= wanted.items()
                else (self._sender.reserve_version(), frozenset())
            )
        return self._pending[node]

    def _is_there(self, node: int, extent: ExtentRef) -> bool:
        if extent.length == self._plan.source.size(node):
            return False
        return (extent.place, extent.length) in self._version(node)[1]

    def _fetched(self, extents: Sequence[Owned]) -> Fetched:
        """Raises Damaged, NotFound, Unavailable."""
        source, chunk = self._plan.source, extents[0][1].chunk
        spans = {(extent.offset, extent.length) for _, extent in extents}
        payload = None
        contents: list[bytes | memoryview]
        if sum(span[1] for span in spans) == source.chunk_payload_length(chunk):
            payload = self._chunks.fetch_chunk(chunk)
            view = memoryview(payload)
            contents = [view[extent.offset : extent.offset + extent.length] for _, extent in extents]
        else:
            contents = [*self._chunks.fetch_extents(chunk, [extent for _, extent in extents])]
        for (node, extent), content in zip(extents, contents, strict=True):
            if len(content) != extent.length or extent_digest_of(content) != extent.digest:
                raise Damaged(
                    f"{SCHEME}{source.dataset}/{printable(source.path(node))}: the bytes in chunk "
                    f"{chunk_name(source.chunk_id(chunk))} have another digest; 'dlcmd fsck' there explains"
                )
        return payload, contents

    def _add_files(self, extents: Sequence[Owned], fetched: Future[Fetched]) -> None:
        payload, contents = fetched.result()
        if payload is not None:
            whole = ChunkBuilder(CHUNK_PAYLOAD_BYTES_MAX)
            for (node, extent), content in zip(extents, contents, strict=True):
                if len(whole) and (whole.is_full and whole.payload_bytes < CHUNK_PAYLOAD_BYTES_MAX):
                    break  # longer paths than at the source
                self._add(whole, node, extent, content, extent.offset)
            else:
                self._seal()
                self._sender.submit(whole.seal(bytes(payload)))
                return
        for (node, extent), content in zip(extents, contents, strict=True):
            if self._builder.is_full or self._builder.payload_bytes + len(content) > CHUNK_PAYLOAD_BYTES_MAX:
                self._seal()
            self._add(self._builder, node, extent, content, None)

    def _add(
        self, builder: ChunkBuilder, node: int, extent: ExtentRef, content: Buffer, offset: int | None
    ) -> None:
        stat = self._plan.source.stat(node)
        version = 0 if extent.length == stat.size else self._version(node)[0]
        path = self._plan.new_path(node)
        builder.add_file(path, content, stat.mode, stat.mtime_ns, stat.size, extent.place, version, offset)

    def _seal(self) -> None:
        if len(self._builder):
            self._sender.submit(self._builder.seal())
