import gc
import mmap
import os
import threading

import pytest

from dieselfs_client.memory.buffer_pool import BufferPool

SLOT_BYTES = 8192


@pytest.fixture
def buffer_pool() -> BufferPool:
    return BufferPool(SLOT_BYTES, 3)


def taken(buffer_pool: BufferPool, length: int = SLOT_BYTES) -> memoryview:
    view = buffer_pool.take(length)
    assert view is not None
    return view


def test_slots_do_not_overlap_and_run_out(buffer_pool: BufferPool) -> None:
    views = [taken(buffer_pool) for _ in range(3)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * SLOT_BYTES
    assert [bytes(view) for view in views] == [bytes([number]) * SLOT_BYTES for number in range(3)]
    assert buffer_pool.take(1) is None


def test_a_slot_is_free_when_nothing_refers_to_it_any_more(buffer_pool: BufferPool) -> None:
    views = [taken(buffer_pool) for _ in range(3)]
    part = views[0][100:200][10:20]
    places = {buffer_pool.place(view) for view in views}
    del views
    gc.collect()
    again = [taken(buffer_pool), taken(buffer_pool)]
    assert buffer_pool.take(1) is None, "a slice of a slice keeps the third"
    part[0] = 7
    del part
    again.append(taken(buffer_pool))
    assert {buffer_pool.place(view) for view in again} == places


def test_what_does_not_fit_is_not_given(buffer_pool: BufferPool) -> None:
    assert buffer_pool.take(SLOT_BYTES + 1) is None
    assert buffer_pool.take(0) is None
    assert len(taken(buffer_pool, 10)) == 10


def test_others_see_the_bytes_at_their_place(buffer_pool: BufferPool) -> None:
    with mmap.mmap(buffer_pool.descriptor, buffer_pool.length_bytes, prot=mmap.PROT_READ) as theirs:
        view = taken(buffer_pool, 5)
        view[:] = b"bytes"
        place = buffer_pool.place(view)
        assert place is not None and theirs[place : place + 5] == b"bytes"


def test_only_whole_views_of_this_arena_have_a_place(buffer_pool: BufferPool) -> None:
    view = taken(buffer_pool)
    assert buffer_pool.place(view[:10]) is None
    assert buffer_pool.place(memoryview(bytearray(SLOT_BYTES))) is None
    assert buffer_pool.place(taken(BufferPool(SLOT_BYTES, 1))) is None


def test_many_threads_never_get_the_same_slot() -> None:
    buffer_pool, faults = BufferPool(64, 4), []

    def use(mark: int) -> None:
        for _ in range(2000):
            view = buffer_pool.take(64)
            if view is not None:
                view[:] = bytes([mark]) * 64
                if bytes(view) != bytes([mark]) * 64:
                    faults.append(mark)

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    gc.collect()
    assert all(view is not None for view in [buffer_pool.take(1) for _ in range(4)])


def test_the_memory_of_spare_slots_is_given_back_unless_it_is_kept() -> None:
    buffer_pool = BufferPool(SLOT_BYTES, 1, 3)

    def used_bytes() -> int:
        return os.fstat(buffer_pool.descriptor).st_blocks * 512

    def use(slots: int) -> None:
        views = [taken(buffer_pool) for _ in range(slots)]
        for view in views:
            view[:] = b"x" * SLOT_BYTES
        assert used_bytes() >= slots * SLOT_BYTES

    use(4)
    assert used_bytes() == SLOT_BYTES, "the first slot stays"
    buffer_pool.keep_spare(2 * SLOT_BYTES)
    use(4)
    assert used_bytes() == 3 * SLOT_BYTES
    buffer_pool.keep_spare(0)
    assert used_bytes() == SLOT_BYTES
    assert buffer_pool.place(taken(buffer_pool)) == 0, "spare slots are taken last"
