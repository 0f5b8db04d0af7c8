"""The work of `dlcmd cache --list` and `--clear`: what the disk tier of this node keeps. This module removes files."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from dieselfs.disk.space import FORMAT_FOLDER, DiskSpace, KeptDataset, check_folder
from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, InvalidInput, NotFound, Unavailable
from dieselfs.units import count, format_time
from dieselfs_tools.cli.output import Output

_UNLIMITED_BYTES = 1 << 62
"""A limit, with which nothing is evicted."""


def list_disk(output: Output, disk: str | None) -> int:
    """Print the datasets of a tier, the least recently used first."""
    with closing(_opened(disk)) as space:
        kept = _kept(space)
        for one in kept:
            _show(output, one, " (in use)" if one.is_in_use else "")
        total = sum(one.size_bytes for one in kept)
        text = f"{count(len(kept), 'dataset')}, {output.size(total)} in {space.folder.parent}"
        return output.summary(text, {"disk": str(space.folder.parent), "datasets": len(kept), "bytes": total})


def clear_disk(output: Output, disk: str | None, dataset: str | None, is_dry_run: bool) -> int:
    """Remove the chunks of a dataset, by its name or its ID, or of all (None). Those in use are listed and stay.

    Raises NotFound if the tier has none of it.
    """
    with closing(_opened(disk)) as space:
        chosen = [one for one in _kept(space) if dataset is None or dataset in (one.name, one.dataset)]
        if dataset is not None and not chosen:
            raise NotFound(f"{space.folder.parent}: nothing of {dataset} is there; see dlcmd cache --list")
        cleared: list[KeptDataset] = []
        for one in chosen:
            try:
                is_cleared = not one.is_in_use and (is_dry_run or space.clear(one.dataset))
            except OSError as error:
                output.failure(_name(one), error.strerror or str(error))
                continue
            if not is_cleared:
                output.failure(_name(one), "it is in use: unmount it, or end the programs that read it")
            else:
                cleared.append(one)
                _show(output, one, "")
        return _cleared(output, cleared, len(chosen) - len(cleared), is_dry_run)


def _opened(disk: str | None) -> DiskSpace:
    """Raises InvalidInput without a disk, NotFound if it has no tier, AccessDenied if that is of others."""
    if not disk:
        raise InvalidInput("there is no disk tier: name its folder with --disk, or set DIESELFS_DISK")
    if not (Path(disk).expanduser() / FORMAT_FOLDER).exists():
        raise NotFound(f"--disk {disk}: there is no disk tier in it")
    with _usable(disk):
        return DiskSpace(check_folder(disk), _UNLIMITED_BYTES)


def _kept(space: DiskSpace) -> list[KeptDataset]:
    with _usable(space.folder.parent):
        return space.kept()


@contextmanager
def _usable(disk: str | Path) -> Iterator[None]:
    """Raises InvalidInput, or Unavailable, if the disk fails."""
    try:
        yield
    except BlockingIOError as error:
        raise Unavailable(f"--disk {disk}: {error}") from None
    except OSError as error:
        what = InvalidInput if error.errno in (errno.EACCES, errno.EPERM) else Unavailable
        raise what(f"--disk {disk}: {error.strerror}") from None


def _show(output: Output, one: KeptDataset, end: str) -> None:
    text = f"{_name(one)}  {count(one.chunks, 'chunk')} ({output.size(one.size_bytes)}), "
    text += f"last used {format_time(one.used_ns // 10**9)}{end}"
    fields = {
        "dataset": one.name,
        "dataset_id": one.dataset,
        "chunks": one.chunks,
        "bytes": one.size_bytes,
        "used_ns": one.used_ns,
        "is_in_use": one.is_in_use,
    }
    output.detail("dataset", text, fields)


def _name(one: KeptDataset) -> str:
    return f"dl://{one.name}" if one.name else one.dataset


def _cleared(output: Output, cleared: Sequence[KeptDataset], failed: int, is_dry_run: bool) -> int:
    total = sum(one.size_bytes for one in cleared)
    verb = "would remove" if is_dry_run else "removed"
    text = f"{verb} {count(len(cleared), 'dataset')} ({output.size(total)}) from the disk"
    fields = {"dry_run": is_dry_run, "datasets": len(cleared), "bytes": total, "failed": failed}
    return output.summary(text, fields, EXIT_PARTIAL if failed else EXIT_OK)
