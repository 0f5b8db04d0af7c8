"""`dieselfs-mount`, `mount.dieselfs`, `umount.dieselfs` and `dieselfs-csi`: the command lines of the mount."""

import os
import sys
import traceback
from dataclasses import replace
from typing import Any, NoReturn

import click

from dieselfs import __version__
from dieselfs.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, DieselfsError, InvalidInput
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import Place
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions, parse_options

MOUNT_EXIT_USAGE = 1
MOUNT_EXIT_FAILED = 32
"""Exit codes that mount(8) expects of its helpers."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  dieselfs-mount imagenet /mnt/imagenet
  dieselfs-mount imagenet /mnt/imagenet --memory 16GiB --server tcp://storage-1:7070
  dieselfs-mount imagenet /mnt/imagenet --foreground
\b
Exit codes: 0 mounted (with --foreground: unmounted again), 1 usage or mount point, 3 no such dataset
or folder, 4 refused, 6 server not reachable.""",
)
@click.version_option(__version__, message="dieselfs-mount %(version)s")
@click.argument("dataset")
@click.argument("mountpoint")
@click.option("-o", "texts", multiple=True, metavar="OPTIONS", help="Mount options, joined by commas.")
@click.option(
    "--foreground",
    "-f",
    "is_foreground",
    is_flag=True,
    help="Stay in the foreground, and log to standard error.",
)
@settings_options(Place.MOUNT | Place.VERB)
def mount(
    dataset: str, mountpoint: str, texts: tuple[str, ...], is_foreground: bool, given: dict[str, Any]
) -> None:
    """Mount DATASET read-only on the folder MOUNTPOINT."""
    options = MountOptions()
    for text in texts:
        options = parse_options(text, options)
    options = replace(options, **given)
    if is_foreground:
        control.become_supervisor(dataset, mountpoint, options)
    else:
        control.mount(dataset, mountpoint, options)


def main() -> None:
    _run(mount, "dieselfs-mount", EXIT_USAGE)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("target")
@click.option("-o", "texts", multiple=True)
@click.option("-f", "is_fake", is_flag=True, help="Check, but do not mount.")
@click.option("-s", "is_sloppy", is_flag=True, help="Ignore unknown options.")
@click.option("-n", "no_mtab", is_flag=True, help="For mount(8); there is no mtab.")
@click.option("-v", "is_verbose", is_flag=True)
@click.option("-t", "filesystem", help="For mount(8); it is always dieselfs.")
def _mount_helper(
    source: str,
    target: str,
    texts: tuple[str, ...],
    is_fake: bool,
    is_sloppy: bool,
    is_verbose: bool,
    **_: object,
) -> None:
    """Mount the dataset SOURCE on TARGET: the helper of `mount -t dieselfs` and of lines of fstab."""
    if source.startswith("/"):
        name = os.path.basename(source)
        raise InvalidInput(
            f"{source} is a path, not a dataset: mount(8) turns a name into a path if such a file exists; "
            f"write dl://{name}"
        )
    options = MountOptions()
    for text in texts:
        options = parse_options(text, options, is_sloppy)
    if not is_fake:
        process = control.mount(source, target, options)
        if is_verbose:
            print(f"{source} mounted on {target}, served by process {process}")


def mount_helper() -> None:
    """`mount.dieselfs`; its exit codes are those of mount(8)."""
    _run(_mount_helper, "mount.dieselfs", MOUNT_EXIT_USAGE, MOUNT_EXIT_FAILED)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target")
@click.option("-l", "is_lazy", is_flag=True, help="Detach now; open files stay readable.")
@click.option("-f", "is_forced", is_flag=True, help="For umount(8); without effect.")
@click.option("-n", "no_mtab", is_flag=True, help="For umount(8); there is no mtab.")
@click.option("-r", "is_made_read_only", is_flag=True, help="For umount(8); it is read-only.")
@click.option("-v", "is_verbose", is_flag=True)
@click.option("-t", "filesystem", help="For umount(8).")
def _umount_helper(target: str, is_lazy: bool, is_verbose: bool, **_: object) -> None:
    """Unmount TARGET: the helper of umount(8)."""
    for line in control.unmount(target, is_lazy):
        print(line, file=sys.stderr)
    if is_verbose:
        print(f"{target} unmounted")


def umount_helper() -> None:
    """`umount.dieselfs`; its exit codes are those of umount(8)."""
    _run(_umount_helper, "umount.dieselfs", MOUNT_EXIT_USAGE, MOUNT_EXIT_FAILED)


def csi() -> None:
    """`dieselfs-csi`."""
    from dieselfs_client.csi.plugin import run

    _run(run, "dieselfs-csi", EXIT_USAGE)


def _run(command: click.Command, program: str, usage: int, failed: int | None = None) -> NoReturn:
    """Run a command line, and exit. `usage`, `failed`: exit codes; without the second, that of the error."""
    code, message = EXIT_OK, ""
    try:
        command(standalone_mode=False)
    except click.ClickException as error:
        code, message = usage, error.format_message()
    except DieselfsError as error:
        code, message = failed or error.exit_code, str(error)
    except (click.Abort, KeyboardInterrupt):
        code = failed or EXIT_INTERRUPTED
    except Exception:  # a bug has an exit code of its own
        traceback.print_exc()
        code = failed or EXIT_BUG
    if message:
        print(f"{program}: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
