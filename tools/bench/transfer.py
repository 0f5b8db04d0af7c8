"""Pieces and chunks from one node of a job to another, beside what plain sockets move between two Python processes.

The node that is asked has all chunks on its shelf, and runs in a process of its own; this one asks, as a node does, and
verifies what comes. Plain sockets move as many bytes at a time, from memory with `send` and with `sendfile`, into
memory that was there before; nobody looks at them. All over loopback.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from bench.figures import Aim, Quantity, Run, RunFailed, Side, Trial
from bench.homes import running_home, upload_tree
from bench.scale import Scale
from bench.stopwatch import measure
from bench.transfer_ends import SECRET, PlainEnd, running_peer, running_plain_end
from bench.trees import LARGE_FILE_BYTES, SMALL_FILE_BYTES, make_tree
from dieselfs.cache.member import Member
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB
from dieselfs.meta.snapshot import ExtentRef
from dieselfs.peers.asking import Wanted
from dieselfs.peers.client import PeerClient
from dieselfs.peers.source import Found, PooledSource

CHUNKS = 16
REQUEST_CHUNKS = 4
"""Whose pieces are asked for at once: 16 MiB, two requests."""
RANKS = 4
"""Each wants one file in so many of a chunk; it asks for those of so many more chunks at once."""
PASSES = 4
"""A run moves everything so many times: 256 MiB, in less than a second."""
ROUNDS = 3
"""As many as of others, times so many."""

PEERS, SEND, SENDFILE = "node to node", "plain socket, send", "plain socket, sendfile"
AIM = Aim(Quantity.RATIO, 0.7, of=(SEND, SENDFILE))


def transfer(folder: Path, scale: Scale) -> Generator[Trial]:
    rounds = ROUNDS * scale.rounds
    for file_bytes in (SMALL_FILE_BYTES, LARGE_FILE_BYTES):
        with asking_node(folder / str(file_bytes), file_bytes) as (node, plain):
            title = f"Pieces of {file_bytes:,} bytes"
            request_bytes = REQUEST_CHUNKS * CHUNK_TARGET_BYTES
            yield _trial(f"{title}, a quarter of each chunk", node, node.shares, plain, request_bytes, rounds)
            yield _trial(f"{title}, all of each chunk", node, node.all_pieces, plain, request_bytes, rounds)
            if file_bytes == SMALL_FILE_BYTES:
                title = "Whole chunks"
                yield _trial(title, node, node.whole_chunks, plain, CHUNK_TARGET_BYTES, rounds)


@contextmanager
def asking_node(
    folder: Path, file_bytes: int, chunks: int = CHUNKS
) -> Iterator[tuple["AskingNode", PlainEnd]]:
    """A node whose peer has so many chunks of such files, and the plain socket beside it; works in a new folder."""
    folder.mkdir()
    tree = make_tree(folder / "source", chunks * CHUNK_TARGET_BYTES // file_bytes, file_bytes)
    with running_home(folder / "home") as home:
        upload_tree(home, tree)
        with (
            running_peer(home, 2 * tree.size_bytes) as (peer, process),
            running_plain_end(tree.size_bytes) as plain,
            home.dataset() as dataset,
            closing(AskingNode(dataset, peer, process)) as node,
        ):
            yield node, plain


def _trial(
    title: str,
    node: "AskingNode",
    ask: Callable[[], int],
    plain: PlainEnd,
    request_bytes: int,
    rounds: int,
) -> Trial:
    size_bytes = node.size_bytes
    amount = (PASSES * size_bytes / MIB, "MiB")
    sides = [Side(PEERS, partial(node.run, ask), *amount, aim=AIM)]
    for name, is_sendfile in ((SEND, False), (SENDFILE, True)):
        receive = partial(plain.receive, is_sendfile, request_bytes)
        sides.append(Side(name, partial(_run, receive, size_bytes, plain.process), *amount))
    return Trial(title, sides, rounds, SEND)


def _run(work: Callable[[], int], size_bytes: int, other_end: int) -> Run:
    """Everything, PASSES times."""
    moved_bytes: list[int] = []
    run = measure(lambda: moved_bytes.extend(work() for _ in range(PASSES)), {"other end": other_end})
    if moved_bytes != [size_bytes] * PASSES:
        raise RunFailed(f"{moved_bytes} bytes came, {size_bytes} were expected each time")
    return run


class _Nothing:
    """The shelf of a node that owns no chunks."""

    def find(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Found]]:
        return ((each, None) for each in wanted)


class AskingNode:
    """A node that asks its one peer for everything."""

    def __init__(self, dataset: Dataset, peer: Member, process: int) -> None:
        """`process`: of the peer."""
        snapshot = dataset.snapshot
        self._process = process
        self._peers = PeerClient(SECRET.peer_key(), snapshot.digest)
        self._source = PooledSource(snapshot, lambda _: peer, _Nothing(), self._peers, dataset.chunks)
        self._chunks = range(snapshot.chunk_count)
        self._extents: dict[int, list[ExtentRef]] = {chunk: [] for chunk in self._chunks}
        for node in snapshot.walk():
            for extent in snapshot.extents(node):
                self._extents[extent.chunk].append(extent)
        self.size_bytes = sum(map(snapshot.chunk_payload_length, self._chunks))

    def close(self) -> None:
        self._source.close()
        self._peers.close()

    def figures(self) -> dict[str, int]:
        """Of its source: where what came came from."""
        return self._source.figures()

    def run(self, ask: Callable[[], int]) -> Run:
        """Raises RunFailed if a byte came from elsewhere than the peer."""
        run = _run(ask, self.size_bytes, self._process)
        figures = self.figures()
        if figures["from_peers"] != figures["asked"]:
            raise RunFailed(f"the peer did not have everything: {figures}")
        return run

    def shares(self) -> int:
        """Each rank's files in turn, those of many chunks in one request."""
        return sum(self._ask(self._chunks, rank, RANKS) for rank in range(RANKS))

    def all_pieces(self) -> int:
        return sum(
            self._ask(self._chunks[first : first + REQUEST_CHUNKS], 0, 1)
            for first in range(0, len(self._chunks), REQUEST_CHUNKS)
        )

    def whole_chunks(self) -> int:
        return sum(len(self._source.fetch_chunk(chunk)) for chunk in self._chunks)

    def _ask(self, chunks: Sequence[int], rank: int, ranks: int) -> int:
        """For the files of one of so many ranks; how many bytes came."""
        wanted = {chunk: self._extents[chunk][rank::ranks] for chunk in chunks}
        total_bytes = 0
        for arrival in self._source.fetch_many(wanted):
            for pieces in arrival.values():
                if isinstance(pieces, DieselfsError):
                    raise pieces
                total_bytes += sum(map(len, pieces))
        return total_bytes
