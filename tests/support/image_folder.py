"""A usual PyTorch `Dataset`: it opens paths, and does not use dieselfs."""

import os
from pathlib import Path

from torch.utils.data import Dataset


class ImageFolder(Dataset[tuple[int, int]]):
    """Files in class folders; an item is (hash of the content, class)."""

    def __init__(self, root: str) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (str(path), label)
            for label, name in enumerate(self.classes)
            for path in sorted(Path(root, name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return content_key(file.read()), label


def content_key(content: bytes) -> int:
    return int.from_bytes(content[:6], "big") ^ len(content)
