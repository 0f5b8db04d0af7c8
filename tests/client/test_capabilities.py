"""What a process gives up, it does not get back. Each test has a process of its own."""

import subprocess
import sys

import pytest

from dieselfs_client import capabilities
from dieselfs_client.capabilities import DAC_OVERRIDE, SYS_ADMIN, mask_of
from tests.client.conftest import needs_root


def run(code: str) -> str:
    program = f"from dieselfs_client import capabilities\nfrom dieselfs_client.capabilities import *\n{code}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_they_are_those_that_the_kernel_shows() -> None:
    with open("/proc/self/status") as file:
        shown = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("Cap"))
    now = capabilities.read()
    assert now == (int(shown["CapEff"], 16), int(shown["CapPrm"], 16), int(shown["CapInh"], 16))


@needs_root
def test_a_process_keeps_what_it_names_and_has_no_more_than_before() -> None:
    before = capabilities.read().permitted
    kept = run("keep_only(SYS_ADMIN, DAC_OVERRIDE); print(capabilities.read().permitted)")
    assert int(kept) == before & mask_of(SYS_ADMIN, DAC_OVERRIDE)


@needs_root
def test_programs_that_root_starts_do_not_get_them_back() -> None:
    shown = run(
        "keep_only(DAC_OVERRIDE); import os; os.execlp('grep', 'grep', 'CapEff', '/proc/self/status')"
    )
    assert int(shown.split()[1], 16) & ~mask_of(DAC_OVERRIDE) == 0


@needs_root
def test_capabilities_that_were_given_up_are_refused() -> None:
    code = "was = capabilities.read(); keep_only(); capabilities.write(was)"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run(code)
    assert "PermissionError" in failed.value.stderr
