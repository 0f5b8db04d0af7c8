"""Debian's `promtool`, which checks what is exported to Prometheus. This module runs it."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL_TIMEOUT_S = 60.0

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)


def promtool(*words: str | Path, text: bytes = b"") -> None:
    """Fails unless promtool accepts what the words name, or the text on its standard input."""
    ran = subprocess.run(
        ["promtool", *words], input=text, capture_output=True, timeout=PROMTOOL_TIMEOUT_S, check=False
    )
    said = (ran.stdout + ran.stderr).decode("utf-8", "replace")
    assert ran.returncode == 0, said


def check_metrics(text: bytes) -> None:
    """Fails unless Prometheus can read the text, and has no remark about names, types and helps."""
    promtool("check", "metrics", text=text)
