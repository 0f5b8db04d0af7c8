"""What a copy stores, keeps and deletes, and the snapshot of one entry that copies of single files need. No I/O."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.digests import DIGEST_BYTES, EXTENT_DIGESTS, NO_DIGEST
from dieselfs.errors import AlreadyExists, InvalidInput
from dieselfs.limits import LISTING_BYTES_MAX, REPORT_LINES_MAX
from dieselfs.names import Location, path_fault, printable, split_path
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns, FileRecord, Op
from dieselfs.rpc.records import CopyReport, CopyRequest, Existing
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.storage_order import StorageOrder


@dataclass(frozen=True, eq=False)
class CopyPlan:
    """`order`: the nodes to copy. `skipped`: entries that exist already, or are kept. `moved`: the nodes that are
    deleted after a move, each folder after its content.
    """

    request: CopyRequest
    source: Snapshot
    order: StorageOrder
    skipped: int
    moved: tuple[int, ...]

    def new_path(self, node: int) -> bytes:
        return new_path(self.request, self.source.path(node))

    def add_empty(self, node: int, builder: ChunkBuilder) -> None:
        """Add a folder, a link or an empty file with its new path."""
        path, stat = self.new_path(node), self.source.stat(node)
        if stat.is_folder:
            builder.add_directory(path, stat.mode, stat.mtime_ns)
        elif stat.is_link:
            builder.add_symlink(path, self.source.target(node), stat.mode, stat.mtime_ns)
        else:
            builder.add_file(path, b"", stat.mode, stat.mtime_ns)


def new_path(request: CopyRequest, path: bytes) -> bytes:
    """The new path of an entry at or below the path of the request; empty for the root of a dataset."""
    below = path[len(request.path) :].lstrip(b"/")
    return b"/".join(part for part in (request.target_path, below) if part)


def check_request(request: CopyRequest) -> None:
    """Raise InvalidInput for a copy onto or into itself, and for a move from a tag."""
    source = Location(request.dataset, request.path, False, request.tag)
    if request.is_move and request.tag:
        raise InvalidInput(f"{source}: the content of a tag cannot be moved; copy it")
    if request.dataset != request.target_dataset or request.tag:
        return
    if request.path == request.target_path:
        raise InvalidInput(f"{source} would be copied onto itself")
    if not request.path or request.target_path.startswith(request.path + b"/"):
        raise InvalidInput(f"{source} would be copied into itself")


def is_selected(snapshot: Snapshot, selection: bytes) -> Callable[[bytes], bool]:
    """Whether the path of an entry is in the selection of a request, which was made with `snapshot`.

    Raises InvalidInput if it was made with another one.
    """
    if len(selection) != (len(snapshot) + 7) // 8:
        raise InvalidInput(
            f"a selection of {len(selection)} bytes, for a snapshot of {len(snapshot)} entries"
        )

    def is_wanted(path: bytes) -> bool:
        node = snapshot.find(path)
        return node >= 0 and bool(selection[node // 8] >> node % 8 & 1)

    return is_wanted


def plan_copy(
    source: Snapshot,
    target: Snapshot | None,
    request: CopyRequest,
    is_wanted: Callable[[bytes], bool] = lambda _: True,
) -> CopyPlan:
    """The plan for `request`. `target`: what exists at the new path; None for nothing. `is_wanted`: whether the entry
    of a path is copied.

    Raises NotFound, and AlreadyExists or InvalidInput if an entry cannot be stored at its new path.
    """
    top = source.require(request.path)
    survey = _Survey(source, target, request, is_wanted)
    for node in chain([top], source.walk(top)):
        survey.see(node)
    survey.check(top)
    return CopyPlan(
        request=request,
        source=source,
        order=StorageOrder(source, np.array(survey.copied, np.int64)),
        skipped=survey.equal + len(survey.differing),
        moved=tuple(survey.movable(top)) if request.is_move else (),
    )


def is_equal(source: Snapshot, node: int, target: Snapshot, there: int) -> bool:
    """Whether two entries are folders, or have the same mode, time and content."""
    stored, other = source.stat(node), target.stat(there)
    if stored.is_folder or other.is_folder:
        return stored.is_folder and other.is_folder
    if stored[1:] != other[1:]:
        return False
    if stored.is_link:
        return source.target(node) == target.target(there)
    contents, others = (
        [(extent.place, extent.length, extent.digest) for extent in snapshot.extents(found)]
        for snapshot, found in ((source, node), (target, there))
    )
    return contents == others


class _Survey:
    """A pass over the source, each folder before its content."""

    def __init__(
        self,
        source: Snapshot,
        target: Snapshot | None,
        request: CopyRequest,
        is_wanted: Callable[[bytes], bool],
    ) -> None:
        self._source = source
        self._target = target
        self._request = request
        self._is_wanted = is_wanted
        self._kept: set[int] = set()  # the source keeps these nodes after a move
        self.copied: list[int] = []
        self.differing: list[bytes] = []
        self.equal = 0

    def see(self, node: int) -> None:
        path = self._source.path(node)
        if not self._is_wanted(path):
            self._kept.add(node)
            return
        new = new_path(self._request, path)
        there = self._target.find(new) if self._target is not None else -1
        if not new:
            return
        if there < 0:
            if (fault := path_fault(new)) is not None:
                raise InvalidInput(f"{printable(path)}: its new path is not allowed: {fault}")
            self.copied.append(node)
        elif self._is_equal(node, there):
            self.equal += 1
        elif self._request.existing == Existing.REPLACE:
            self.copied.append(node)
        else:
            self.differing.append(new)
            self._kept.add(node)

    def _is_equal(self, node: int, there: int) -> bool:
        """Whether nothing is to be copied. Raises InvalidInput if one of them is a folder."""
        assert self._target is not None
        stored, other = self._source.stat(node), self._target.stat(there)
        if stored.is_folder != other.is_folder:
            new = Location(self._request.target_dataset, self._target.path(there), False)
            kinds = ("a folder", "a file") if other.is_folder else ("a file", "a folder")
            raise InvalidInput(f"{new} is {kinds[0]}, and {printable(self._source.path(node))} {kinds[1]}")
        return is_equal(self._source, node, self._target, there)

    def check(self, top: int) -> None:
        """Raise AlreadyExists for differing entries that the request refuses, and for a folder that exists."""
        request = self._request
        if self.differing and request.existing == Existing.REFUSE:
            first, others = (
                Location(request.target_dataset, self.differing[0], False),
                len(self.differing) - 1,
            )
            more = f", and {others:,} others do" if others else ""
            raise AlreadyExists(
                f"{first} exists with other content{more}; nothing was changed: -f replaces, --no-clobber keeps"
            )
        there = self._target.find(request.target_path) if self._target is not None else -1
        if self._target is None or there < 0 or request.is_merged or not self._source.stat(top).is_folder:
            return
        # What an interrupted copy, or an interrupted move, has left: all that is there, or all that is left here.
        below = sum(1 for _ in self._target.walk(there))
        equal = self.equal - 1  # without the folder itself
        if equal != below and self.copied:
            old, new = (Location(name, path, True) for name, path in (request[:2], request[2:4]))
            raise AlreadyExists(
                f"{str(new).rstrip('/')} exists; to go into it, write {new} with a slash at its end; "
                f"to add to its content, write {old} with a slash at its end"
            )

    def movable(self, top: int) -> Iterator[int]:
        """Nodes of the source that are not kept, each folder after its content, and without those that keep some."""
        for node in reversed([top, *self._source.walk(top)]):
            if node in self._kept:
                self._kept.add(self._source.parent(node))
            elif node:
                yield node


def planned_report(plan: CopyPlan, generation: int) -> CopyReport:
    """The report of a dry run. `generation`: of the target."""
    order, paths, left_bytes = plan.order, [], LISTING_BYTES_MAX
    for kind in (order.folders, order.links, order.empty_files, order.owners):
        for path in map(plan.new_path, kind[:REPORT_LINES_MAX].tolist()):
            left_bytes -= len(path)
            if left_bytes > 0:
                paths.append(path)
    distinct = tuple(sorted(dict.fromkeys(paths))[:REPORT_LINES_MAX])
    return CopyReport(order.entries, order.total_bytes, plan.skipped, len(plan.moved), generation, distinct)


def entry_snapshot(dataset: DatasetRecord, record: FileRecord) -> Snapshot:
    """The entry `record` and the folders above it. The chunks have no digests: check those of the extents."""
    folder, name = split_path(record.path)
    chunk_ids = sorted({extent.chunk_id for extent in record.extents})
    numbers = {chunk_id: number for number, chunk_id in enumerate(chunk_ids)}
    ends = dict.fromkeys(chunk_ids, 0)
    for extent in record.extents:
        ends[extent.chunk_id] = max(ends[extent.chunk_id], extent.offset + extent.length)
    chunk_table = [
        ChunkRecord(chunk_id, 0, 0, ends[chunk_id], bytes(DIGEST_BYTES), 0, 0, b"") for chunk_id in chunk_ids
    ]
    # Also a file of one extent: the form of files that span chunks serves all.
    digests = b"".join(extent.digest for extent in record.extents)
    table = EntryTable(
        dataset=dataset,
        chunk_table=chunk_table,
        folders=[folder],
        names=[name],
        ops=np.array([record.op], np.uint8),
        modes=np.array([record.mode], np.uint32),
        mtimes_ns=np.array([record.mtime_ns], np.int64),
        sizes=np.array([record.size], np.uint64),
        chunks=np.array([-1], np.int64),
        offsets=np.zeros(1, np.uint32),
        digests=np.frombuffer(NO_DIGEST, EXTENT_DIGESTS),
        targets={0: record.target} if record.op == Op.SYMLINK else {},
        extents=ExtentColumns(
            rows=np.zeros(len(record.extents), np.int64),
            places=np.array([extent.place for extent in record.extents], np.uint64),
            chunks=np.array([numbers[extent.chunk_id] for extent in record.extents], np.int64),
            offsets=np.array([extent.offset for extent in record.extents], np.uint32),
            lengths=np.array([extent.length for extent in record.extents], np.uint32),
            digests=np.frombuffer(digests, EXTENT_DIGESTS),
        ),
    )
    return Snapshot(build_snapshot(table), f"{dataset.name}: {record.path!r}")
