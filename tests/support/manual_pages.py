"""The manual pages and completion scripts of the wheel, made from the commands and the guide.

`python -m tests.support.manual_pages` writes man/ and completions/ again.
"""

import re
from collections.abc import Iterator, Mapping

import click

from dieselfs_client.csi.plugin import run as csi
from dieselfs_client.main import mount
from dieselfs_server.main import serve
from dieselfs_tools.cli.command_line import VERBS, dlcmd
from dieselfs_tools.cli.completion import SCRIPTS
from dieselfs_tools.cli.session import Session
from tests.support.documents import DOCUMENTS, REPOSITORY

COMPLETIONS = {"bash": "dlcmd", "zsh": "_dlcmd", "fish": "dlcmd.fish"}
"""The name under which each shell looks for the script."""

HELP_NAMES = ["-h", "--help"]
"""As those of the commands. A command keeps the option that is made first, also for later contexts."""

_ESCAPES = {"\\": "\\e", "-": "\\-", "`": "\\(ga", "~": "\\(ti", "^": "\\(ha", "'": "\\(aq"}
_LITERAL = re.compile(r"`([^`]+)`|\[([^\]]+)\]\([^)]*\)|\*\*([^*]+)\*\*")


def files() -> dict[str, str]:
    """Path in the repository, and content, of all pages and scripts."""
    guide = guide_sections((DOCUMENTS / "guide" / "dlcmd.md").read_text(encoding="utf-8"))
    pages = {f"man/{name}.1": page(name, command, guide) for name, command in commands().items()}
    return pages | {f"completions/{name}": SCRIPTS[shell] for shell, name in COMPLETIONS.items()}


def commands() -> dict[str, click.Command]:
    """By the name of their page."""
    with click.Context(dlcmd, info_name="dlcmd", obj=Session()) as context:
        verbs = {f"dlcmd-{verb}": dlcmd.get_command(context, verb) for verb in VERBS}
    found = {name: command for name, command in verbs.items() if command is not None}
    return {"dlcmd": dlcmd, **found, "dieselfs-server": serve, "dieselfs-mount": mount, "dieselfs-csi": csi}


def guide_sections(guide: str) -> Mapping[str, str]:
    """The text of the guide about each verb: the section that has its name in the heading."""
    _, _, verbs = guide.partition("\n## Verbs\n")
    parts = re.split(r"^### (.*)\n", verbs, flags=re.MULTILINE)
    return {
        verb: text for names, text in zip(parts[1::2], parts[2::2], strict=True) for verb in names.split(", ")
    }


def page(name: str, command: click.Command, guide: Mapping[str, str]) -> str:
    """A page as roff."""
    return "\n".join(_lines(name, command, guide)) + "\n"


