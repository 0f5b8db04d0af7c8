"""A result of `dlcmd bench`, as tests need it for `dlcmd plan`."""

from pathlib import Path

from dieselfs_tools.observe.prediction import Cost, Speeds, save

SPEEDS = Speeds(first=Cost(0.1, 50e-6, 1e-9), later=Cost(0.01, 20e-6, 0.2e-9), fetch_bytes_s=500e6)


def write_speeds(path: Path) -> None:
    save(SPEEDS, "dl://measured", path)
