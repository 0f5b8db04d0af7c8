"""The position of a job in its epoch, as about a hundred characters of text (`docs/reference/order.md`). No I/O.

    order1.ba591b1014c3337faa03c7f2.s1.e2.g100.p12582912.x12595200-12697599.7e500088

The version of the order, snapshot, seed, epoch, group size (only of version 1), position, skips, and a checksum that
detects a truncated or mistyped cursor. Only letters, digits, `.` and `-`, so a cursor can be part of a file name, an
option, or an address.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dieselfs.errors import InvalidInput
from dieselfs.limits import CURSOR_CHARACTERS_MAX, SKIP_RANGES_MAX
from dieselfs.shuffle.policies import NAME_BY_KIND, policy_of
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import DEFAULT_ORDER_VERSION, PlanSpec
from dieselfs.snapshot.format import COUNT_MAX

DIGEST_CHARACTERS = 24
"""96 bits of the snapshot's digest: collisions are infeasible, by accident or on purpose."""

REPLAY_VARIABLE = "DIESELFS_BISECT_CURSOR"
"""The environment variable with the cursor of a replay (`dlcmd bisect`): samplers of its order leave out its skips."""

_VERSIONS = ("1", "2")

_NUMBER = "(0|[1-9][0-9]{0,19})"
_RANGE = f"x{_NUMBER}-{_NUMBER}".replace("(", "(?:")
_CURSOR = re.compile(
    rf"([a-z]+)([0-9]+)\.([0-9a-f]{{{DIGEST_CHARACTERS}}})"
    rf"\.s{_NUMBER}\.e{_NUMBER}(?:\.g{_NUMBER})?\.p{_NUMBER}((?:\.{_RANGE}){{0,{SKIP_RANGES_MAX}}})\.([0-9a-f]{{8}})"
)


@dataclass(frozen=True, slots=True)
class Cursor:
    """All positions before `position` have been read; the next is `position`. `str` gives the text.

    `snapshot`: the beginning of the digest of the snapshot (and folder), in hexadecimal digits. `spec` has no folder:
    a cursor identifies its folder, but does not name it. The digest of a mixture is that of all its parts.
    """

    snapshot: str
    spec: PlanSpec
    position: int

    def __str__(self) -> str:
        spec, policy = self.spec, policy_of(self.spec)
        skips = "".join(f".x{one.start}-{one.stop - 1}" for one in spec.skips.ranges)
        version, group = (
            (DEFAULT_ORDER_VERSION, "") if spec.group_chunks is None else (1, f".g{spec.group_chunks}")
        )
        order = f"{policy.kind}{version}.{self.snapshot}.s{spec.seed}.e{spec.epoch}{group}"
        text = f"{order}.p{self.position}{skips}"
        return f"{text}.{check_sum(text)}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """The cursor of a text. Raises InvalidInput for any other text, and for another version of the order."""
        if not isinstance(text, str) or len(text) > CURSOR_CHARACTERS_MAX:
            raise InvalidInput(f"not a cursor: a cursor has at most {CURSOR_CHARACTERS_MAX} characters")
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{text!r} is not a cursor: a cursor looks like order2.DIGEST.s1.e0.p4096.CHECKSUM"
            )
        kind, version, snapshot, seed, epoch, group_chunks, position, skips, stated = match.groups()
        policy = NAME_BY_KIND.get(kind)
        if policy is None or version not in _VERSIONS:
            known = ", ".join(f"{kind} {version}" for kind in NAME_BY_KIND for version in _VERSIONS)
            raise InvalidInput(f"the cursor is of {kind} {version}, this version of dieselfs has {known}")
        if (group_chunks is None) != (version == "2"):
            raise InvalidInput(
                f"{text!r} is not a cursor: those of version 1 have a group, those of 2 have none"
            )
        if stated != check_sum(text[: match.start(9) - 1]):
            raise InvalidInput(f"{text!r}: the checksum does not match: the cursor was truncated or changed")
        ranges = [one.split("-") for one in skips.split(".x")[1:]]
        skipped = Skips(range(int(first), int(last) + 1) for first, last in ranges)
        if max(int(position), skipped.end) > COUNT_MAX:
            raise InvalidInput(f"{text!r} is not a cursor: a position is too large")
        try:
            group = None if group_chunks is None else int(group_chunks)
            spec = PlanSpec(int(seed), int(epoch), group, skipped, policy=policy)
        except InvalidInput as error:
            raise InvalidInput(f"{text!r} is not a cursor: {error}") from None
        cursor = cls(snapshot, spec, int(position))
        if str(cursor) != text:  # so that equal cursors have equal texts
            raise InvalidInput(f"{text!r} is not a cursor: the skips are out of order")
        return cursor

    def skipping(self, ranges: Iterable[range]) -> "Cursor":
        """The same cursor with more skips, as positions of the whole order. Raises InvalidInput if some of them have
        been read already.
        """
        skips = Skips((*self.spec.skips.ranges, *ranges))
        if skips.left_before(self.spec.skips.whole(self.position)) != self.position:
            raise InvalidInput(
                f"a range to skip begins before position {self.position} of the cursor: use an earlier cursor"
            )
        return replace(self, spec=replace(self.spec, skips=skips))


def check_sum(text: str) -> str:
    """CRC-32 of a text, as eight hexadecimal digits."""
    return f"{zlib.crc32(text.encode('ascii')):08x}"
