"""The progress of a job that a server does: `purge`, `fsck` and `rebuild`. No I/O of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dieselfs.rpc.records import CopyProgress
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import Reading, shown


class _Watch:
    """What the server has said last."""

    def __init__(self) -> None:
        self.present = CopyProgress(0, 0, 0, 0)

    def set(self, progress: CopyProgress) -> None:
        self.present = progress

    def reading(self) -> Reading:
        done, _, total, _ = self.present
        return Reading(done, 0, total, 0, None, is_total_known=done < total, noun="chunk", has_bytes=False)


@contextmanager
def watched(output: Output, what: str) -> Iterator[Callable[[CopyProgress], None]]:
    """Show what a server has done, as it tells the function that this yields."""
    watch = _Watch()
    with shown(output, what, watch.reading):
        yield watch.set
