"""The repository keeps its rules (`rules.py`). A failure lists every place, with what to do there."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.repository.rules import (
    LAYERS,
    MODULE_LINES_WARNED,
    circle_fault,
    danger_faults,
    effect_faults,
    layer_faults,
    length_faults,
    linked_files,
    mentioned_documents,
    module_length,
    sleep_faults,
    suppression_faults,
    swallowing_faults,
    two_way_faults,
)
from tests.support.documents import REPOSITORY

ROOT_BY_PACKAGE = {
    "dieselfs": REPOSITORY / "dieselfs",
    "dieselfs_server": REPOSITORY / "server" / "dieselfs_server",
    "dieselfs_client": REPOSITORY / "client" / "dieselfs_client",
    "dieselfs_tools": REPOSITORY / "tools" / "dieselfs_tools",
    "lab": REPOSITORY / "tools" / "lab",
    "bench": REPOSITORY / "tools" / "bench",
    "fuzz": REPOSITORY / "tools" / "fuzz",
}


def modules(*roots: Path) -> Iterator[Path]:
    for root in roots:
        yield from sorted(root.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def holds(faults_of: Callable[[str], Iterable[str]], paths: Iterable[Path]) -> None:
    """Fail with all faults of all these files at once."""
    faults = [
        f"{shown(path)}:{fault}" for path in paths for fault in faults_of(path.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n" + "\n".join(faults)


PRODUCT = list(ROOT_BY_PACKAGE.values())
TESTS = REPOSITORY / "tests"


def test_packages_import_only_what_lies_below_them() -> None:
    assert set(ROOT_BY_PACKAGE) == set(LAYERS)
    for package, root in ROOT_BY_PACKAGE.items():
        holds(partial(layer_faults, package=package), modules(root))


def test_packages_do_not_import_each_other() -> None:
    sources = {
        ".".join((package, *module.relative_to(root).with_suffix("").parts)): module.read_text(
            encoding="utf-8"
        )
        for package, root in ROOT_BY_PACKAGE.items()
        for module in modules(root)
    }
    modules_by_name = {name.removesuffix(".__init__"): text for name, text in sources.items()}
    faults = list(two_way_faults(modules_by_name))
    assert not faults, "\n" + "\n".join(faults)
    assert circle_fault(modules_by_name) is None


def test_modules_of_dieselfs_say_when_they_touch_the_world() -> None:
    holds(effect_faults, modules(REPOSITORY / "dieselfs"))


@pytest.mark.filterwarnings("default")
def test_functions_and_modules_are_short() -> None:
    holds(length_faults, modules(*PRODUCT, TESTS))
    for path in modules(*PRODUCT, TESTS):
        if finding := module_length(path.read_text(encoding="utf-8"), MODULE_LINES_WARNED):
            warnings.warn(f"{shown(path)}:{finding}", stacklevel=1)


def test_nothing_runs_code_from_outside() -> None:
    holds(danger_faults, modules(*PRODUCT))


def test_nobody_is_told_to_install_from_an_index() -> None:
    """dieselfs is on no index. A stranger who registers the name there could run code on its users' machines."""
    pages = (
        page for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.*") for page in REPOSITORY.glob(pattern)
    )
    told = re.compile(r"pip3? install (?:-\S+ )*['\"]?dieselfs\b")
    found = [shown(page) for page in (*pages, *modules(*PRODUCT)) if told.search(page.read_text("utf-8"))]
    assert not found, f"write pip install '.[...]', in a checkout: {found}"


def test_catching_every_error_has_a_reason() -> None:
    holds(swallowing_faults, modules(*PRODUCT))


def test_tests_do_not_sleep_and_hope() -> None:
    holds(sleep_faults, modules(TESTS))


def test_suppressions_have_a_reason() -> None:
    holds(suppression_faults, modules(*PRODUCT, TESTS))


def test_modules_say_what_they_are() -> None:
    def faults(source: str) -> Iterator[str]:
        if source.strip() and not source.startswith('"""'):
            yield "1: say in a docstring what the module is"

    holds(faults, modules(*PRODUCT, TESTS / "support", TESTS / "conformance"))


def test_documents_that_are_named_exist() -> None:
    texts = [
        *modules(*PRODUCT, TESTS),
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        REPOSITORY / "Makefile",
    ]
    own_examples = TESTS / "repository" / "test_rules.py"
    gone = [
        f"{shown(path)}:{line}: there is no {name}"
        for path in texts
        if path != own_examples
        for line, name in mentioned_documents(path.read_text(encoding="utf-8"))
        if not (REPOSITORY / name).exists()
    ]
    assert not gone, "\n" + "\n".join(gone)


def test_links_lead_somewhere() -> None:
    dead = [
        f"{shown(path)}:{line}: there is no {name}"
        for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
        for line, name in linked_files(path.read_text(encoding="utf-8"))
        if not (path.parent / name).exists()
    ]
    assert not dead, "\n" + "\n".join(dead)


def test_tests_that_documents_name_exist() -> None:
    """Those of attacks, above all: a row whose test was renamed says nothing any more."""
    gone = []
    for page in REPOSITORY.glob("docs/**/*.md"):
        for path, function in re.findall(
            r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", page.read_text("utf-8")
        ):
            source = (TESTS / path).read_text("utf-8") if (TESTS / path).exists() else ""
            if not source or (
                function and not re.search(rf"^ *(async )?def {function}\(", source, re.MULTILINE)
            ):
                gone.append(f"{shown(page)}: there is no tests/{path}::{function}")
    assert not gone, "\n" + "\n".join(gone)


def test_modules_that_the_internals_name_exist() -> None:
    modules_there = [shown(path) for path in modules(*PRODUCT, TESTS)]
    gone = [
        f"{shown(page)}:{line}: there is no {name}"
        for page in REPOSITORY.glob("docs/internals/*.md")
        for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for name in re.findall(r"[\w/]*\w\.py\b", text)
        if not any(f"/{module}".endswith(f"/{name}") for module in modules_there)
    ]
    assert not gone, "\n" + "\n".join(gone)
