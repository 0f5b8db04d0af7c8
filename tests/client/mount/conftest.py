"""Both drivers and all views, for the tests of what programs see."""

from importlib.util import find_spec

import pytest

from dieselfs.settings.table import KERNEL, PYFUSE3
from dieselfs_client.mount.points.options import MountOptions

needs_pyfuse3 = pytest.mark.skipif(
    find_spec("pyfuse3") is None, reason="needs pyfuse3 (pip install '.[pyfuse3]')"
)


@pytest.fixture(scope="session", params=[KERNEL, pytest.param(PYFUSE3, marks=needs_pyfuse3)])
def driver(request: pytest.FixtureRequest) -> str:
    """One driver, and the other."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def options(driver: str, view: str) -> MountOptions:
    """The options of a mount with each driver and each view."""
    return MountOptions(driver=driver, view=view)
