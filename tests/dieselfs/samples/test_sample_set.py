"""The base of the datasets."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.samples.sample_set import LocationList, SampleSet
from dieselfs.samples.source import open_source


class Sizes(SampleSet):
    """The sizes of all files of a plain folder."""

    def __init__(self, root: Path, nodes: Iterable[int]) -> None:
        super().__init__(root, *open_source(root))
        self.is_closed = False
        self._find(lambda: np.array([*nodes], np.int64))

    def _items(self, indices: Any) -> list[int]:
        return list(map(len, self.source.read_many(self.nodes[indices].tolist())))

    def close(self) -> None:
        self.is_closed = True
        super().close()


def test_a_subclass_finds_the_samples_and_makes_items(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name * ord(name))
    with Sizes(tmp_path, [3, 1]) as sizes:
        assert (len(sizes), sizes[0], sizes[1], sizes[-1]) == (2, 99, 97, 97)
        assert sizes.__getitems__([1, 1, 0]) == [97, 97, 99]
        assert [sizes.path(0), sizes.path(1)] == ["c", "a"]
        with pytest.raises(IndexError):
            sizes[2]
    assert sizes.is_closed


def test_what_was_opened_is_closed_when_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a")
    closed: list[SampleSet] = []
    monkeypatch.setattr(Sizes, "close", lambda samples: closed.append(samples))
    with pytest.raises(ZeroDivisionError):
        Sizes(tmp_path, (1 // number for number in [0]))
    assert len(closed) == 1


def test_lists_of_locations_are_made_on_access() -> None:
    nodes, labels = np.arange(5, dtype=np.uint32), np.arange(5, dtype=np.int32)[::-1]
    assert list(LocationList(str, nodes)[1:3]) == ["1", "2"]
    assert LocationList(str, nodes, labels)[1:][-1] == ("4", 0)
