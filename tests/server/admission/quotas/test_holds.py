"""Holds on quotas: what they add up to, when they end, and what a limit says."""

import pytest

from dieselfs.errors import Damaged
from dieselfs_server.admission.quotas.holds import Amount, Hold, Holds, Limit


def hold(chunk: str, size: int, files: int = 1, dataset: str = "pets", expires_s: int = 100) -> Hold:
    return Hold(dataset, chunk, Amount(size, files), expires_s)


def test_holds_of_other_chunks_add_up_by_dataset_until_they_expire() -> None:
    holds = Holds().with_hold(hold("a", 10), 0).with_hold(hold("b", 5, 2, "ants", 50), 0)
    assert holds.amount("new", 0) == Amount(15, 3)
    assert holds.amount("new", 0, "pets") == Amount(10, 1)
    assert holds.amount("a", 0) == Amount(5, 2)
    assert holds.amount("new", 50) == Amount(10, 1)
    assert holds.without("a", 60).held == ()


def test_a_chunk_is_held_once() -> None:
    holds = Holds().with_hold(hold("a", 10), 0).with_hold(hold("a", 10), 1)
    assert holds.amount("new", 2) == Amount(10, 1)


def test_no_content_of_a_note_comes_back() -> None:
    holds = Holds().with_hold(hold("a", 10), 0)
    again = holds.with_hold(hold("b", 1), 0).without("b", 0)
    assert again.held == holds.held and again.encode() != holds.encode()


def test_a_note_keeps_all_and_damage_is_noticed() -> None:
    holds = Holds().with_hold(hold("a", 10), 0).with_hold(hold("b", 5, 2, "ants", 50), 0)
    assert Holds.decode(holds.encode()) == holds
    assert Holds.decode(None) == Holds()
    truncated = b'[1, [["ants", "c", 5, 60]]]'  # one amount: it must not count as no files
    for content in (b"", b"{}", b"[1, [[]]]", b"[1e999, []]", b'["x", []]', b"[" * 100_000, truncated):
        with pytest.raises(Damaged):
            Holds.decode(content)


def test_a_limit_is_reached_with_the_last_byte_and_the_last_file() -> None:
    limit = Limit(
        "dataset pets", "dl://pets", {"stored_bytes": 100, "files": 10}, Amount(60, 5), Amount(30, 4)
    )
    assert limit.excess(Amount(10, 1)) is None
    bytes_reason, files_reason = limit.excess(Amount(11, 0)), limit.excess(Amount(0, 2))
    assert bytes_reason is not None and "90 B of 100 B, and 11 B more" in bytes_reason
    assert "dlcmd quota set dl://pets --size" in bytes_reason
    assert files_reason is not None and "9 of 10 files, and 2 more" in files_reason
    assert limit.stored_only().excess(Amount(40, 5)) is None
    assert Limit("dataset pets", "dl://pets", {}, Amount(60, 5), Amount()).excess(Amount(9, 9)) is None
