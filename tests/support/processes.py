"""Which tests start processes: those whose code, fixtures or helpers name something that does.

The code is read, not run. What the library starts by itself (workers of a DataLoader, say) is not seen in it: such a
test says so with `@pytest.mark.processes`.
"""

from collections.abc import Iterator
from functools import cache
from inspect import isclass, isfunction, ismodule, unwrap
from types import CodeType
from typing import Any

import pytest

STARTERS = frozenset(
    {
        *("subprocess", "multiprocessing", "fork", "posix_spawn", "run_process", "open_process"),
        *("num_workers", "pool_workers", "SpawnedProcess", "Keeper", "EmbeddedServer", "connect_embedded"),
        *("getfixturevalue", "popen", "WarmPopen"),
    }
)
"""Names of modules, functions and arguments."""
_STARTING_MODULES = (
    *("subprocess", "multiprocessing", "dieselfs.process.launch", "dieselfs.process.embedded_server"),
    *("dieselfs.process.keeper", "dieselfs.cluster.daemon", "dieselfs_client.daemon.control"),
    *("dieselfs_client.mount.kernel.page_cache", "bench.harness.readers", "bench.papers.lmdbio"),
)
_OWN = ("tests.", "lab", "bench", "release")
"""Packages whose functions are followed."""


def mark_processes(items: list[pytest.Item]) -> None:
    """Give the marker `processes` to each test that starts one."""
    for item in items:
        is_end_to_end = item.path.parent.name == "end_to_end"
        if is_end_to_end or (isinstance(item, pytest.Function) and any(map(_starts, _functions(item)))):
            item.add_marker("processes")


def _functions(item: pytest.Function) -> Iterator[Any]:
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (definition.func for definition in definitions)


@cache
def _starts(function: Any) -> bool:
    """Whether a function, or one that it names, starts a process."""
    return _reaches(function, set())


def _reaches(given: Any, seen: set[int]) -> bool:
    if id(given) in seen:
        return False
    seen.add(id(given))
    if isclass(given):
        return any(_reaches(member, seen) for member in vars(given).values())
    function = unwrap(getattr(given, "__func__", getattr(given, "func", given)))
    if isinstance(function, property):
        return any(_reaches(each, seen) for each in (function.fget, function.fset) if each)
    if not isfunction(function):
        return False
    names = {*_names(function.__code__)}
    if names & STARTERS:
        return True
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    closed = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return any(_is_starter(each, seen) for each in (*used, *closed))


def _is_starter(value: Any, seen: set[int]) -> bool:
    module = value.__name__ if ismodule(value) else getattr(value, "__module__", None)
    if not isinstance(module, str):
        return False
    if module.startswith(_STARTING_MODULES) and (ismodule(value) or isfunction(value) or isclass(value)):
        return True
    return not ismodule(value) and module.startswith(_OWN) and _reaches(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, tuple):
            yield from filter(lambda one: isinstance(one, str), constant)  # names of arguments


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where it is empty
    except ValueError:
        return False
    return True
