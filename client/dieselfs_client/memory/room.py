"""The memory that limits of the system (`dieselfs.process.system_limits`) leave to a mount. No I/O."""

from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB, MOUNT_MEMORY_BYTES, MOUNT_MEMORY_BYTES_MIN

PROGRAM_BYTES = 160 * MIB
"""The daemon's program, its libraries and its supervisor."""
PAGE_COPIES = 3
"""The page cache may have a byte in the file of its chunk, in an image, and in the file that programs read there."""
LARGE_FILE_EXTENTS = 2
"""With fewer extents for each chunk, most bytes of a dataset are in files that are larger than a chunk."""


def shrunk(memory_bytes: int, room: int | None, why: str) -> str:
    """What the log says if a mount gets less memory than it has by default; empty if it does not."""
    least = granted(memory_bytes, room, why)
    if memory_bytes or least == MOUNT_MEMORY_BYTES:
        return ""
    default = MOUNT_MEMORY_BYTES // MIB
    return f"{why} allows {(room or 0) // MIB} MiB: {least // MIB} MiB are used for data, not {default} MiB"


def granted(memory_bytes: int, room: int | None, why: str = "") -> int:
    """The memory of a mount: `memory_bytes`, or for 0 the default, or less if the `room` is smaller.

    `room`: the bytes that the limits of the system allow, None without a limit; `why`: the name of the limit. Raises
    InvalidInput if `memory_bytes` is more, or the limit is too small for any mount.
    """
    left = None if room is None else room - PROGRAM_BYTES
    if left is not None and left < MOUNT_MEMORY_BYTES_MIN:
        least = (PROGRAM_BYTES + MOUNT_MEMORY_BYTES_MIN) // MIB
        raise InvalidInput(
            f"{why} allows {max(room or 0, 0) // MIB} MiB of memory, a mount needs {least} MiB at least: "
            "raise that limit"
        )
    if memory_bytes == 0:
        return MOUNT_MEMORY_BYTES if left is None else min(MOUNT_MEMORY_BYTES, left)
    if left is not None and memory_bytes > left:
        raise InvalidInput(
            f"--memory {memory_bytes // MIB}MiB and the program ({PROGRAM_BYTES // MIB} MiB) are more than "
            f"{why} allows ({(room or 0) // MIB} MiB); give at most --memory {left // MIB}MiB"
        )
    return memory_bytes


def crowds_page_cache(total_bytes: int, extents: int, chunks: int, room: int | None) -> bool:
    """Whether `room` is too small for all copies of a dataset of large files: then local files of chunks should leave
    the page cache. Those of small files stay, because plans fetch them again in each epoch.
    """
    return room is not None and extents < LARGE_FILE_EXTENTS * chunks and PAGE_COPIES * total_bytes > room
