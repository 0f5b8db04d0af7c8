"""Names: the same path is always the same, fits the rules of the server, and opens in its folder alone."""

import re

import pytest

from dieselfs.encryption.names import PLAIN_NAME_BYTES_MAX, PLAIN_TARGET_BYTES_MAX, NameCipher
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import NAME_BYTES_MAX, PATH_BYTES_MAX
from dieselfs.names import path_fault

NAMES = NameCipher(bytes(range(64)))


def test_a_path_is_sealed_part_by_part_and_always_alike() -> None:
    path = NAMES.seal_path(b"train/cat/1.jpg")
    assert path == NameCipher(bytes(range(64))).seal_path(b"train/cat/1.jpg")
    assert re.fullmatch(rb"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){2}", path)
    assert path.startswith(NAMES.seal_path(b"train/cat") + b"/")
    opened = folder = b""
    for part in path.split(b"/"):
        opened += b"/" + NAMES.open_name(part, folder)
        folder = part
    assert opened == b"/train/cat/1.jpg"
    assert NAMES.seal_path(b"") == b""


def test_equal_names_in_two_folders_differ_and_open_in_their_own_alone() -> None:
    first, second = (NAMES.seal_path(path) for path in (b"a/x", b"b/x"))
    assert first.split(b"/")[1] != second.split(b"/")[1]
    with pytest.raises(Damaged):
        NAMES.open_name(first.split(b"/")[1], second.split(b"/")[0])
    with pytest.raises(Damaged):
        NameCipher(bytes(64)).open_name(first.split(b"/")[0], b"")
    for odd in (b"plain.jpg", b"A" * 30, b"!", b"\xff"):
        with pytest.raises(Damaged):
            NAMES.open_name(odd, b"")


def test_the_longest_names_fit_and_longer_ones_are_refused() -> None:
    longest = NAMES.seal_path(b"n" * PLAIN_NAME_BYTES_MAX)
    assert len(longest) <= NAME_BYTES_MAX and path_fault(longest) is None
    with pytest.raises(InvalidInput, match="has 175 bytes at most, this one 176"):
        NAMES.seal_path(b"n" * (PLAIN_NAME_BYTES_MAX + 1))
    with pytest.raises(InvalidInput, match="the path is too long for an encrypted dataset"):
        NAMES.seal_path(b"/".join([b"n" * PLAIN_NAME_BYTES_MAX] * 17))


def test_the_target_of_a_link_is_bound_to_it() -> None:
    target = NAMES.seal_target(b"../cat.jpg", b"name")
    assert NAMES.open_target(target, b"name") == b"../cat.jpg"
    with pytest.raises(Damaged):
        NAMES.open_target(target, b"other")
    assert len(NAMES.seal_target(b"t" * PLAIN_TARGET_BYTES_MAX, b"name")) <= PATH_BYTES_MAX
    with pytest.raises(InvalidInput, match="target"):
        NAMES.seal_target(b"t" * (PLAIN_TARGET_BYTES_MAX + 1), b"name")
