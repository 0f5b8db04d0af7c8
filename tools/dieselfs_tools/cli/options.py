"""Options, arguments and help texts that verbs share. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, CHUNK_TARGET_BYTES
from dieselfs.names import (
    SCHEME,
    Location,
    check_dataset_name,
    is_file_path,
    is_location,
    parse_location,
    split_remote,
)
from dieselfs.process.system_limits import usable_processors
from dieselfs.settings.flags import attributes
from dieselfs.settings.table import BY_NAME, Place
from dieselfs.units import format_size, parse_duration, parse_rate, parse_size
from dieselfs_tools.cli.patterns import Patterns

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Function = Callable[..., Any]

HELP_COLUMNS = 100


_PLACES = ("location", "dataset", "mountable", "source")
"""The kinds of values that are at a site."""


class Parsed(click.ParamType[Any]):
    """A parameter with a parser of ours (raises InvalidInput). `kind`: the values that completion offers."""

    def __init__(self, name: str, parse: Callable[[str], object], kind: str = "") -> None:
        self.name = name
        self._parse = parse
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # a default
            return value
        try:
            return self._parse(self._settled(value, ctx))
        except InvalidInput as error:
            self.fail(str(error), param, ctx)

    def _settled(self, text: str, ctx: click.Context | None) -> str:
        """A location without its remote, which becomes the site of the session."""
        if self._kind not in _PLACES or ctx is None or is_file_path(text):
            return text
        if not is_location(text) and self._kind == "source":
            return text
        remote, text = split_remote(text)
        ctx.obj.settle(remote)
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        if not self._kind:
            return []
        from dieselfs_tools.cli.completion import offered

        return offered(self._kind, ctx, incomplete)


def dataset_name(text: str) -> str:
    """The dataset of `name` or `dl://name`. Raises InvalidInput if the text names something inside a dataset."""
    if not is_location(text):
        return check_dataset_name(text)
    location = parse_location(text)
    if location.path or location.tag:
        raise InvalidInput(f"{location} is not a whole dataset; name the dataset: {SCHEME}{location.dataset}")
    return location.dataset


def dataset_state(text: str) -> str:
    """`name` or `name@tag` of a dataset, with or without `dl://`. Raises InvalidInput as `dataset_name`."""
    location = parse_location(text if is_location(text) else SCHEME + text)
    if location.path:
        raise InvalidInput(f"{location} is inside a dataset; name the dataset: {SCHEME}{location.state}")
    return location.state


def dataset_folder(text: str) -> Location:
    """`name`, `name@tag`, or `dl://name[@tag]/folder`. Raises InvalidInput."""
    return parse_location(text if is_location(text) else f"{SCHEME}{dataset_state(text)}")


def location(text: str) -> Location:
    """`dl://dataset[@tag]/path`, with or without `dl://`. Raises InvalidInput."""
    return parse_location(text if is_location(text) else SCHEME + text)


def location_at_site(text: str) -> Location:
    """`dl://[remote:]dataset[@tag]/path`. Raises InvalidInput."""
    remote, place = split_remote(text)
    return replace(parse_location(place), remote=remote)


def changeable_location(text: str) -> Location:
    """`dl://[remote:]dataset/path`. Raises InvalidInput for a tag, whose content never changes."""
    location = location_at_site(text)
    if location.tag:
        raise InvalidInput(f"{location}: the content of a tag cannot be changed; leave out @{location.tag}")
    return location


LOCATION = Parsed("dl://DATASET/PATH", location, "location")
CHANGEABLE = Parsed("dl://DATASET/PATH", changeable_location, "location")
FOLDER = Parsed("dl://DATASET[@TAG][/FOLDER]", dataset_folder, "location")


def mountable(text: str) -> Location | Path:
    """A location, or the path of a saved snapshot. Raises InvalidInput."""
    return Path(text).expanduser().absolute() if is_file_path(text) else location(text)


MOUNTABLE = Parsed("dl://DATASET[@TAG][/FOLDER]", mountable, "mountable")
PART = Parsed("dl://DATASET[@TAG][/FOLDER]", location, "location")
STATE = Parsed("dl://DATASET[@TAG]", dataset_state, "dataset")
DATASET = Parsed("dl://DATASET", dataset_name, "dataset")
TAG = Parsed("TAG", str, "tag")
MOUNTPOINT = Parsed("FOLDER", str, "mountpoint")
SOURCE = Parsed("SOURCE", str, "source")
"""A file or folder here, or a location."""
PLACE = Parsed("SOURCE", str, "place")
"""The same, also at another site than the others."""
SIZE = Parsed("SIZE", parse_size)


def chunk_bytes(text: str) -> int:
    """Raises InvalidInput for a size that chunks cannot have."""
    size_bytes = parse_size(text)
    if not 0 < size_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"a chunk takes 1 byte to {format_size(CHUNK_PAYLOAD_BYTES_MAX)}")
    return size_bytes


CHUNK_SIZE = Parsed("SIZE", chunk_bytes)
RATE = Parsed("RATE", parse_rate)
DURATION = Parsed("DURATION", parse_duration)


def common_options() -> list[click.Parameter]:
    """Options of all verbs. They are set in the session, so they may precede or follow the verb."""

    def option(*names: str, of_output: str = "", **attributes: Any) -> click.Option:
        def keep(context: click.Context, param: click.Parameter, value: Any) -> None:
            if value:
                setattr(context.obj.output if of_output else context.obj, of_output or str(param.name), value)

        # Eager: an error in another option is then reported in the requested form.
        return click.Option(names, callback=keep, expose_value=False, is_eager=True, **attributes)

    def switch(*names: str, of_output: str = "", text: str) -> click.Option:
        return option(*names, of_output=of_output, is_flag=True, help=text)

    return [
        option("--server", **attributes(BY_NAME["server"], Place.VERB)),
        option("--key-file", **attributes(BY_NAME["key_file"], Place.VERB)),
        switch(
            "--json", of_output="is_json", text="Print one JSON object per line; the last is the summary."
        ),
        switch("--quiet", "-q", of_output="is_quiet", text="Print errors and results only."),
        switch(
            "--progress",
            of_output="is_progress",
            text="Print the progress on standard error also where that is no terminal.",
        ),
        switch("--bytes", of_output="is_exact", text="Print sizes as exact numbers of bytes."),
        switch("--debug", "is_debug", text="Print a traceback with an error."),
    ]


class VerbGroup(click.Group):
    """Verbs in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def examples(*lines: str) -> str:
    """The epilog of a help page."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def verb(name: str, *lines: str, group: click.Group | None = None) -> Callable[[Function], click.Command]:
    """Make a function, whose first argument is the session, a verb (of a group). `lines`: examples for the help."""

    def decorate(function: Function) -> click.Command:
        made = click.command(name, epilog=examples(*lines))(click.pass_obj(function))
        made.params += common_options()
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def verb_group(name: str, text: str, *lines: str) -> VerbGroup:
    """A verb that has verbs. `text`: its help; `lines`: examples."""
    return VerbGroup(name, params=common_options(), help=text, epilog=examples(*lines))


def flag(*names: str, text: str, **attributes: Any) -> Callable[[Function], Function]:
    return click.option(*names, is_flag=True, help=text, **attributes)


dry_run = flag("-n", "--dry-run", "is_dry_run", text="Only print the changes, without making them.")
recursive = flag("-r", "--recursive", "is_recursive", text="Folders with all their content.")
yes = flag("-y", "--yes", "is_confirmed", text="Do not ask for confirmation.")
human = flag("-h", "--human", expose_value=False, text="Print sizes as 4.0 MiB (the default).")


def _keep_where(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.obj.where = "" if value is None else BY_NAME["where"].read(value, "--where")


where = click.option(
    "--where",
    metavar="EXPRESSION",
    expose_value=False,
    callback=_keep_where,
    help="Only files for which this is true of their columns, as \"width >= 512 and lang = 'de'\".",
)


def records(formats: Sequence[str], template: str) -> Callable[[Function], Function]:
    """The options of verbs that read records of sources. `template`: the help of --name."""

    def decorate(function: Function) -> Function:
        chosen = click.option(
            "--format",
            "format_name",
            type=click.Choice(["auto", *formats]),
            default="auto",
            show_default=True,
            help="Format of the sources; auto looks at their first bytes, file takes each as it is.",
        )
        named = click.option("--name", "template", metavar="TEMPLATE", help=template)
        return chosen(named(_renaming(_by_row(function))))

    return decorate


_by_row = click.option(
    "--rows/--whole",
    "is_by_row",
    default=None,
    help="A file for each row of an array, or for the whole array. [rows, but rows below 16 bytes are refused]",
)
_renaming = flag(
    "--rename", "is_renaming", text="Replace unsafe names, and number duplicates, instead of refusing."
)


PROCESSES = min(usable_processors(), 16)
processes = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    default=PROCESSES,
    help="Number of processes. [the processors, at most 16]",
)


chunk_size = click.option(
    "--chunk-size",
    "chunk_bytes",
    type=CHUNK_SIZE,
    default=CHUNK_TARGET_BYTES,
    help=f"Size of a chunk. [{format_size(CHUNK_TARGET_BYTES)}]",
)


def _compression(text: str) -> object:
    from dieselfs.chunk.frames import Compression  # with numpy

    return Compression.parse(text)


compress = click.option(
    "--compress",
    "compression",
    type=Parsed("zstd[:LEVEL]", _compression),
    help="Compress what shrinks by 5% or more; LEVEL is 1 to 22. [off; level 3]",
)


dedup = flag(
    "--dedup",
    "is_sharing",
    text="Store no bytes that the dataset has already, in any file. One process reads.",
)

encrypt = flag(
    "--encrypt",
    "is_encrypted",
    text="Encrypt here, before anything is sent; makes the key of a new dataset. Later ones need no option.",
)


def replacing(function: Function) -> Function:
    """`--force` and `--no-clobber`."""
    force = flag("-f", "--force", "is_forced", text="Replace files that exist with other content.")
    keep = flag("--no-clobber", "is_kept", text="Keep files that exist with other content.")
    return force(keep(function))


def filters(function: Function) -> Function:
    """`--include`, `--exclude` and `--filter-from`; the function has one argument `patterns` for them."""

    @wraps(function)
    def with_patterns(
        *arguments: Any,
        includes: Sequence[str],
        excludes: Sequence[str],
        rules: Sequence[TextIO],
        **more: Any,
    ) -> Any:
        patterns = Patterns(excludes, includes, chain.from_iterable(rules))
        return function(*arguments, patterns=patterns, **more)

    include = click.option(
        "--include",
        "includes",
        multiple=True,
        metavar="PATTERN",
        help="Take only matching paths, as '*.jpg'.",
    )
    exclude = click.option(
        "--exclude", "excludes", multiple=True, metavar="PATTERN", help="Skip matching paths, as '*.tmp'."
    )
    filter_from = click.option(
        "--filter-from",
        "rules",
        multiple=True,
        type=click.File(errors="surrogateescape"),
        metavar="FILE",
        help="Lines '+ PATTERN' and '- PATTERN'; the first that matches decides. ['-': standard input]",
    )
    return include(exclude(filter_from(with_patterns)))
