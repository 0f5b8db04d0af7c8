"""Packages of the extra `import`, which readers import when they are used. No I/O."""

from importlib import import_module
from typing import Any

from dieselfs.errors import InvalidInput

EXTRA = "import"


def required(package: str) -> Any:
    """The package. Raises InvalidInput with what to install."""
    try:
        return import_module(package)
    except ImportError as error:
        raise InvalidInput(
            f"this format needs the package {package.partition('.')[0]} ({error}): "
            f"in a checkout: pip install '.[{EXTRA}]'"
        ) from None
