"""Names that programs, services and running daemons use, and that must stay: of modules, and of what they give."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PUBLIC = {
    "dieselfs": "Cursor Dataset Plan PlanSpec ReaderSpec ServedLog Share ShuffledPaths Stat connect open "
    "AccessDenied AlreadyExists Damaged DieselfsError InvalidInput NotFound PathNotFound ProtocolError SourceChanged "
    "StorageFull Unavailable __version__",
    "dieselfs.dali": "BatchSource",
    "dieselfs.dataset": "Dataset connect",
    "dieselfs.filesystem": "DieselFileSystem",
    "dieselfs.grain": "OrderSampler",
    "dieselfs.huggingface": "iterable_dataset",
    "dieselfs.settings": "Settings",
    "dieselfs.tensorflow": "READS_AT_ONCE dataset",
    "dieselfs.torch": "IMAGE_EXTENSIONS BatchStream ChunkShuffleBatchSampler ChunkShuffleSampler DatasetView "
    "FileDataset FolderDataset ImportanceSampler MixedDataset OpportunisticSampler PairDataset as_tensors load_image",
}
STARTED = (
    "dieselfs.etcd.helper",
    "dieselfs.settings.__main__",
    "dieselfs_client.cache_daemon",
    "dieselfs_client.main",
    "dieselfs_client.supervision.supervisor",
    "dieselfs_client.zygote",
    "dieselfs_server.main",
    "dieselfs_tools.demo",
    "dieselfs_tools.dlcmd",
)
"""Modules that are started by name: by users, services, images of containers, or another release on the same node."""


def tree_of(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is missing"
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", PUBLIC)
def test_programs_find_what_they_import(module: str) -> None:
    """Read, not imported: a framework need not be installed."""
    (exported,) = [
        ast.literal_eval(each.value)
        for each in tree_of(module).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"
    ]
    assert set(PUBLIC[module].split()) <= set(exported)


@pytest.mark.parametrize("module", STARTED)
def test_modules_that_are_started_do_something_then(module: str) -> None:
    body = [ast.unparse(each) for each in tree_of(module).body]
    is_program = any(each.startswith("if __name__ == '__main__':") for each in body)
    assert is_program or module.endswith("__main__")


def test_the_table_of_settings_is_printed() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "dieselfs.settings"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "DIESELFS_SERVER" in printed.stdout
