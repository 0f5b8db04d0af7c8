"""For all tests: hypothesis makes the same examples in every run, and a machine that stalls fails none of them."""

import gc
import os
import sys

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# Hundreds of processes start in the tests. Each would compile all modules where the environment forbids to keep them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Collections of garbage need not look again at all modules and tests, which takes 0.3 s each time."""
    gc.collect()
    gc.freeze()
