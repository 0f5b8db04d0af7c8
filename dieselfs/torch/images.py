"""Images from the bytes of files. No I/O."""

import io
from importlib.util import find_spec
from typing import Any

from dieselfs.errors import InvalidInput


def load_image(content: bytes) -> Any:
    """The image of a file, as by torchvision's default loader: Pillow, converted to RGB."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


def check_loader(loader: object) -> None:
    """Raises InvalidInput if the library of this loader is missing, before a worker needs it."""
    if loader is load_image and find_spec("PIL") is None:
        raise InvalidInput(
            "images need Pillow: pip install 'dieselfs[torch]', or give loader=bytes, or your own"
        )
