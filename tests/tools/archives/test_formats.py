"""The table of formats: modules, options, packages and documents agree with it."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from click import Choice, Context, Group

from dieselfs.errors import InvalidInput
from dieselfs_tools.archives.formats import (
    ATTACHED,
    AUTO,
    EXPORTED,
    EXTRA,
    FORMATS,
    IMPORTED,
    format_of_target,
)
from dieselfs_tools.cli.command_line import dlcmd
from tests.support.importing import read_all

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_what_its_row_says(name: str) -> None:
    found = FORMATS[name]
    if found.package:
        pytest.importorskip(found.package, reason=f"the extra '{EXTRA}' is not installed")
    assert found.reader or found.writer
    if found.reader:
        assert callable(found.read())
    if found.writer:
        assert callable(found.export())
    assert found.reader or found.name not in ATTACHED


@pytest.mark.parametrize(
    ("verb", "names"), [("import", IMPORTED), ("attach", ATTACHED), ("export", EXPORTED)]
)
def test_options_name_the_formats(verb: str, names: tuple[str, ...]) -> None:
    assert isinstance(dlcmd, Group)
    command = dlcmd.get_command(Context(dlcmd), verb)
    assert command is not None
    (option,) = (one for one in command.params if one.name == "format_name")
    assert isinstance(option.type, Choice) and tuple(option.type.choices) == (AUTO, *names)


def test_the_packages_are_in_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extra = {re.split(r"[><=]", line)[0] for line in extras[EXTRA]}
    providers = packages_distributions()
    for one in FORMATS.values():
        distributions = providers.get(one.package)
        if distributions:
            assert {name.lower().replace("_", "-") for name in distributions} & extra, one.name


@pytest.mark.parametrize(
    ("page", "names"), [("formats.md", {*IMPORTED, *ATTACHED}), ("dlcmd.md", set(EXPORTED))]
)
def test_documents_name_the_formats(page: str, names: set[str]) -> None:
    text = (ROOT / "docs/guide" / page).read_text()
    for name in names:
        assert FORMATS[name].title in text or f"`{name}`" in text, name


def test_an_unknown_format_is_answered_with_all(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text " * 200)
    with pytest.raises(InvalidInput, match=re.escape("|".join(IMPORTED))):
        read_all(tmp_path / "text")
    with pytest.raises(InvalidInput, match=re.escape("|".join(EXPORTED))):
        format_of_target("data.img")


def test_a_target_has_the_format_of_its_suffix() -> None:
    assert [format_of_target(name).name for name in ("a.tar", "a.lmdb", "a.erofs", "-")] == [
        "tar",
        "lmdb",
        "erofs",
        "tar",
    ]
    assert format_of_target("a.tar", "folder").name == "folder"
