"""Turns: which of the servers over one disk may make large reads, and how many at a time. No I/O.

LMDBIO staggers the readers of a disk, which has to seek between concurrent long reads (paper 000, section 4.6). Here,
*holders* are the processes of all servers. Each has as many turns as large reads that it may make at a time, and all
of them together have at most `turns_max`. If there are more holders than turns, turns go round: a holder that has had
its *slice* of time returns its turns if another one has none.

No clocks of two machines are compared. A holder decides about its own slice, others wait in the order of tickets, and
each observes for how long the `beat` of another stays the same.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgpack

HOLDERS_MAX = 4096
_COUNT_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Holder:
    """`wanted`: reads that it makes or that wait; `ticket`: smaller ones have waited longer; `beat`: its changes."""

    name: str
    wanted: int
    turns: int
    ticket: int
    beat: int


def renewed(
    holders: Sequence[Holder], name: str, reads: int, waiting: int, turns_max: int, *, is_slice_over: bool
) -> tuple[list[Holder], int]:
    """The holders after `name` has asked for turns, without it if it needs none, and how many reads it may make now.

    `holders`: those that live; `reads`: what it makes now, with turns that it has; `waiting`: reads that want to begin.
    A holder gets no turn that another has, or that belongs to one that waits for longer. It keeps those of its `reads`.
    """
    own = next((holder for holder in holders if holder.name == name), None)
    others = [holder for holder in holders if holder.name != name]
    wanted = reads + waiting
    if not wanted:
        return others, 0
    last = max((holder.ticket for holder in others), default=-1) + 1
    own = own or Holder(name, wanted, reads, last, 0)
    hungry = [holder for holder in others if not holder.turns]
    if own.turns and is_slice_over and hungry:
        return [*others, Holder(name, wanted, reads, last, own.beat + 1)], 0
    free = turns_max - sum(holder.turns for holder in others)
    if not own.turns:
        free -= sum(holder.ticket < own.ticket for holder in hungry)
    even = -(-turns_max // (len(others) + 1))
    unwanted = turns_max - sum(min(holder.wanted, turns_max) for holder in others)
    turns = max(0, min(wanted, max(even, unwanted), free))
    return [*others, Holder(name, wanted, max(turns, reads), own.ticket, own.beat + 1)], turns


def encoded(holders: Collection[Holder]) -> bytes:
    fields = [[each.name, each.wanted, each.turns, each.ticket, each.beat] for each in holders]
    packed: bytes = msgpack.packb(fields[:HOLDERS_MAX])
    return packed


def decoded(note: bytes | None) -> list[Holder]:
    """What `encoded` has made; no holders for None, or for a note of another version."""
    if note is None:
        return []
    try:
        fields = msgpack.unpackb(note)
        return [Holder(str(name), *map(_count, numbers)) for name, *numbers in fields]
    except (ValueError, TypeError):
        return []


def _count(value: object) -> int:
    """Raises ValueError for what `encoded` cannot have made, or could not write again."""
    if not isinstance(value, int) or not 0 <= value < _COUNT_END:
        raise ValueError(f"{value!r} is no number of a holder")
    return value
