"""`python -m dieselfs.settings` prints the table of settings as Markdown, for docs/reference/settings.md. No I/O but
the output.
"""

from collections.abc import Mapping

from dieselfs.settings.table import SETTINGS, Place, Setting

_COMMAND_LINES = {
    Place.VERB: "all of `dlcmd`, `dieselfs-mount`",
    Place.MOUNT: "`dlcmd mount`, `dieselfs-mount`",
    Place.CACHE: "`dlcmd cache`",
    Place.SERVER: "`dieselfs-server`",
}
_FILES = {Place.CONFIG: "`config.toml`", Place.SERVER: "`server.toml`", Place.ETCD: "etcd"}


def reference() -> str:
    """The table as Markdown."""

    def shown(row: Setting, texts: Mapping[Place, str]) -> str:
        return ", ".join(text for place, text in texts.items() if row.places & place)

    lines = ["| setting | value | command line | `-o` | environment | file | meaning | default |"]
    lines.append("| --- " * 8 + "|")
    for row in SETTINGS:
        cells = (
            f"`{row.name}`",
            row.kind.metavar.replace("|", ", "),
            shown(row, _COMMAND_LINES),
            shown(row, {Place.OPTION: "yes"}),
            shown(row, {Place.ENVIRONMENT: f"`{row.variable}`"}),
            shown(row, _FILES),
            row.help.removesuffix("."),
            row.default,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
