"""Sizes as people write them."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB
from dieselfs.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("512MiB", 512 * MIB), ("2G", 2 * GIB), ("64k", 65536), ("1gib", GIB)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "1.5G", "1TB", "GiB", "1 G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a size"):
        parse_size(text)
