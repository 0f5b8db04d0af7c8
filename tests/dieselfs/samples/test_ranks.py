from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed

from dieselfs.errors import InvalidInput
from dieselfs.samples.ranks import rank_and_world, rank_nodes, shortened


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


def test_nodes_as_given_or_of_slurm() -> None:
    assert rank_nodes("even", 4, None, {}) == ()
    assert rank_nodes(["b", "a"], 4, None, {}) == ("b", "a")
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_STEP_NODELIST": "n[2-3]"}
    assert rank_nodes("local", 4, "n2", slurm) == ("n2", "n3")


@pytest.mark.usefixtures("process_group")
def test_ranks_exchange_the_names_of_their_nodes() -> None:
    assert rank_nodes("local", 1, "n7", {"SLURM_JOB_NODELIST": "n[1-3]"}) == ("n7",)
    with pytest.raises(InvalidInput, match="rank 0 reads the dataset outside a job: name the job"):
        rank_nodes("local", 1, None, {})


def test_unknown_nodes_are_refused_in_one_line() -> None:
    with pytest.raises(
        InvalidInput, match=r"the nodes of the 4 ranks are not known: initialise torch\.distributed"
    ):
        rank_nodes("local", 4, "n1", {})
    with pytest.raises(
        InvalidInput, match="assignment is 'near': give even, local, or the nodes of the ranks"
    ):
        rank_nodes("near", 4, "n1", {})


def test_nodes_in_the_order_of_ranks_are_named_once() -> None:
    assert shortened(["a", "a", "b", "b"]) == ("a", "b")
    assert shortened(["a", "b", "a", "b"]) == ("a", "b", "a", "b")
    assert shortened(["a", "a", "b"]) == ("a", "b")
    assert shortened(["a", "b", "b"]) == ("a", "b", "b")
