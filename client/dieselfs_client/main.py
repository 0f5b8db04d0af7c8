"""`dieselfs-mount` and `mount.dieselfs`: the command lines of the mount."""

import sys
import traceback
from dataclasses import replace

import click

from dieselfs.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, DieselfsError
from dieselfs.sizes import parse_size
from dieselfs_client import control
from dieselfs_client.options import DRIVERS, POLICIES, MountOptions, parse_options

MOUNT_EXIT_USAGE = 1
MOUNT_EXIT_FAILED = 32
"""What mount(8) expects of its helpers."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  dieselfs-mount imagenet /mnt/imagenet
  dieselfs-mount imagenet /mnt/imagenet --memory 16GiB --server tcp://storage-1:7070
  dieselfs-mount imagenet /mnt/imagenet --foreground
\b
Exit codes: 0 mounted (with --foreground: unmounted again), 1 usage or mount point, 3 no such dataset,
4 refused, 6 server not reachable.""",
)
@click.argument("dataset")
@click.argument("mountpoint")
@click.option("-o", "texts", multiple=True, metavar="OPTIONS", help="Mount options, joined by commas.")
@click.option("--foreground", "-f", "is_foreground", is_flag=True, help="Stay, and log to standard error.")
@click.option(
    "--memory", metavar="SIZE", help="What may be held in memory. [1GiB, or what the system allows]"
)
@click.option("--policy", type=click.Choice(POLICIES), help="When to fetch what can be kept. [on-demand]")
@click.option("--driver", type=click.Choice(DRIVERS), help="How the kernel is spoken to. [kernel]")
@click.option("--allow-other", is_flag=True, help="Let other users see the mount, as the files' modes allow.")
@click.option("--server", metavar="ADDRESS", help="tcp://HOST:PORT or unix:PATH.")
@click.option("--key-file", metavar="FILE", help="Key of the user.")
@click.option("--generation", type=int, help="Which generation of the dataset. [the newest]")
@click.option("--log-file", metavar="FILE", help="Where the process in the background logs.")
def mount(
    dataset: str,
    mountpoint: str,
    texts: tuple[str, ...],
    is_foreground: bool,
    memory: str | None,
    **named: object,
) -> None:
    """Mount DATASET read-only on the folder MOUNTPOINT."""
    options = MountOptions()
    for text in texts:
        options = parse_options(text, options)
    given = {name: value for name, value in named.items() if value}
    if memory is not None:
        given["memory_bytes"] = parse_size(memory)
    options = replace(options, **given)  # type: ignore[arg-type]  # click gives each the type of its field
    if is_foreground:
        control.become_supervisor(dataset, mountpoint, options)
    else:
        control.mount(dataset, mountpoint, options)


def main() -> None:
    try:
        mount(standalone_mode=False)
    except click.ClickException as error:
        _end("dieselfs-mount", error.format_message(), EXIT_USAGE)
    except DieselfsError as error:
        _end("dieselfs-mount", str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT_BUG)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@click.argument("target")
@click.option("-o", "texts", multiple=True)
@click.option("-f", "is_fake", is_flag=True, help="Check, but do not mount.")
@click.option("-s", "is_sloppy", is_flag=True, help="Pass over options that are not known.")
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
    """What mount(8) calls for `mount -t dieselfs SOURCE TARGET` and for lines of fstab: SOURCE is the dataset."""
    options = MountOptions()
    for text in texts:
        options = parse_options(text, options, is_sloppy)
    if not is_fake:
        process = control.mount(source, target, options)
        if is_verbose:
            print(f"{source} mounted on {target}, served by process {process}")


def mount_helper() -> None:
    """`mount.dieselfs`; its exit codes are those of mount(8)."""
    try:
        _mount_helper(standalone_mode=False)
    except click.ClickException as error:
        _end("mount.dieselfs", error.format_message(), MOUNT_EXIT_USAGE)
    except DieselfsError as error:
        _end("mount.dieselfs", str(error), MOUNT_EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(MOUNT_EXIT_FAILED)
    sys.exit(EXIT_OK)


def _end(program: str, message: str, code: int) -> None:
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
