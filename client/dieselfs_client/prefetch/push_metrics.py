"""What is counted of pushes into the page cache. No I/O."""

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import LATENCY_BOUNDS_S, Registry


class PushMetrics:
    """Changed by one thread."""

    def __init__(self, metrics: Registry) -> None:
        self._files = metrics.counter("prefetch.pushed_files", "Files put into the page cache.")
        self._bytes = metrics.declare(catalogue.PREFETCH_PUSHED_BYTES)
        self._took = metrics.histogram("prefetch.push_s", "Time of a push, with its wait.", LATENCY_BOUNDS_S)

    def note(self, files: int, size_bytes: int, took_s: float) -> None:
        """Count a push: the files of one chunk."""
        self._files.value += files
        self._bytes.value += size_bytes
        self._took.observe(took_s)
