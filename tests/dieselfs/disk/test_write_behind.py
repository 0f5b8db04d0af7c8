"""The order of the queue, its bound, and its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from dieselfs.disk.write_behind import DISK_QUEUE_BYTES, DISK_WRITE_TIMEOUT_S, UnwrittenPayload, WriteBehind

PATIENCE_S = 60.0


def of(content: bytes) -> UnwrittenPayload:
    return UnwrittenPayload(memoryview(content), len(content))


class Files:
    """What the thread has done. It waits in its first write until `release`."""

    def __init__(self, is_held: bool) -> None:
        self.done: list[str] = []
        self.is_writing, self.release = Event(), Event()
        if not is_held:
            self.release.set()

    def write(self, chunk_id: bytes, payload: UnwrittenPayload) -> None:
        self.is_writing.set()
        assert self.release.wait(PATIENCE_S)
        self.done.append(f"write {chunk_id.decode()} {bytes(payload.buffer[:9]).decode()}")

    def remove(self, chunk_id: bytes) -> None:
        self.done.append(f"remove {chunk_id.decode()}")


@contextmanager
def queue(files: Files) -> Iterator[WriteBehind]:
    writer = WriteBehind(
        files.write, files.remove, lambda: files.done.append("begin"), lambda: files.done.append("end")
    )
    try:
        yield writer
    finally:
        files.release.set()
        writer.close()


def test_everything_is_done_in_order_and_before_the_end() -> None:
    files = Files(is_held=False)
    with queue(files) as writer:
        assert writer.put(b"a", of(b"onetwo"))
        writer.remove(b"b")
        assert writer.put(b"b", of(b"three"))
    assert files.done == ["begin", "write a onetwo", "remove b", "write b three", "end"]


def test_what_waits_can_be_read() -> None:
    files = Files(is_held=True)
    with queue(files) as writer:
        assert writer.put(b"a", of(b"one"))
        writer.remove(b"b")
        assert bytes(writer.waiting(b"a") or b"") == b"one" and writer.waiting(b"b") is None
        assert writer.is_removing(b"b") and not writer.is_removing(b"a")
        assert writer.put(b"a", of(b"again")), "it waits already"
        files.release.set()
        assert writer.flush(PATIENCE_S)
        assert writer.waiting(b"a") is None and not writer.is_removing(b"b")
    assert files.done == ["begin", "write a one", "remove b", "end"]


def test_a_full_queue_refuses_after_a_moment_and_takes_more_later() -> None:
    half = of(bytes(DISK_QUEUE_BYTES // 2 + 1))
    files = Files(is_held=True)
    with queue(files) as writer:
        assert writer.put(b"a", half)
        assert not writer.put(b"b", half)
        assert writer.put(b"c", of(b"small"))
        files.release.set()
        assert writer.flush(PATIENCE_S)
        assert writer.put(b"b", half)


def test_a_chunk_larger_than_the_queue_is_written_alone() -> None:
    files = Files(is_held=False)
    with queue(files) as writer:
        assert writer.put(b"a", of(bytes(DISK_QUEUE_BYTES + 1)))
    assert len(files.done) == 3


def test_a_write_that_hangs_is_noticed_and_its_end_too() -> None:
    now_s = [0.0]
    files = Files(is_held=True)
    writer = WriteBehind(files.write, files.remove, lambda: None, lambda: None, lambda: now_s[0])
    try:
        assert writer.put(b"a", of(b"one")) and files.is_writing.wait(PATIENCE_S)
        assert not writer.is_stalled
        now_s[0] += DISK_WRITE_TIMEOUT_S + 1
        assert writer.is_stalled
        files.release.set()
        assert writer.flush(PATIENCE_S) and not writer.is_stalled
    finally:
        files.release.set()
        writer.close()
