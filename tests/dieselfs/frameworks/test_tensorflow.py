"""tf.data over an order. Runs where TensorFlow is installed."""

from pathlib import Path
from typing import Any

import pytest

from dieselfs.samples.class_folders import FolderSamples
from dieselfs.samples.opportunistic import OpportunisticState
from dieselfs.samples.sampler_state import SamplerState
from tests.support.plain_folder import FILES, array_of, write_classes

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of TensorFlow


@pytest.fixture
def samples(tmp_path: Path) -> FolderSamples:
    return FolderSamples(write_classes(tmp_path), loader=array_of, extensions=None)


def dataset_of(samples: FolderSamples, sampler: SamplerState) -> Any:
    from dieselfs.tensorflow import dataset

    return dataset(samples, sampler, (tf.TensorSpec((None, 1), tf.int64), tf.TensorSpec((None,), tf.int32)))


def sampler_of(samples: FolderSamples, **options: Any) -> SamplerState:
    return SamplerState(samples, 6, seed=2, **{"rank": 0, "world": 1, **options})


def flat(batches: Any) -> list[int]:
    return [int(number) for images, _ in batches for number in images.numpy()[:, 0]]


def test_batches_of_an_epoch(samples: FolderSamples) -> None:
    dataset = dataset_of(samples, sampler_of(samples))
    assert dataset.cardinality().numpy() == 7
    assert dataset.element_spec[0].shape.as_list() == [None, 1]
    for images, labels in dataset.prefetch(2):
        assert (images.numpy()[:, 0] % 2).tolist() == labels.numpy().tolist()
    assert sorted(flat(dataset)) == list(range(FILES))
    parts = [flat(dataset_of(samples, sampler_of(samples, rank=rank, world=2))) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(FILES))


def test_an_iterator_continues_from_a_checkpoint(samples: FolderSamples, tmp_path: Path) -> None:
    whole = flat(dataset_of(samples, sampler_of(samples)))
    iterator = iter(dataset_of(samples, sampler_of(samples)).prefetch(2))
    found = flat(next(iterator) for _ in range(3))
    place = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "state"))
    again = iter(dataset_of(samples, sampler_of(samples)).prefetch(2))
    tf.train.Checkpoint(iterator=again).read(place)
    assert found + flat(again) == whole


def test_a_cursor_continues_with_other_ranks(samples: FolderSamples) -> None:
    sampler = sampler_of(samples)
    batches = sampler.consumed(dataset_of(samples, sampler).prefetch(2))
    found = flat(next(batches) for _ in range(3))
    for rank in range(2):
        again = sampler_of(samples, rank=rank, world=2)
        again.load_state_dict(sampler.state_dict())
        found += flat(again.consumed(dataset_of(samples, again)))
    assert sorted(found) == list(range(FILES))


def test_an_error_of_reading_names_the_file(samples: FolderSamples, tmp_path: Path) -> None:
    (tmp_path / "a/002.img").write_bytes(b"")
    with pytest.raises(tf.errors.OpError, match=r"a/002\.img: ends after 0 of 4 bytes"):
        flat(dataset_of(samples, sampler_of(samples)))


def test_an_opportunistic_order_and_its_log(samples: FolderSamples) -> None:
    def sampler_of(**options: Any) -> OpportunisticState:
        return OpportunisticState(samples, 6, seed=2, rank=0, world=1, **options)

    sampler = sampler_of()
    batches = sampler.consumed(dataset_of(samples, sampler).prefetch(2))
    found = flat(next(batches) for _ in range(3))
    again = sampler_of()
    again.load_state_dict(sampler.state_dict())
    found += flat(again.consumed(dataset_of(samples, again)))
    assert sorted(found) == list(range(FILES))
    repeated = sampler_of()
    repeated.repeat(sampler.log)
    assert flat(dataset_of(samples, repeated)) == found
