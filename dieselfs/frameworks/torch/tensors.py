"""Tensors over the memory of chunks, without a copy. No I/O."""

import warnings
from collections.abc import Iterable

import torch


def as_tensors(views: Iterable[memoryview]) -> list[torch.Tensor]:
    """The bytes of files (`Dataset.views`) as uint8 tensors, shape (bytes,), without a copy.

    Never write to one in place (`tensor.add_(1)`): the process ends with a segmentation fault if the memory is shared,
    and reads wrong bytes later if it is not. What makes a new tensor is safe (`to`, `float`, `clone`). A tensor keeps
    its whole chunk in memory.
    """
    with warnings.catch_warnings():
        # PyTorch has no tensors that cannot be written, and warns of each once.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        return [
            torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)
            for view in views
        ]
