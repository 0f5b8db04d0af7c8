"""The packets that a link loses, as a program of classic BPF for `tc`. No I/O.

The kernel runs it for each packet that a host sends; it needs no iptables, nftables or netem. ARP passes, so a cut is
as silent as a router that drops.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address

PASS, DROP = 0xFFFFFFFF, 2
"""TC_ACT_UNSPEC, TC_ACT_SHOT."""

_DESTINATION_OFFSET = 14 + 16  # after the Ethernet header, in that of IPv4
_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM: loads 32 random bits

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALL = 1 << 32

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if true, if false, operand."""


def program(lost_by_target: Mapping[IPv4Address, float]) -> list[Instruction]:
    """Drops a share (above 0, up to 1) of the packets to each address, at random."""
    instructions: list[Instruction] = []
    for target, share in lost_by_target.items():
        if not 0 < share <= 1:
            raise ValueError(f"a share is above 0 and at most 1: {share}")
        verdict = _verdict(share)
        instructions += [
            (_LOAD_WORD, 0, 0, _DESTINATION_OFFSET),
            (_JUMP_EQUAL, 0, len(verdict), int(target)),
            *verdict,
        ]
    return [*instructions, (_RETURN, 0, 0, PASS)]


def _verdict(share: float) -> list[Instruction]:
    drop, passes = (_RETURN, 0, 0, DROP), (_RETURN, 0, 0, PASS)
    threshold = round(share * _ALL)
    if threshold == _ALL:
        return [drop]
    return [(_LOAD_WORD, 0, 0, _RANDOM), (_JUMP_AT_LEAST, 1, 0, threshold), drop, passes]


def bytecode(instructions: list[Instruction]) -> str:
    """In the syntax of `tc`: their number, then each in decimal."""
    return ",".join([str(len(instructions)), *(" ".join(map(str, one)) for one in instructions)])
