"""Asks a mount how warm its memory is, and has it warmed, as `dlcmd warm` does. This module opens files of a mount."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import MountError, Unavailable

_WARM = Path(".dieselfs/warm")


@dataclass(frozen=True, slots=True)
class MountWarmth:
    """How warm a mount is, or the job that it belongs to. `nodes`: of that job, those who answer; `unknown`: others.
    `dataset_bytes`: how much the whole dataset is, whether memory has room for it or not; None if it was not told.
    """

    whole: Warmth
    nodes: Mapping[str, Warmth]
    unknown: tuple[str, ...] = ()
    job: str | None = None
    dataset_bytes: int | None = None

    @property
    def warm_nodes(self) -> int:
        """How many nodes have all that they can keep."""
        return sum(warmth.share >= 1 for warmth in self.nodes.values())


def warm(place: str) -> MountWarmth:
    """Have a mount (`control.mounted_place`) fetch what its memory can keep, in the background; in a job, all of its
    nodes. How warm it is now.

    Waits for the answers of the nodes, and as long as the daemon is being replaced. Raises MountError for a dead mount,
    Unavailable if its daemon answers with an error.
    """
    try:
        text = Path(place, _WARM).read_bytes()
    except FileNotFoundError:
        raise MountError(f"{place}: its daemon is of an older version; dlcmd upgrade {place}") from None
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            raise MountError(f"{place}: the mount is dead; mount it again") from None
        raise Unavailable(f"{place}: its daemon cannot say how warm it is: {error.strerror}") from None
    return parsed(json.loads(text))


def parsed(told: Mapping[str, Any]) -> MountWarmth:
    """What stands in `.dieselfs/warm`."""
    job, dataset_bytes = told["job"], told.get("dataset_bytes")  # a daemon of an older version does not say
    if job is None:
        own = _warmth(told["node"])
        return MountWarmth(own, {"": own}, dataset_bytes=dataset_bytes)
    nodes = {node: _warmth(fields) for node, fields in job["nodes"].items()}
    return MountWarmth(_warmth(job), nodes, tuple(job["unknown"]), job["name"], dataset_bytes)


def _warmth(fields: Mapping[str, Any]) -> Warmth:
    return Warmth(fields["pinned_bytes"], fields["wanted_bytes"], fields["damaged_chunks"])
