"""The snapshot of the files that an expression selects. This module waits for sockets and opens files.

All that reads a snapshot reads a selection the same way: orders, samplers, listings and mounts. Its digest depends on
its files, their places in chunks and the generation, so a cursor fits the selection that it was made of, and no other.
"""

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.limits import COLUMNS_BYTES_MAX
from dieselfs.names import SCHEME
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.derived import stored_subtree
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.plain import node_source, readable
from dieselfs.units import format_size


def stored_selection(snapshot: Snapshot, client: ServerClient, where: str, folder: bytes = b"") -> Snapshot:
    """The files of a stored snapshot that `where` selects, below a folder; links are left out. It is made once.

    Raises as `expression.select`, `stored_subtree`, and what reads of the server raise.
    """

    def select() -> Numbers:
        from dieselfs.selection import expression  # with pyarrow and DuckDB, for selections alone

        return expression.select(snapshot, lambda path: content_at(snapshot, client, path), where)

    return stored_subtree(snapshot, folder, where, select)


def content_at(snapshot: Snapshot, client: ServerClient, path: bytes) -> bytes:
    """The verified bytes of a file. Raises NotFound, Damaged, Unavailable, and InvalidInput for more than
    COLUMNS_BYTES_MAX.
    """
    size_bytes = snapshot.size(snapshot.require(path))
    if size_bytes > COLUMNS_BYTES_MAX:
        raise InvalidInput(
            f"{SCHEME}{snapshot.dataset}: the table of columns has {format_size(size_bytes)}, "
            f"the limit is {format_size(COLUMNS_BYTES_MAX)}"
        )
    chunks = node_source(client, snapshot, None, 0, opens_ahead=False)
    try:
        source = readable(chunks, client)
        extents = snapshot.extents(snapshot.require(path))
        return b"".join(bytes(source.fetch_extents(each.chunk, [each])[0]) for each in extents)
    finally:
        chunks.close()
