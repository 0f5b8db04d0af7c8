"""How a chunk that is not in memory is loaded: each rule by itself."""

import pytest

from dieselfs.cache.load import Load, Missing, load_ahead, load_for

PAYLOAD_BYTES = 4_000_000
LITTLE_BYTES = 1_000
SMALL = Missing(
    chunk=3,
    payload_bytes=PAYLOAD_BYTES,
    wanted_bytes=LITTLE_BYTES,
    requested_bytes=LITTLE_BYTES,
    together=1,
    is_expected=False,
    has_room=True,
    would_pin=False,
    is_known=False,
    is_refused=False,
    is_in_job=False,
    is_shared_plan=False,
)


def test_a_small_request_takes_what_others_share_and_fetches_only_extents() -> None:
    load = load_for(SMALL)
    assert load == Load(LITTLE_BYTES, True, True, holds_shared=False, fetches_whole=False, is_noted=True)


@pytest.mark.parametrize(
    "missing",
    [
        SMALL._replace(requested_bytes=PAYLOAD_BYTES),
        SMALL._replace(is_expected=True),
        SMALL._replace(would_pin=True, is_known=True),
    ],
)
def test_a_chunk_that_will_be_used_is_fetched_whole_if_there_is_room(missing: Missing) -> None:
    assert load_for(missing).fetches_whole and load_for(missing).holds_shared
    full = load_for(missing._replace(has_room=False))
    assert not (full.fetches_whole or full.holds_shared or full.is_noted or full.asks_daemon)


def test_what_is_shared_is_held_for_less_than_what_must_be_fetched() -> None:
    for missing in (SMALL._replace(would_pin=True), SMALL._replace(is_shared_plan=True)):
        assert load_for(missing).holds_shared and not load_for(missing).fetches_whole


def test_a_server_that_has_refused_is_asked_again_for_a_whole_chunk_only() -> None:
    assert not load_for(SMALL._replace(is_refused=True)).asks_server
    again = load_for(SMALL._replace(is_refused=True, is_expected=True))
    assert again.asks_server and again.asked_bytes == PAYLOAD_BYTES


def test_in_a_job_readers_of_one_plan_leave_chunks_to_their_owners() -> None:
    pooled = SMALL._replace(is_in_job=True, is_shared_plan=True, would_pin=True, is_known=True)
    load = load_for(pooled)
    assert load.asked_bytes == PAYLOAD_BYTES and not load.asks_server
    assert not load.fetches_whole and not load.is_noted
    assert load_for(pooled._replace(wanted_bytes=PAYLOAD_BYTES)).fetches_whole


def test_in_a_job_a_second_request_for_many_chunks_is_not_enough_for_whole_ones() -> None:
    alone = SMALL._replace(is_in_job=True, would_pin=True, is_known=True)
    assert load_for(alone).fetches_whole
    known = alone._replace(together=2)
    assert not load_for(known).fetches_whole and load_for(known).is_noted
    assert load_for(known._replace(requested_bytes=PAYLOAD_BYTES)).fetches_whole


def test_ahead_of_readers_a_part_is_only_mapped() -> None:
    assert load_ahead(SMALL, False) == Load(LITTLE_BYTES, True, True, True, False)
    assert load_ahead(SMALL, True) == Load(PAYLOAD_BYTES, True, True, True, True)
    assert not load_ahead(SMALL._replace(has_room=False), True).fetches_whole
    assert not load_ahead(SMALL._replace(is_refused=True), False).asks_server
    assert load_ahead(SMALL._replace(is_in_job=True, is_shared_plan=True), False).asked_bytes == PAYLOAD_BYTES
