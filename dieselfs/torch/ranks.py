"""The rank of this process, and the number of ranks. No I/O."""

import os
from collections.abc import Mapping

import torch.distributed

from dieselfs.errors import InvalidInput


def rank_and_world(
    rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """`(rank, world)`: as given, else of the process group of torch.distributed, else of the variables of torchrun
    (`RANK`, `WORLD_SIZE`), else (0, 1).

    Raises InvalidInput if only one of the two is given, or a variable is not a number.
    """
    if rank is not None and world is not None:
        return rank, world
    if rank is not None or world is not None:
        raise InvalidInput("give both rank and world, or neither")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        return int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    except ValueError:
        raise InvalidInput(
            "RANK and WORLD_SIZE in the environment must be numbers, as torchrun sets them"
        ) from None
