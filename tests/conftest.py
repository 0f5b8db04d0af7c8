"""For all tests: hypothesis makes the same examples in every run, and a machine that stalls fails none of them."""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bench.harness.forms import KEEP_CACHES
from tests.support import reaper, warm
from tests.support.processes import mark_processes

settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# Hundreds of processes start in the tests. Each would compile all modules where the environment forbids to keep them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ[KEEP_CACHES] = "1"

# The programs of dieselfs start without importing anything.
if not os.environ.get("EXEC"):
    warm.use()

_ORDER = ("cluster", "end_to_end", "simulation", "repository", "client", "server", "tools", "dieselfs")
"""Folders of tests. The longest files come first, so that all workers end at about the same time."""


# Until all tests are imported, hardly anything becomes garbage, and each collection looks at more.
gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        mark_processes(items)
    tests = Path(__file__).parent
    items.sort(key=lambda item: _ORDER.index(item.path.relative_to(tests).parts[0]))


def pytest_collection_finish() -> None:
    """Collections of garbage need not look again at all modules and tests, which takes 0.3 s each time."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def reaped(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the tests start ends with them, also if they are killed."""
    reaper.start(tmp_path_factory.getbasetemp())
