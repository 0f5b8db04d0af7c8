"""Shell completion: verbs, options, datasets, their paths and tags, mount points.

This module sends requests to the server, for TIMEOUT_S at most. After a failure it prints nothing.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, ShellComplete

from dieselfs.errors import EXIT_OK, NotFound
from dieselfs.limits import LISTING_ENTRIES_MAX
from dieselfs.names import SCHEME, is_location, split_path
from dieselfs.records import Op
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.rpc.client import ServerClient

LINE_VARIABLE = "_DLCMD_COMPLETE"
"""The command line up to the cursor. The argument is the part of the last word that the shell replaces."""

TIMEOUT_S = 2.0

SCRIPTS = {
    "bash": """\
_dlcmd() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            file) compopt -o default 2>/dev/null ;;
            dir) compopt -o dirnames 2>/dev/null ;;
            *)  [[ $line == */ ]] && compopt -o nospace 2>/dev/null
                printf -v line %q "$line"
                COMPREPLY+=("$line") ;;
        esac
    done < <(_DLCMD_COMPLETE="${COMP_LINE:0:COMP_POINT}" dlcmd "$2" 2>/dev/null)
}
complete -F _dlcmd dlcmd
""",
    "zsh": """\
#compdef dlcmd
_dlcmd() {
    local line
    for line in ${(f)"$(_DLCMD_COMPLETE="${(j: :)words[1,CURRENT]}" dlcmd "$PREFIX" 2>/dev/null)"}; do
        case $line in
            file) _files ;;
            dir) _files -/ ;;
            */) compadd -U -S '' -- "$line" ;;
            *) compadd -U -- "$line" ;;
        esac
    done
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _dlcmd "$@"; else compdef _dlcmd dlcmd; fi
""",
    "fish": """\
function __dlcmd
    for line in (env _DLCMD_COMPLETE=(commandline -cp | string collect) dlcmd (commandline -ct) 2>/dev/null)
        switch $line
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c dlcmd -f -a '(__dlcmd)'
""",
}


def complete(command: click.Command, session: Session) -> int:
    """Print the words that fit at the cursor, one per line. `file`, `dir`: the shell completes files or folders."""
    line, word = os.environ.pop(LINE_VARIABLE), "".join(sys.argv[1:2])
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    last = "" if line[-1:].isspace() or not words else words.pop()
    head = last.removesuffix(word)  # bash splits words at colons, and replaces the last part only
    with suppress(Exception):
        shell = ShellComplete(command, {"obj": session}, "dlcmd", LINE_VARIABLE)
        for item in shell.get_completions(words[1:], last):
            print(item.value.removeprefix(head) if item.type == "plain" else item.type)
    session.close()
    return EXIT_OK


def offered(kind: str, context: click.Context, incomplete: str) -> list[CompletionItem]:
    """The values of an argument of this `kind` that begin with `incomplete`."""
    if kind in ("source", "place") and not is_location(incomplete):
        return [CompletionItem(incomplete, type="file")]
    signal.signal(signal.SIGALRM, lambda *_: os._exit(EXIT_OK))
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    try:
        return [CompletionItem(value) for value in _KINDS[kind](context, incomplete)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _client(context: click.Context) -> "ServerClient":
    """The server. Raises NotFound if a request would create a home for embedded data."""
    settings = context.obj.settings()
    if settings.server is None and not Path(settings.home).exists():
        raise NotFound("nothing is stored on this machine")
    client: ServerClient = context.obj.client
    return client


def _datasets(context: click.Context, incomplete: str, end: str = "") -> Iterable[str]:
    typed = incomplete.removeprefix(SCHEME)
    if "/" in typed:
        return []
    dataset, at, _ = typed.partition("@")
    if at:
        names = [f"{dataset}@{tag.name}" for tag in _client(context).tags(dataset)]
    else:
        names = [one.name for one in _client(context).datasets()]
    return [incomplete.removesuffix(typed) + name + end for name in names if name.startswith(typed)]


def _locations(context: click.Context, incomplete: str) -> Iterable[str]:
    if not is_location(incomplete):
        incomplete = SCHEME if SCHEME.startswith(incomplete) else SCHEME + incomplete
    dataset, slash, path = incomplete.removeprefix(SCHEME).partition("/")
    if not slash:
        return _datasets(context, incomplete, "/")
    if "@" in dataset:  # the content of a tag needs its whole snapshot
        return []
    folder, begin = split_path(os.fsencode(path))
    after = begin[:-1] + bytes([begin[-1] - 1, 0xFF]) if begin else b""
    head = f"{SCHEME}{dataset}/" + (os.fsdecode(folder) + "/" if folder else "")
    return [
        head + os.fsdecode(entry.name) + ("/" if entry.op == Op.DIRECTORY else "")
        for entry in _client(context).list_folder(dataset, folder, after, LISTING_ENTRIES_MAX)
        if entry.name.startswith(begin)
    ]


def _mountables(context: click.Context, incomplete: str) -> Iterable[str]:
    """A dataset as it is typed; folders of it once there is a slash."""
    is_dataset = "/" not in incomplete.removeprefix(SCHEME)
    return _datasets(context, incomplete) if is_dataset else _locations(context, incomplete)


def _tags(context: click.Context, incomplete: str) -> Iterable[str]:
    dataset = context.params.get("dataset")
    tags = _client(context).tags(dataset) if dataset else []
    return [tag.name for tag in tags if tag.name.startswith(incomplete)]


def _mountpoints(_: click.Context, incomplete: str) -> Iterable[str]:
    from dieselfs_client.mount.points.mount_table import dieselfs_mounts

    return [mount.mountpoint for mount in dieselfs_mounts() if mount.mountpoint.startswith(incomplete)]


def _settings(_: click.Context, incomplete: str) -> Iterable[str]:
    from dieselfs.settings.file import names

    return [name for name in names() if name.startswith(incomplete)]


_KINDS: dict[str, Callable[[click.Context, str], Iterable[str]]] = {
    "dataset": _datasets,
    "location": _locations,
    "mountable": _mountables,
    "source": _locations,
    "place": _locations,
    "tag": _tags,
    "mountpoint": _mountpoints,
    "setting": _settings,
}
