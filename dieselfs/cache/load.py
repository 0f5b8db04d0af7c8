"""How a process loads a chunk that is not in its memory: mapped, fetched whole, or only the wanted extents. No I/O."""

from typing import NamedTuple

from dieselfs.cache.policy import is_worth_whole


class Missing(NamedTuple):
    """A chunk that is not in memory, and the request for extents of it.

    - `wanted_bytes`: of `payload_bytes`; with `requested_bytes`, all requests of late for it are counted, this one also
    - `together`: chunks of the same request, which share its latency
    - `is_expected`: a prefetch will load it whole
    - `has_room`: it can be held; `would_pin`: it would also be pinned
    - `is_known`: it was requested lately
    - `is_refused`: the server has not shared it when it was asked last
    - `is_in_job`: nodes pool their memory; `is_shared_plan`: see `sources.interface.Wanted`
    """

    chunk: int
    payload_bytes: int
    wanted_bytes: int
    requested_bytes: int
    together: int
    is_expected: bool
    has_room: bool
    would_pin: bool
    is_known: bool
    is_refused: bool
    is_in_job: bool
    is_shared_plan: bool


class Load(NamedTuple):
    """How to load a chunk.

    - `asked_bytes`: for which others decide whether it is worth sharing
    - `asks_daemon`, `asks_server`: which of them may share it
    - `holds_shared`: if one shares it, it is held; else it is used for this request
    - `fetches_whole`: if none shares it, it is fetched and held; else only the wanted extents are fetched
    - `is_noted`: if it is not held, the request counts for later ones
    """

    asked_bytes: int
    asks_daemon: bool
    asks_server: bool
    holds_shared: bool
    fetches_whole: bool
    is_noted: bool = False


def load_for(missing: Missing) -> Load:
    """How to load a chunk for a reader."""
    payload_bytes, wanted_bytes = missing.payload_bytes, missing.wanted_bytes
    is_pooled = missing.is_in_job and missing.is_shared_plan
    is_frequent = is_worth_whole(missing.requested_bytes, payload_bytes)
    if is_pooled:
        # Each of n readers needs an n-th of it. If all fetched it whole, each chunk would be sent n times.
        is_worth = is_worth_whole(wanted_bytes, payload_bytes)
    else:
        # Nodes answer for many chunks in one request, so that little of each costs little.
        costs_little = missing.is_in_job and missing.together > 1
        is_worth = is_frequent or (missing.would_pin and missing.is_known and not costs_little)
    fetches_whole = missing.has_room and (missing.is_expected or is_worth)
    is_free = missing.would_pin or missing.is_shared_plan  # without a transfer, it is held for less
    asks_again = missing.is_refused and fetches_whole
    return Load(
        payload_bytes if missing.is_expected or is_pooled or asks_again else wanted_bytes,
        missing.has_room,
        not missing.is_in_job and (not missing.is_refused or fetches_whole),
        missing.has_room and (missing.is_expected or is_free or is_frequent),
        fetches_whole,
        missing.has_room and not is_pooled,
    )


def load_ahead(missing: Missing, is_whole: bool) -> Load:
    """How to load a chunk ahead of its readers. Not `is_whole`: only if another process shares it."""
    is_pooled = missing.is_in_job and missing.is_shared_plan
    return Load(
        missing.payload_bytes if is_whole or is_pooled else missing.wanted_bytes,
        missing.has_room,
        not missing.is_in_job and (is_whole or not missing.is_refused),
        True,
        is_whole and missing.has_room,
    )
