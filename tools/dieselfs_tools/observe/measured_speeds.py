"""The file in which `dlcmd bench` leaves the speeds of this machine for `dlcmd plan`. This module writes it."""

import json
import time
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.process.state_dirs import log_path
from dieselfs_tools.cli.output import replace_file
from dieselfs_tools.observe.prediction import Cost, Speeds

_FORMAT = 2
_FILE_BYTES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """`source`: where the chunks came from. `measured_s`: seconds since 1970."""

    speeds: Speeds
    source: str
    measured_s: int

    def fields(self) -> dict[str, object]:
        return {**asdict(self), "format": _FORMAT}


def default_path() -> Path:
    return log_path("speeds").with_suffix(".json")


def make_folder(path: Path) -> None:
    """The folder of the file at `path`, if there is none. Raises InvalidInput."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path.parent}: {error.strerror}; --save names another file") from None


def save(speeds: Speeds, source: str, path: Path) -> Measured:
    """Raises InvalidInput if the file cannot be written."""
    measured = Measured(speeds, source, int(time.time()))
    make_folder(path)
    replace_file(path, json.dumps(measured.fields(), indent=2) + "\n")
    return measured


def load(path: Path) -> Measured:
    """Raises NotFound if there is none, InvalidInput if it is not such a file."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_FILE_BYTES_MAX))
        if found["format"] != _FORMAT:
            raise InvalidInput(f"{path} has format {found['format']}, not {_FORMAT}: run 'dlcmd bench' again")
        speeds = found["speeds"]
        parts = ("start_s", "file_s", "byte_s")
        costs = [Cost(*(float(speeds[name][part]) for part in parts)) for name in ("first", "later")]
        read = Speeds(costs[0], costs[1], float(speeds["fetch_bytes_s"]))
        if min(min(astuple(cost)) for cost in costs) < 0 or read.fetch_bytes_s <= 0:
            raise ValueError("not a speed")
        return Measured(read, str(found["source"]), int(found["measured_s"]))
    except FileNotFoundError:
        raise NotFound(
            f"{path} does not exist: run 'dlcmd bench' first, on a machine like those of the job"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no result of 'dlcmd bench' ({error}): run it again") from None
