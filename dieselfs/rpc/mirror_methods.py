"""The calls of mirrors, as methods of the client. No I/O of its own."""

from typing import Any

from dieselfs.rpc.records import MirrorRecord
from dieselfs.rpc.wire import Buffer


def _record(info: Any) -> MirrorRecord:
    return MirrorRecord(*(getattr(info, name) for name in MirrorRecord._fields))


class MirrorMethods:
    """A part of `ServerClient`; errors and limits are as there."""

    def _value(self, method: str, **options: Any) -> Any:
        raise NotImplementedError

    def keep_mirror(self, dataset: str, origin: str, generation: int) -> MirrorRecord:
        """Make a dataset without chunks a mirror of `origin`, and note the newest generation of that. Raises
        InvalidInput, NotFound.
        """
        named = {"dataset": dataset, "origin": origin, "generation": generation}
        return _record(self._value("keep_mirror", **named))

    def put_mirror(self, dataset: str, snapshot: Buffer) -> MirrorRecord:
        """Show a snapshot of the origin, all of whose chunks are stored. Raises InvalidInput, Damaged, NotFound."""
        sent = {"bulk": [snapshot], "bulk_length": len(snapshot)}
        return _record(self._value("put_mirror", dataset=dataset, **sent))

    def mirrors(self) -> list[MirrorRecord]:
        """The mirrors that this user may read, ordered by name."""
        return sorted(_record(info) for info in self._value("list_mirrors"))
