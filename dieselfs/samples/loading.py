"""Makes samples of the bytes of files. No I/O."""

import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from dieselfs.errors import InvalidInput

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The extensions that torchvision's `ImageFolder` treats as images."""

Loader = Callable[[Any], Any]
"""Takes the bytes of a file; a read-only memoryview if it is in `VIEW_LOADERS`, or the dataset has `copy=False`."""
Transform = Callable[[Any], Any]


def load_image(content: bytes | memoryview) -> Any:
    """The image of a file, as by torchvision's default loader: Pillow, converted to RGB."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


def check_loader(loader: object) -> None:
    """Raises InvalidInput if the library of this loader is missing, before a worker needs it."""
    if loader is load_image and find_spec("PIL") is None:
        raise InvalidInput("images need Pillow: pip install pillow, or give loader=bytes, or your own")


def load_array(content: bytes | memoryview) -> Any:
    """The array of a `.npy` file. Raises ValueError if it has Python objects."""
    return np.load(io.BytesIO(content), allow_pickle=False)


VIEW_LOADERS = (load_image, load_array)

LOADERS: dict[str, Loader] = {
    **dict.fromkeys(IMAGE_EXTENSIONS, load_image),
    ".json": json.loads,
    ".txt": bytes.decode,
    ".cls": int,
    ".npy": load_array,
}
"""The loaders of `PairDataset` by extension, as WebDataset decodes them; other files are bytes."""


def loader_of(extension: str) -> Loader:
    """The loader of a file by the last part of its extension: that of `.mask.png` is the one of `.png`."""
    return LOADERS.get("." + extension.lower().rpartition(".")[2], bytes)
