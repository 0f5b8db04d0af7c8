"""Views of files as tensors: the same memory, also without files, and without warnings."""

import os
import warnings
from pathlib import Path

import numpy as np
import torch

from dieselfs.dataset import connect
from dieselfs.frameworks.torch.tensors import as_tensors


def test_tensors_are_the_bytes_of_the_files_without_a_copy(tmp_path: Path) -> None:
    contents = [os.urandom(5000), b"", b"x"]
    with connect("data", home=tmp_path, create=True) as data:
        for number, content in enumerate(contents):
            data.put(f"{number}", content)
        data.flush()
        for _ in range(2):  # fetched, and from memory
            views = data.views(["0", "1", "2"])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                tensors = as_tensors(views)
        assert [bytes(tensor.numpy()) for tensor in tensors] == contents
        assert {tensor.dtype for tensor in tensors} == {torch.uint8}
        first = torch.frombuffer(data.views(["0"])[0], dtype=torch.uint8)
        assert tensors[0].data_ptr() == first.data_ptr()
        assert np.from_dlpack(tensors[0]).ctypes.data == first.data_ptr()
    assert bytes(tensors[0].numpy()) == contents[0], "the memory stays while it is in use"
    assert int(tensors[0].float().add_(1).sum()) == sum(contents[0]) + 5000


def test_no_views_are_no_tensors() -> None:
    assert as_tensors([]) == []
