"""The ranks of a program and the nodes on which they are, as given or as a launcher says. `rank_nodes` does I/O."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dieselfs.cluster.node_list import parse_node_list
from dieselfs.errors import InvalidInput

Gather = Callable[[Any], list[Any]]
"""Takes an object of this rank, and returns those of all ranks, by rank, when all have called it."""

EVEN, LOCAL = "even", "local"
_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")


def rank_and_world(
    rank: int | None = None, world: int | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """`(rank, world)`: as given, else of the process group of torch.distributed, else of the variables of torchrun
    (`RANK`, `WORLD_SIZE`), else (0, 1).

    Raises InvalidInput if only one of the two is given or set, or a variable is not a number.
    """
    if rank is not None and world is not None:
        return rank, world
    if rank is not None or world is not None:
        raise InvalidInput("give both rank and world, or neither")
    if (distributed := _process_group()) is not None:
        return distributed.get_rank(), distributed.get_world_size()
    if ("RANK" in environment) != ("WORLD_SIZE" in environment):
        raise InvalidInput("only one of RANK and WORLD_SIZE is set in the environment: set both, or neither")
    try:
        return int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    except ValueError:
        raise InvalidInput(
            "RANK and WORLD_SIZE in the environment must be numbers, as torchrun sets them"
        ) from None


def _process_group() -> Any:
    """torch.distributed if the program has initialised it, else None."""
    distributed = sys.modules.get("torch.distributed")  # a program that uses it has imported it
    is_there = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_there else None


def alone(of_rank: Any) -> list[Any]:
    """`Gather` for one rank."""
    return [of_rank]


def gathering(given: Gather | None, world: int) -> Gather:
    """How ranks exchange objects: as given, else through the process group of torch.distributed. Raises InvalidInput if
    several ranks have neither.
    """
    if given is not None:
        return given
    if world == 1:
        return alone
    if _process_group() is None:
        raise InvalidInput(
            f"{world} ranks must exchange what they draw or learn: call torch.distributed.init_process_group first, or "
            "pass gather="
        )
    return _gather


def _gather(of_rank: Any) -> list[Any]:
    distributed = _process_group()
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, of_rank)
    return found


def rank_nodes(
    assignment: str | Sequence[str],
    world: int,
    own: str | None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[str, ...]:
    """The nodes of an assignment, for `ReaderSpec.nodes`: none for `even`, a sequence as given. For `local`, what all
    ranks exchange through the process group of torch.distributed, which all must call this; else the list of Slurm.

    `own`: the name of this node in its job, None without a job. Raises InvalidInput if the nodes are not known.
    """
    if not isinstance(assignment, str):
        return tuple(assignment)
    if assignment == EVEN:
        return ()
    if assignment != LOCAL:
        raise InvalidInput(f"assignment is {assignment!r}: give {EVEN}, {LOCAL}, or the nodes of the ranks")
    distributed = _process_group()
    if distributed is not None and distributed.get_world_size() == world:
        found = _gather(own)
        if None in found:
            raise InvalidInput(
                f"assignment is {LOCAL}, but rank {found.index(None)} reads the dataset outside a job: name the job "
                "(docs/guide/job-cache.md), or give the nodes of the ranks"
            )
        return shortened(found)
    listed = next((environment[name] for name in _NODE_LISTS if name in environment), None)
    if listed is None:
        raise InvalidInput(
            f"assignment is {LOCAL}, but the nodes of the {world} ranks are not known: initialise torch.distributed "
            "first, start the program with srun, or give the names of the nodes in the order of ranks"
        )
    return parse_node_list(listed)


def shortened(by_rank: Iterable[str]) -> tuple[str, ...]:
    """The nodes of all ranks, each once if the ranks are spread over them in order, as launchers do it."""
    names = tuple(by_rank)
    nodes = tuple(dict.fromkeys(names))
    spread = tuple(nodes[rank * len(nodes) // len(names)] for rank in range(len(names)))
    return nodes if spread == names else names
