from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed

from dieselfs.errors import InvalidInput
from dieselfs.samples.sampler_state import rank_and_world


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    place = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_one_process_unless_something_says_otherwise() -> None:
    assert rank_and_world(environment={}) == (0, 1)


def test_the_variables_of_torchrun() -> None:
    assert rank_and_world(environment={"RANK": "3", "WORLD_SIZE": "8"}) == (3, 8)
    for lonely in ({"RANK": "0"}, {"WORLD_SIZE": "8"}):
        with pytest.raises(InvalidInput, match="only one of RANK and WORLD_SIZE is set"):
            rank_and_world(environment=lonely)
    with pytest.raises(InvalidInput, match="RANK and WORLD_SIZE"):
        rank_and_world(environment={"RANK": "three", "WORLD_SIZE": "8"})


@pytest.mark.usefixtures("process_group")
def test_a_process_group_knows_better_than_variables() -> None:
    assert rank_and_world(environment={"RANK": "3", "WORLD_SIZE": "8"}) == (0, 1)


def test_what_the_caller_says_counts() -> None:
    assert rank_and_world(1, 2, environment={"RANK": "3", "WORLD_SIZE": "8"}) == (1, 2)
    for rank, world in ((1, None), (None, 2)):
        with pytest.raises(InvalidInput, match="both rank and world"):
            rank_and_world(rank, world)