def _lines(name: str, command: click.Command, guide: Mapping[str, str]) -> Iterator[str]:
    words = name.replace("-", " ", 1) if name.startswith("dlcmd-") else name
    verb = name.removeprefix("dlcmd-")
    brief = VERBS.get(verb) or command.get_short_help_str(200)
    context = click.Context(command, info_name=words, obj=Session(), help_option_names=HELP_NAMES)
    yield f'.TH "{name.upper()}" "1" "" "dieselfs" "User Commands"'
    yield from (".SH NAME", f"{_plain(name)} \\- {_text(brief[0].lower() + brief[1:].rstrip('.'))}")
    yield from (".SH SYNOPSIS", f".B {_plain(words)}")
    yield " ".join(map(_plain, command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    yield from _help(command)
    if isinstance(command, click.Group):
        yield from _verbs(command, context, is_dlcmd=command is dlcmd)
    yield ".SH OPTIONS"
    yield from _options(command, context)
    if verb in guide:
        yield ".SH NOTES"
        yield from markdown(guide[verb])
    yield from _epilog(command)
    if name.startswith("dlcmd-"):
        yield from (
            ".SH SEE ALSO",
            ".BR dlcmd (1)",
            "lists the exit codes, files and variables that all verbs share.",
        )
    else:
        yield from (".SH FILES", ".TP", ".I ~/.config/dieselfs/config.toml")
        yield "Settings of the user; /etc/dieselfs/config.toml are those of the machine."
        yield from (".SH SEE ALSO", ".BR dlcmd (1), dieselfs\\-server (1), dieselfs\\-mount (1)")


def _help(command: click.Command) -> Iterator[str]:
    for paragraph in (command.help or "").split("\n\n"):
        yield from (".PP", _text(" ".join(paragraph.split())))


def _verbs(group: click.Group, context: click.Context, is_dlcmd: bool) -> Iterator[str]:
    yield ".SH COMMANDS"
    for name in group.list_commands(context):
        if is_dlcmd:
            yield from (".TP", f".BR dlcmd\\-{_plain(name)} (1)", _text(VERBS[name]))
            continue
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        yield f".SS {_plain(command.get_usage(below).removeprefix('Usage: '))}"
        yield from _help(command)
        common: set[str | None] = {parameter.name for parameter in group.params}
        yield from _options(command, below, common)
        yield from _epilog(command, is_nested=True)


def _options(
    command: click.Command, context: click.Context, left_out: "set[str | None] | None" = None
) -> Iterator[str]:
    for parameter in command.get_params(context):
        if parameter.name in (left_out or ()) or (left_out and parameter.name == "help"):
            continue
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None:
            yield from (".TP", f".B {_plain(record[0])}", _text(record[1]))


def _epilog(command: click.Command, is_nested: bool = False) -> Iterator[str]:
    """Examples and exit codes, which click prints as they stand."""
    for part in filter(None, (command.epilog or "").split("\b\n")):
        title, _, rest = part.strip("\n").partition(":")
        heading = {"Examples": "EXAMPLES", "Exit codes": "EXIT STATUS"}[title]
        yield f".SS {title}" if is_nested else f".SH {heading}"
        yield from _example(rest.strip("\n"))


def _example(text: str) -> Iterator[str]:
    yield ".PP"
    yield from (".nf", ".RS")
    yield from (_line(_plain(line.rstrip())) for line in text.splitlines() if line.strip())
    yield from (".RE", ".fi")


def markdown(text: str) -> Iterator[str]:
    """Paragraphs, lists, tables and fenced blocks of the guide as roff."""
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    for number, part in enumerate(re.split(r"^```\w*\n(.*?)^```\n", text, flags=re.MULTILINE | re.DOTALL)):
        if number % 2:
            yield from _example(part)
            continue
        for paragraph in filter(str.strip, re.split(r"\n\n|\n(?=\* )", part)):
            paragraph = paragraph.strip()
            if paragraph.startswith("|"):
                yield from _table(paragraph)
            elif paragraph.startswith("* "):
                yield from (".IP \\(bu 2", _text(" ".join(paragraph[2:].split())))
            else:
                yield from (".PP", _text(" ".join(paragraph.split())))


def _table(text: str) -> Iterator[str]:
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("| "))] for line in text.splitlines()]
    for first, *others in rows[2:]:  # behind the heading and its rule
        yield from (".TP", f".B {_text(first)}", _text("; ".join(filter(None, others))) or "\\&")


def _text(text: str) -> str:
    """One line of prose, with Markdown's code and emphasis as bold."""
    parts, end = [], 0
    for match in _LITERAL.finditer(text):
        code, link, strong = match.groups()
        inner = _plain(code or strong) if code or strong else _plain(link)
        parts += [_plain(text[end : match.start()]), inner if link else f"\\fB{inner}\\fP"]
        end = match.end()
    return _line("".join([*parts, _plain(text[end:])]))


def _plain(text: str) -> str:
    return "".join(_ESCAPES.get(one) or (one if one.isascii() else f"\\[u{ord(one):04X}]") for one in text)


def _line(text: str) -> str:
    """Not a request, also if it begins with a dot."""
    return f"\\&{text}" if text.startswith(".") else text


if __name__ == "__main__":
    for name, content in files().items():
        place = REPOSITORY / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(content, encoding="utf-8")
