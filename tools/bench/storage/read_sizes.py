"""Files of 1 KB to 4 MB, each size read cold by four processes from the local file system: table 2 of DIESEL."""

from collections.abc import Generator
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import SMALL_FILE_BYTES, SourceTree, drop_caches, make_tree, shuffled
from bench.harness.readers import plain_reader, read_together, shares_of

SIZES_KB = (1, 4, 16, 64, 256, 1024, 4096)
READERS = 4
BASE = "4 KB"


def read_sizes(folder: Path, scale: Scale) -> Generator[Trial]:
    """Each size has as many bytes as the small files, but no more files than these."""
    sides = []
    for size_kb in SIZES_KB:
        file_bytes = size_kb << 10
        files = max(scale.small_files * SMALL_FILE_BYTES // max(file_bytes, SMALL_FILE_BYTES), READERS)
        tree = make_tree(folder / str(size_kb), files, file_bytes)
        sides.append(Side(f"{size_kb} KB", partial(_read, tree), files, "files", tree.size_bytes))
    yield Trial(
        f"Files of {SIZES_KB[0]} to {SIZES_KB[-1]:,} KB, {READERS} readers, cold", sides, scale.rounds, BASE
    )


def _read(tree: SourceTree) -> Run:
    drop_caches()
    shares = shares_of(shuffled(tree.paths()), READERS)
    works = [partial(plain_reader, tree.folder, share, tree.file_bytes) for share in shares]
    return read_together(works, tree.files)
