"""Names and keys of pieces."""

import pytest

from dieselfs_server.store.rados_pieces import Stripes, just_before, pieces_of_key


def test_pieces_are_found_again() -> None:
    pieces = Stripes.new(length=2500, count=3)
    assert Stripes.decode(pieces.encode()) == pieces
    assert pieces.objects("place") == [f"place.{pieces.nonce}.{number}" for number in (1, 2, 3)]
    assert pieces_of_key(pieces.key("name")).objects("place") == pieces.objects("place")
    assert Stripes.new(2500, 3).nonce != pieces.nonce


@pytest.mark.parametrize("value", [b"", b"a b c", b"a 1", b"a 1 2 3", b"\xff 1 2"])
def test_what_says_nothing_of_pieces_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError):
        Stripes.decode(value)


def test_a_listing_begins_where_it_should() -> None:
    keys = sorted(["", "-", "-a", "0", "0-", "0z", "1", "A", "Az", "Azzz", "B", "Z_", "z", "zz"])
    for key in keys[1:]:
        behind = [other for other in keys if other > just_before(key)]
        assert behind == [other for other in keys if other >= key]
