"""What `bench tokens` reads are samples of the file, in each way."""

from functools import partial
from pathlib import Path

import numpy as np

from bench.mounts.tokens import BATCH, FILE_BYTES, LENGTH, make_tokens, memmap_batches, token_batches


def test_each_way_reads_samples_of_the_file(tmp_path: Path) -> None:
    make_tokens(tmp_path / "source", FILE_BYTES)
    content = np.fromfile(tmp_path / "source/tokens.bin", np.uint16)
    views = np.lib.stride_tricks.sliding_window_view(content, LENGTH)
    firsts = {tuple(view[:8].tolist()): number for number, view in enumerate(views)}
    for way in (memmap_batches, token_batches, partial(token_batches, workers=1)):
        batch = next(way(str(tmp_path / "source"))).numpy()
        assert batch.shape == (BATCH, LENGTH)
        for row in batch:
            assert np.array_equal(views[firsts[tuple(row[:8].tolist())]], row)
