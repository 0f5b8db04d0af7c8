"""Changes of single settings in the configuration file of a user. Comments and other settings stay. This module writes
files.
"""

import re
from pathlib import Path

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.net.private_file import write_private_file
from dieselfs.settings.kinds import FILE, FOLDER
from dieselfs.settings.table import BY_NAME, REMOTES, Place, Setting, check_known, given_at, stable_path

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def client_setting(name: str) -> Setting:
    """The setting with this name, as in the file or as an option. Raises InvalidInput if no such file has it."""
    known = name.lower().replace("-", "_")
    check_known([known], Place.CONFIG, "the configuration file of a client")
    return BY_NAME[known]


def checked_text(row: Setting, text: str) -> str:
    """The text to store: paths are absolute, or begin with `~`. Raises InvalidInput for a value that cannot be."""
    if not text:
        raise InvalidInput(f"{row.name}: the value is empty; to remove it: dlcmd config unset {row.name}")
    row.read(text, row.name)
    return stable_path(text) if row.kind in (FILE, FOLDER) else text


def changed(text: str, name: str, value: str | None) -> str:
    """The TOML text with another value of one setting, or without it (None). Raises InvalidInput for a text that cannot
    be changed line by line.
    """
    import tomllib

    try:
        before = tomllib.loads(text)
        lines = text.splitlines(keepends=True)
        place = next((n for n, line in enumerate(lines) if _assigned(line) == name), None)
        if value is None:
            lines = [line for n, line in enumerate(lines) if n != place]
        elif place is None:
            if lines and not lines[-1].endswith("\n"):
                lines[-1] += "\n"
            # Behind a table, it would be a setting of that table.
            table = next((n for n, line in enumerate(lines) if line.startswith(f"[{REMOTES}")), len(lines))
            lines.insert(table, f"{name} = {_quoted(value)}\n")
        else:
            lines[place] = f"{name} = {_quoted(value)}{_comment(lines[place])}\n"
        after = "".join(lines)
        wanted = {key: old for key, old in before.items() if key != name} | (
            {} if value is None else {name: value}
        )
        if tomllib.loads(after) == wanted:
            return after
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"it is not valid TOML: {error}") from None
    raise InvalidInput(f"{name} cannot be changed line by line here; change it in an editor")


def write_setting(path: Path, name: str, value: str | None, is_dry_run: bool = False) -> bool:
    """Set or remove (None) one setting of a file, which is created if it does not exist, with mode 0600; atomic.
    Returns whether the file changes.

    Raises InvalidInput, and DieselfsError if it cannot be read or written.
    """
    real = path.resolve()  # a link stays
    try:
        text = real.read_text("utf-8") if real.exists() else ""
        new = changed(text, name, value)
        if new != text and not is_dry_run:
            real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private_file(real, new.encode())
        return new != text
    except (InvalidInput, UnicodeDecodeError) as error:
        raise InvalidInput(f"configuration file {path}: {error}") from None
    except OSError as error:
        raise DieselfsError(f"configuration file {path}: {error.strerror}") from None


def names() -> list[str]:
    """The names of all settings of a client's file."""
    return [row.name for row in given_at(Place.CONFIG)]


def _assigned(line: str) -> str:
    """The name of the setting in a line; empty without one."""
    match = re.match(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*=", line)
    return match[1].strip("\"'") if match else ""


def _comment(line: str) -> str:
    """The comment behind a value in one line."""
    match = re.fullmatch(r"""[^=]*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^#"']*?)(\s*\#.*)?\s*""", line)
    return (match[2] or "").rstrip() if match else ""


def _quoted(value: str) -> str:
    return '"' + "".join(_ESCAPES.get(one, one) for one in value) + '"'
