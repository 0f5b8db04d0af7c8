"""Reads the warmth of a mount, and starts its warming, for `dlcmd warm`. This module opens files of a mount."""

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import MountError, Unavailable

_WARM = Path(".dieselfs/warm-now")


@dataclass(frozen=True, slots=True)
class MountWarmth:
    """The warmth of a mount, or of its job. `nodes`: those of the job that answered; `unknown`: the others.
    `dataset_bytes`: size of the whole dataset, even if memory has no room for it.
    """

    whole: Warmth
    nodes: Mapping[str, Warmth]
    unknown: tuple[str, ...] = ()
    job: str | None = None
    dataset_bytes: int = 0

    @property
    def warm_nodes(self) -> int:
        """How many nodes have pinned everything that they can pin."""
        return sum(warmth.share >= 1 for warmth in self.nodes.values())


def warm(place: str) -> MountWarmth:
    """Start the warming of a mount (`control.mounted_place`), in a job of all its nodes; returns the current warmth.

    Waits for the replies of the nodes, and while the daemon is being replaced. Raises MountError for a dead mount,
    Unavailable if its daemon answers with an error.
    """
    try:
        text = Path(place, _WARM).read_bytes()
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            raise MountError(f"{place}: the mount is dead; mount it again") from None
        raise Unavailable(
            f"{place}: its daemon cannot report its warmth: {error.strerror}; see {place}/.dieselfs/errors"
        ) from None
    return parsed(json.loads(text))


def parsed(told: Mapping[str, Any]) -> MountWarmth:
    """The warmth from the content of `.dieselfs/warm-now`."""
    job = told["job"]
    dataset_bytes = told["dataset_bytes"]
    if job is None:
        own = _warmth(told["node"])
        return MountWarmth(own, {"": own}, dataset_bytes=dataset_bytes)
    nodes = {node: _warmth(fields) for node, fields in job["nodes"].items()}
    return MountWarmth(_warmth(job), nodes, tuple(job["unknown"]), job["name"], dataset_bytes)


def _warmth(fields: Mapping[str, Any]) -> Warmth:
    return Warmth(fields["pinned_bytes"], fields["wanted_bytes"], fields["damaged_chunks"])
