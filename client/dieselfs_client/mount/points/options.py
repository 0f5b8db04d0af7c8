"""The options of a mount, and the text of `-o`: `name`, `name=value`, joined by commas. No I/O."""

import re
from dataclasses import dataclass, replace

from dieselfs.errors import InvalidInput, MountError
from dieselfs.limits import READ_TIMEOUT_S, WRITE_EVERY_S
from dieselfs.names import Location
from dieselfs.settings.kinds import SWITCH
from dieselfs.settings.table import AUTO, KERNEL, OVERLAY, CacheOptions, Place, given_at
from dieselfs_client.mount.points.view_choice import Facts, obstacle

PROCESSORS_PER_WORKER = 4
"""By default the other processors are for the readers, and for the pushes of what workers fetch."""
WORKERS_MAX = 16
"""With 0.65 s of a processor for each GB, these take 25 GB/s."""


@dataclass(frozen=True, slots=True)
class MountOptions(CacheOptions):
    """The options of a mount; the table of settings (`dieselfs.settings.table`) explains them.

    - `follow_s`: 0: stay at one generation
    - `workers`: 0: by the processors
    - `uid`, `gid`: None for the user who mounts
    - `write_folder`: None for one in the user's state folder
    - `log_file`: None for the one in the user's state folder
    """

    driver: str = KERNEL
    view: str = AUTO
    workers: int = 0
    allow_other: bool = False
    allow_plans: bool = False
    scores: bool = False
    noexec: bool = False
    follow_s: float = 0.0
    write: bool = False
    write_every_s: float = WRITE_EVERY_S
    write_folder: str | None = None
    uid: int | None = None
    gid: int | None = None
    timeout_s: float = READ_TIMEOUT_S
    log_file: str | None = None

    def check(self) -> None:
        CacheOptions.check(self)
        if self.workers > WORKERS_MAX:
            raise InvalidInput(
                f"workers: {self.workers}: a mount has 1 to {WORKERS_MAX}; give a smaller number"
            )
        if not self.write and (self.write_folder or self.write_every_s != WRITE_EVERY_S):
            raise InvalidInput(
                "--write-folder and --write-every belong to a mount that can be written: give --write"
            )


def workers_for(options: MountOptions, processors: int) -> int:
    """How many workers a mount has on a machine with this number of processors."""
    return options.workers or min(max(processors // PROCESSORS_PER_WORKER, 1), WORKERS_MAX)


def check_following(options: MountOptions, dataset: Location | None, is_kept: bool, facts: Facts) -> None:
    """Raise InvalidInput, or MountError, if a mount cannot follow its dataset, which is None for a saved snapshot.

    `is_kept`: the process that starts the mount must stay its supervisor. `facts`: of this process.
    """
    if not options.follow_s:
        return
    fixed = {
        "a saved snapshot has one generation": dataset is None,
        "a tag has one generation": dataset is not None and bool(dataset.tag),
        "--generation names one generation": bool(options.generation),
        "the nodes of a job read one generation": options.job is not None,
        "a mount in the foreground, or for one command, stays at one generation": is_kept,
    }
    for reason in (reason for reason, is_so in fixed.items() if is_so):
        raise InvalidInput(f"{reason}: leave out --follow")
    if not facts.may_mount_beneath:
        raise MountError(
            "--follow needs root, and Linux 6.5: else the kernel cannot put one mount in the place of another; "
            "mount without --follow, and mount again to read a new generation"
        )


def check_writing(options: MountOptions, dataset: Location | None, facts: Facts) -> None:
    """Raise InvalidInput, or MountError, if a mount cannot be written. `dataset`, `facts`: as for `check_following`."""
    if not options.write:
        return
    unfit = {
        "a saved snapshot cannot be written": dataset is None,
        "a tag cannot be written": dataset is not None and bool(dataset.tag),
        "only the newest generation can be written: leave out --generation": bool(options.generation),
        "a selection cannot be written: leave out --where": bool(options.where),
        "a mount that can be written stays at one generation: leave out --follow": bool(options.follow_s),
        "the nodes of a job read one generation: leave out --job": options.job is not None,
        f"--write needs the view {OVERLAY}: leave out --view": options.view not in (AUTO, OVERLAY),
        "--write-folder: the path cannot have a comma, a colon or a backslash": bool(
            _SEPARATORS.intersection(options.write_folder or "")
        ),
    }
    for reason in (reason for reason, is_so in unfit.items() if is_so):
        raise InvalidInput(reason)
    if (missing := obstacle(OVERLAY, facts)) is not None:
        raise MountError(
            f"{missing}; a mount of your own for one command: dlcmd run --write DATASET -- COMMAND"
        )


_SEPARATORS = frozenset(",:\\")
"""In the options of overlayfs."""
_ROWS = {row.name: row for row in given_at(Place.OPTION)}
_IGNORED = {
    # Options that are always in force, options without effect on a frozen mount, and options of mount(8) and systemd.
    *("ro", "rw", "nosuid", "nodev", "exec", "noatime", "relatime", "async", "defaults"),
    *("auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev"),
}
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "user=")
_COMMA = re.compile(r"(?<!\\),")


def parse_options(text: str, base: MountOptions, is_sloppy: bool = False) -> MountOptions:
    """`base` with the options of one `-o`. Raises InvalidInput; with `is_sloppy`, unknown options are ignored."""
    changes: dict[str, object] = {}
    for option in filter(None, _COMMA.split(text)):
        name, is_assigned, value = option.replace("\\,", ",").partition("=")
        row = _ROWS.get(name)
        if row is not None and (row.kind is SWITCH) != bool(is_assigned):
            changes[row.field] = row.read(value, f"mount option {name}={value}") if is_assigned else True
        elif option not in _IGNORED and not option.startswith(_IGNORED_PREFIXES) and not is_sloppy:
            known = ", ".join(name if row.kind is SWITCH else f"{name}=..." for name, row in _ROWS.items())
            raise InvalidInput(f"mount option {option!r} is not known; known options: {known}")
    return replace(base, **changes)  # type: ignore[arg-type]  # each value comes from the parser of its field


def format_options(options: MountOptions) -> str:
    """The text of `-o` for these options."""
    return ",".join(
        row.name if row.kind is SWITCH else f"{row.name}={value}".replace(",", "\\,")
        for row, value in options.stated()
    )
