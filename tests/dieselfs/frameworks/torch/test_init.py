"""What importing costs, and what it says where PyTorch is missing."""

import subprocess
import sys

import pytest


def run(program: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=120
    )


def test_dieselfs_does_without_torch() -> None:
    ran = run("import sys, dieselfs; print('torch' in sys.modules)")
    assert (ran.stdout, ran.returncode) == ("False\n", 0)


@pytest.mark.parametrize("statement", ["import dieselfs.torch", "from dieselfs.torch import FolderDataset"])
def test_without_torch_one_line_says_what_to_install(statement: str) -> None:
    ran = run(f"import sys; sys.modules['torch'] = None; {statement}")
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("ImportError: dieselfs.torch needs PyTorch (")
    assert last.endswith("): in a checkout: pip install '.[torch]'")
