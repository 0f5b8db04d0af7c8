"""What a mount can be told, and the text of `-o`: `name`, `name=value`, joined by commas. No I/O."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from dieselfs.cache.job import found_again
from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB, MOUNT_MEMORY_BYTES_MIN, READ_TIMEOUT_S
from dieselfs.sizes import parse_size
from dieselfs_client.job_options import JobOptions

POLICIES = ON_DEMAND, ONESHOT = "on-demand", "oneshot"
DRIVERS = KERNEL, PYFUSE3 = "kernel", "pyfuse3"


@dataclass(frozen=True, slots=True)
class MountOptions(JobOptions):
    """How to mount. The fields are the names in the text of `-o`, but for the units that stand at their ends.

    - `server`, `key_file`, `home`: as for `dieselfs.connect`; None means what the configuration says
    - `generation`: which generation of the dataset; 0 for the newest
    - `memory_bytes`: what may be held of the dataset in memory; 0 for 1 GiB, or less where the system allows less
    - `policy`: `oneshot` fetches what memory can keep at once, `on-demand` when it is read
    - `warm_rate_bytes`: what is fetched before it is read comes no faster, in bytes a second; 0 for no limit
    - `driver`: how the kernel is spoken to: `kernel` by ourselves, `pyfuse3` through libfuse
    - `allow_other`: other users see the mount too, as far as the modes of the files allow
    - `noexec`: programs on the mount cannot be run
    - `uid`, `gid`: who owns the files; None for the user who mounts
    - `timeout_s`: a read ends within this time, with its bytes or with EIO
    - `log_file`: None for the one in the user's state folder
    - `no_resend`: do after a crash what must be done on kernels before Linux 6.9; to try that out
    """

    server: str | None = None
    key_file: str | None = None
    home: str | None = None
    generation: int = 0
    memory_bytes: int = 0
    policy: str = ON_DEMAND
    warm_rate_bytes: int = 0
    driver: str = KERNEL
    allow_other: bool = False
    noexec: bool = False
    uid: int | None = None
    gid: int | None = None
    timeout_s: float = READ_TIMEOUT_S
    log_file: str | None = None
    no_resend: bool = False

    def __post_init__(self) -> None:
        if 0 < self.memory_bytes < MOUNT_MEMORY_BYTES_MIN:
            raise InvalidInput(f"memory must be at least {MOUNT_MEMORY_BYTES_MIN // MIB}MiB")
        if self.policy not in POLICIES:
            raise InvalidInput(f"policy {self.policy!r}: it is one of {', '.join(POLICIES)}")
        if self.driver not in DRIVERS:
            raise InvalidInput(f"driver {self.driver!r}: it is one of {', '.join(DRIVERS)}")
        if not 0 < self.timeout_s < float("inf"):
            raise InvalidInput("timeout must be a number of seconds above 0")

    def absolute(self) -> "MountOptions":
        """The same for a process that works in another folder."""
        paths = {name: getattr(self, name) for name in ("key_file", "home", "log_file")}
        return replace(
            self,
            job_secret=self.job_secret and found_again(self.job_secret),
            **{name: os.path.abspath(path) for name, path in paths.items() if path is not None},
        )


_IGNORED = {
    # What a mount of dieselfs always is, what it never is, and what is meant for mount(8) and systemd.
    *("ro", "rw", "nosuid", "nodev", "exec", "noatime", "relatime", "async", "defaults"),
    *("auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev"),
}
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "user=")
_COMMA = re.compile(r"(?<!\\),")


def _whole_number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise ValueError("it is a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it is a number of seconds") from None


_VALUE_PARSERS: dict[str, Callable[[str], object]] = {
    "server": str,
    "key_file": str,
    "home": str,
    "generation": _whole_number,
    "memory": parse_size,
    "policy": str,
    "warm_rate": parse_size,
    "driver": str,
    "uid": _whole_number,
    "gid": _whole_number,
    "timeout": _seconds,
    "log_file": str,
    "job": str,
    "job_nodes": _whole_number,
    "job_node": str,
    "job_rank": _whole_number,
    "job_host": str,
    "job_secret": str,
}
_FLAGS = ("allow_other", "noexec", "no_resend")
_FIELD_BY_NAME = {re.sub("_(bytes|s)$", "", field.name): field.name for field in fields(MountOptions)}
assert _FIELD_BY_NAME.keys() == {*_VALUE_PARSERS, *_FLAGS}


def parse_options(text: str, base: MountOptions, is_sloppy: bool = False) -> MountOptions:
    """`base` with what the text of one `-o` says. Raises InvalidInput; `is_sloppy`, not for unknown options."""
    changes: dict[str, object] = {}
    for option in filter(None, _COMMA.split(text)):
        name, is_assigned, value = option.replace("\\,", ",").partition("=")
        if name in _FLAGS and not is_assigned:
            changes[name] = True
        elif name in _VALUE_PARSERS and is_assigned:
            changes[_FIELD_BY_NAME[name]] = _parsed(name, value)
        elif option not in _IGNORED and not option.startswith(_IGNORED_PREFIXES) and not is_sloppy:
            known = ", ".join([*_FLAGS, *(f"{known}=..." for known in _VALUE_PARSERS)])
            raise InvalidInput(f"mount option {option!r} is not known; there are: {known}")
    return replace(base, **changes)  # type: ignore[arg-type]  # each value comes from the parser of its field


def _parsed(name: str, value: str) -> object:
    try:
        return _VALUE_PARSERS[name](value)
    except ValueError as error:
        raise InvalidInput(f"mount option {name}={value}: {error}") from None


def format_options(options: MountOptions) -> str:
    """The text of `-o` that gives these options."""
    return ",".join(_formatted(options))


def _formatted(options: MountOptions) -> Iterable[str]:
    for name, field in _FIELD_BY_NAME.items():
        value = getattr(options, field)
        if name in _FLAGS:
            if value:
                yield name
        elif value is not None:
            yield f"{name}={value}".replace(",", "\\,")
