"""Views of datasets that know nothing about dieselfs."""

import pickle  # noqa: TID251  # as a DataLoader hands a dataset to spawned workers
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.samples.sampler_state import SamplerState
from dieselfs.samples.view import ViewSamples


class Captions:
    """Several captions for each image, and a file that all items read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows = [(f"{number % 3}.jpg", number) for number in range(9)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[str, int]:
        name, number = self.rows[index]
        return (self.root / name).read_text(), number

    def files(self, index: int) -> list[str]:
        return [self.rows[index][0], "words.txt"]


@pytest.fixture
def captions(tmp_path: Path) -> Captions:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_text(f"image {number}")
    (tmp_path / "words.txt").write_text("words")
    return Captions(tmp_path)


def test_items_are_those_of_the_dataset(captions: Captions) -> None:
    with ViewSamples(captions, captions.root, captions.files) as view:
        assert len(view) == 9
        assert [view[index] for index in range(9)] == [captions[index] for index in range(9)]
        assert view.__getitems__([3, 1]) == [captions[3], captions[1]]
        assert (view.path(4), view.dataset) == ("1.jpg", captions)
        assert [pickle.loads(pickle.dumps(view))[index] for index in (8, 0)] == [captions[8], captions[0]]


@pytest.mark.parametrize("seed", range(3))
def test_every_item_is_read_once_and_resumes(captions: Captions, seed: int) -> None:
    paths = [str(captions.root / name) for name, _ in captions.rows]
    with ViewSamples(captions, captions.root, paths) as view:
        whole = [
            index for _, step in SamplerState(view, 2, seed=seed, rank=0, world=1).steps(0) for index in step
        ]
        assert sorted(whole) == list(range(9))
        sampler = SamplerState(view, 2, seed=seed, rank=0, world=1)
        steps = sampler.steps(0)
        before = [index for _, step in [next(steps), next(steps)] for index in step]
        sampler.advance()
        sampler.advance()
        again = SamplerState(view, 3, rank=0, world=1)
        again.load_state_dict(sampler.state_dict())
        assert before + [index for _, step in again.steps(again.position) for index in step] == whole


def test_what_cannot_be(captions: Captions) -> None:
    with pytest.raises(NotFound, match=r"1 of 10 files do not exist: 9\.jpg"):
        ViewSamples(captions, captions.root, lambda index: ["0.jpg", "9.jpg"] if index == 4 else "0.jpg")
    with pytest.raises(InvalidInput, match="item 7 reads no file"):
        ViewSamples(captions, captions.root, lambda index: [] if index == 7 else "0.jpg")
    with pytest.raises(InvalidInput, match="files has 2 entries, the dataset 9 items"):
        ViewSamples(captions, captions.root, ["0.jpg", "1.jpg"])
