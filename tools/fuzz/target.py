"""What the fuzzer tries: a parser, and valid inputs of it. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]


def of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """A parser of text, for any bytes; those that are not UTF-8 become surrogates, as in arguments of programs."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))
