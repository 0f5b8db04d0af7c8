"""Where a job stands in its epoch, as about a hundred characters of text (`docs/order.md`). No I/O.

    order1.ba591b1014c3337faa03c7f2.s1.e2.g100.p12582912.x12595200-12697599.7e500088

Snapshot, seed, epoch, group size, position, what is skipped, and a check sum, so that a cursor that was cut short
or typed wrong is refused. Only letters, digits, `.` and `-`: it can be part of a file name, an option, or an address.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dieselfs.errors import InvalidInput
from dieselfs.limits import CURSOR_CHARACTERS_MAX, SKIP_RANGES_MAX
from dieselfs.meta.snapshot_format import COUNT_MAX
from dieselfs.shuffle.order import GROUP_CHUNKS_MAX, SEED_MAX, SPEC_VERSION
from dieselfs.shuffle.skips import NO_SKIPS, Skips

DIGEST_CHARACTERS = 24
"""96 bits of the snapshot's digest: no two snapshots share them by accident, and nobody can make one that does."""

_NUMBER = "(0|[1-9][0-9]{0,19})"
_RANGE = f"x{_NUMBER}-{_NUMBER}".replace("(", "(?:")
_CURSOR = re.compile(
    rf"order([0-9]+)\.([0-9a-f]{{{DIGEST_CHARACTERS}}})"
    rf"\.s{_NUMBER}\.e{_NUMBER}\.g{_NUMBER}\.p{_NUMBER}((?:\.{_RANGE}){{0,{SKIP_RANGES_MAX}}})\.([0-9a-f]{{8}})"
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """All positions before `position` have been read; the next is `position`. `str` gives the text.

    `snapshot`: the beginning of the snapshot's digest, in hexadecimal digits.
    """

    snapshot: str
    seed: int
    epoch: int
    group_chunks: int
    position: int
    skips: Skips = NO_SKIPS

    def __str__(self) -> str:
        skips = "".join(f".x{one.start}-{one.stop - 1}" for one in self.skips.ranges)
        order = f"order{SPEC_VERSION}.{self.snapshot}.s{self.seed}.e{self.epoch}.g{self.group_chunks}"
        text = f"{order}.p{self.position}{skips}"
        return f"{text}.{_check_sum(text)}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """The cursor of a text. Raises InvalidInput if it is none, or one of another version of the order."""
        if not isinstance(text, str) or len(text) > CURSOR_CHARACTERS_MAX:
            raise InvalidInput(f"this is no cursor: one has at most {CURSOR_CHARACTERS_MAX} characters")
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{text!r} is no cursor: one looks like order{SPEC_VERSION}.DIGEST.s1.e0.g100.p4096.CHECKSUM"
            )
        version, snapshot, seed, epoch, group_chunks, position, skips, check_sum = match.groups()
        if int(version) != SPEC_VERSION:
            raise InvalidInput(
                f"the cursor is of order {version}, this version of dieselfs has order {SPEC_VERSION}"
            )
        if check_sum != _check_sum(text[: match.start(8) - 1]):
            raise InvalidInput(f"{text!r}: the check sum does not fit: the cursor was cut short or changed")
        ranges = [one.split("-") for one in skips.split(".x")[1:]]
        cursor = cls(
            snapshot,
            int(seed),
            int(epoch),
            int(group_chunks),
            int(position),
            Skips(range(int(first), int(last) + 1) for first, last in ranges),
        )
        cursor._check(text)
        return cursor

    def skipping(self, ranges: Iterable[range]) -> "Cursor":
        """The same with more left out: positions of the whole order. Raises InvalidInput if some of them have been
        read already.
        """
        skips = Skips((*self.skips.ranges, *ranges))
        if skips.left_before(self.skips.whole(self.position)) != self.position:
            raise InvalidInput(
                f"what is to be skipped lies behind position {self.position}, which the cursor has reached: take an "
                "earlier cursor"
            )
        return replace(self, skips=skips)

    def _check(self, text: str) -> None:
        is_in_range = (
            max(self.seed, self.epoch) <= SEED_MAX
            and self.group_chunks <= GROUP_CHUNKS_MAX
            and max(self.position, self.skips.end) <= COUNT_MAX
        )
        # One text for one cursor: so that equal cursors are equal texts.
        if not is_in_range or str(self) != text:
            raise InvalidInput(f"{text!r} is no cursor: a number is too large, or the skips are out of order")


def _check_sum(text: str) -> str:
    return f"{zlib.crc32(text.encode('ascii')):08x}"
