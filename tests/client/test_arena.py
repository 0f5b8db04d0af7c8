import gc
import mmap
import threading

import pytest

from dieselfs_client.arena import Arena

SLOT_BYTES = 8192


@pytest.fixture
def arena() -> Arena:
    return Arena(SLOT_BYTES, 3)


def taken(arena: Arena, length: int = SLOT_BYTES) -> memoryview:
    view = arena.take(length)
    assert view is not None
    return view


def test_slots_do_not_overlap_and_run_out(arena: Arena) -> None:
    views = [taken(arena) for _ in range(3)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * SLOT_BYTES
    assert [bytes(view) for view in views] == [bytes([number]) * SLOT_BYTES for number in range(3)]
    assert arena.take(1) is None


def test_a_slot_is_free_when_nothing_refers_to_it_any_more(arena: Arena) -> None:
    views = [taken(arena) for _ in range(3)]
    part = views[0][100:200][10:20]
    places = {arena.place(view) for view in views}
    del views
    gc.collect()
    again = [taken(arena), taken(arena)]
    assert arena.take(1) is None, "a slice of a slice keeps the third"
    part[0] = 7
    del part
    again.append(taken(arena))
    assert {arena.place(view) for view in again} == places


def test_what_does_not_fit_is_not_given(arena: Arena) -> None:
    assert arena.take(SLOT_BYTES + 1) is None
    assert arena.take(0) is None
    assert len(taken(arena, 10)) == 10


def test_others_see_the_bytes_at_their_place(arena: Arena) -> None:
    with mmap.mmap(arena.descriptor, arena.length_bytes, prot=mmap.PROT_READ) as theirs:
        view = taken(arena, 5)
        view[:] = b"bytes"
        place = arena.place(view)
        assert place is not None and theirs[place : place + 5] == b"bytes"


def test_only_whole_views_of_this_arena_have_a_place(arena: Arena) -> None:
    view = taken(arena)
    assert arena.place(view[:10]) is None
    assert arena.place(memoryview(bytearray(SLOT_BYTES))) is None
    assert arena.place(taken(Arena(SLOT_BYTES, 1))) is None


def test_many_threads_never_get_the_same_slot() -> None:
    arena, faults = Arena(64, 4), []

    def use(mark: int) -> None:
        for _ in range(2000):
            view = arena.take(64)
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
    assert all(view is not None for view in [arena.take(1) for _ in range(4)])
