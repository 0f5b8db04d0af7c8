"""A signed statement of freshness: which generation of a dataset was the newest one, and when. No I/O.

A snapshot is signed for ever, so it does not say whether there is a newer one. The servers state that with each newest
snapshot that they send. A statement is a line of text, which can be kept elsewhere than the store and what it says.
"""

import re
from dataclasses import dataclass
from typing import Protocol, Self

from dieselfs.errors import Damaged, DieselfsError
from dieselfs.net.auth import check_signed_by
from dieselfs.units import format_duration

STATEMENT_BYTES_MAX = 1024
LIFETIME_S = 7 * 86_400
"""For how long a statement of servers holds."""
CLOCK_SKEW_S = 60
"""Clocks of servers and clients may differ by this."""

_CONTEXT = b"dieselfs freshness\0"
"""Before the line that is signed, so that a signature of something else is never one of a statement."""
_HEX32 = r"[0-9a-f]{64}"
_LINE = re.compile(
    rf"dieselfs-freshness 1 (\S{{1,255}}) ([0-9a-f]{{32}}) (\d{{1,19}}) (\d{{1,19}}) ({_HEX32}) (\d{{1,12}}) "
    rf"(\d{{1,9}}) ({_HEX32}) ([0-9a-f]{{128}})\n"
)


class State(Protocol):
    """A generation of a dataset, and when it began: of a statement, a record or a snapshot."""

    @property
    def generation(self) -> int: ...

    @property
    def updated_ns(self) -> int: ...


def is_older(state: State, known: State) -> bool:
    """Whether the state is of before `known`. A newer time with a smaller generation is that of a store that was set
    back, and then written: an administrator who means it runs `dlcmd rebuild`, which makes the generation a larger one.
    """
    return state.updated_ns < known.updated_ns or state.generation < known.generation


@dataclass(frozen=True, slots=True)
class Statement:
    """`stated_s`: when, in seconds since 1970; it holds for `lifetime_s`. `digest`: of the snapshot."""

    dataset: str
    dataset_id: bytes
    generation: int
    updated_ns: int
    digest: bytes
    stated_s: int
    lifetime_s: int
    signer: bytes
    signature: bytes = b""

    def _line(self) -> str:
        fields = (
            self.dataset,
            self.dataset_id.hex(),
            self.generation,
            self.updated_ns,
            self.digest.hex(),
            self.stated_s,
            self.lifetime_s,
            self.signer.hex(),
        )
        return " ".join(["dieselfs-freshness 1", *map(str, fields)])

    def message(self) -> bytes:
        """What a server signs."""
        return _CONTEXT + self._line().encode("ascii")

    def encode(self) -> bytes:
        return f"{self._line()} {self.signature.hex()}\n".encode("ascii")

    @classmethod
    def decode(cls, content: bytes, source: str) -> Self:
        """Raises Damaged, which begins with `source`. The signature is not checked."""
        match = _LINE.fullmatch(content.decode("ascii", "replace"))
        if match is None:
            raise Damaged(f"{source}: not a statement of freshness of this version")
        dataset, dataset_id, generation, updated_ns, digest, stated_s, lifetime_s, signer, signed = (
            match.groups()
        )
        state = int(generation), int(updated_ns), bytes.fromhex(digest)
        lasts = int(stated_s), int(lifetime_s)
        return cls(
            dataset, bytes.fromhex(dataset_id), *state, *lasts, bytes.fromhex(signer), bytes.fromhex(signed)
        )

    def check_signature(self, source: str) -> None:
        """Raise Damaged unless `signer` has signed this. The caller decides whether it trusts the signer."""
        check_signed_by(self.signer, self.message(), self.signature, source)

    def check_age(self, now_s: float, max_age_s: float, source: str) -> None:
        """Raise DieselfsError if this is of the future, or older than allowed or than it holds."""
        age_s = now_s - self.stated_s
        if age_s < -CLOCK_SKEW_S:
            raise DieselfsError(
                f"{source}: the statement of freshness of {self.dataset} is {format_duration(-age_s)} ahead of the "
                "clock of this machine: set the clock that is wrong, here or at the servers"
            )
        limit_s = min(max_age_s, self.lifetime_s)
        if age_s > limit_s:
            raise DieselfsError(
                f"{source}: generation {self.generation} of {self.dataset} was the newest {format_duration(age_s)} "
                f"ago, and max_age allows {format_duration(limit_s)}: get it again from the servers; if it was stated "
                "just now, set the clock that is wrong"
            )
