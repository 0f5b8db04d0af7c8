"""What the master of a node tells the servers of its job, for people who look: how far the epoch is, for what its reads
wait, and what limits it. No I/O. Servers keep it as it is, so it is checked where it is shown.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgpack

from dieselfs.telemetry.activity import Activity
from dieselfs.telemetry.diagnosis import diagnosis

PROGRESS_BYTES_MAX = 2048
TEXT_CHARACTERS_MAX = 600
CAUSES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """Rates are for a second. `position` of `positions`: of the slowest reader of the newest epoch that is read.
    `waiting`: reads that wait, on the average; `spent`: seconds of all threads, for a second, by cause. `limit`, `text`
    and `advice`: of the `Diagnosis`. `age_s`: of the daemon.
    """

    age_s: float = 0.0
    epoch: int = -1
    position: int = 0
    positions: int = 0
    left_s: float | None = None
    reads: float = 0.0
    fetched_bytes: float = 0.0
    waiting: float = 0.0
    hit_share: float | None = None
    limit: str = ""
    text: str = ""
    advice: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def seen(cls, activity: Activity, age_s: float) -> "NodeProgress":
        plan = max(activity.plans, key=lambda plan: plan.epoch, default=None)
        found = diagnosis(activity, ())
        spent = sorted(activity.spent.items(), key=lambda each: -each[1])[:CAUSES_SHOWN]
        return cls(
            age_s,
            *((plan.epoch, plan.position, plan.positions, plan.left_s) if plan else (-1, 0, 0, None)),
            activity.reads,
            activity.fetched_bytes,
            activity.waiting,
            activity.hit_share,
            found.limit,
            found.text[:TEXT_CHARACTERS_MAX],
            found.advice,
            {cause: round(share, 3) for cause, share in spent if share > 0},
        )

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(asdict(self))
        return packed if len(packed) <= PROGRESS_BYTES_MAX else b""

    @classmethod
    def of(cls, encoded: bytes) -> "NodeProgress | None":
        """None for what is none: it comes from a client, perhaps of another version."""
        try:
            fields: Mapping[str, Any] = dict(msgpack.unpackb(encoded))
            known = {name: fields[name] for name in cls.__slots__ if name in fields}
            return cls(**{name: _checked(name, value) for name, value in known.items()})
        except (ValueError, TypeError, RecursionError):
            return None


_TEXTS = ("limit", "text", "advice")
_COUNTS = ("epoch", "position", "positions")
_OPTIONAL = ("left_s", "hit_share")


def _checked(name: str, value: Any) -> Any:
    """Raises ValueError, TypeError."""
    if name == "spent":
        causes = [*dict(value).items()][:CAUSES_SHOWN]
        return {str(cause)[:40]: _number(cause, share) for cause, share in causes}
    if name in _TEXTS:
        return str(value)[:TEXT_CHARACTERS_MAX]
    if value is None and name in _OPTIONAL:
        return None
    number = _number(name, value)
    return int(number) if name in _COUNTS else number


def _number(name: str, value: Any) -> float:
    """Raises ValueError, TypeError."""
    number = float(value)
    if not abs(number) < 1e18:  # NaN too
        raise ValueError(f"{name} is no number")
    return number
