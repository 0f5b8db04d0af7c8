"""The packets that a link loses, as a program of classic BPF for `tc`. No I/O.

The kernel runs it for each packet that a host sends, so that packets can be lost one way, and without a word to either
side. A machine without iptables, nftables and netem can do it too. ARP passes: hosts that are cut off from each other
do not hear that the other is gone, as behind a router that drops.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address

PASS, DROP = 0xFFFFFFFF, 2
"""What a program answers: TC_ACT_UNSPEC (go on as if there were no program), TC_ACT_SHOT."""

_DESTINATION_OFFSET = 14 + 16  # behind the Ethernet header, in that of IPv4
_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM: 32 random bits where a word of the packet would be

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALL = 1 << 32

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if true, if false, operand."""


def program(lost_by_target: Mapping[IPv4Address, float]) -> list[Instruction]:
    """Drops, of the packets to each address, the share (above 0, up to 1) that is to be lost, at random."""
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
    threshold = round(share * _ALL)
    if threshold == _ALL:
        return [(_RETURN, 0, 0, DROP)]
    return [
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_JUMP_AT_LEAST, 1, 0, threshold),
        (_RETURN, 0, 0, DROP),
        (_RETURN, 0, 0, PASS),
    ]


def bytecode(instructions: list[Instruction]) -> str:
    """As `tc` takes it: their number, then each in decimal."""
    return ",".join([str(len(instructions)), *(" ".join(map(str, one)) for one in instructions)])
