"""The table of benchmarks agrees with their modules."""

from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.harness.figures import Run, Side, Trial
from bench.registry import BENCHMARKS, ONLY_IF_NAMED


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_a_function_of_the_module_of_its_name(name: str) -> None:
    assert callable(getattr(import_module(f"bench.{BENCHMARKS[name]}.{name}"), name))


def test_what_repeats_others_is_a_benchmark() -> None:
    assert set(ONLY_IF_NAMED) <= set(BENCHMARKS)


def test_a_pattern_that_matches_no_trial_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [Trial("Upload of 10,000 files", [Side("cp -r", lambda: Run(1.0), 1, "files")], 1, base="cp -r")]
    monkeypatch.setattr("bench.__main__.begin", lambda *_: (trial for trial in trials))
    (tmp_path / "upload.json").write_text("{}")
    found = CliRunner().invoke(main, ["upload", "--only", "100,000 files", "--keep", str(tmp_path)])
    assert found.exit_code == 1
    assert "upload: no trial's title matches '100,000 files'; nothing was kept" in found.output
    assert (tmp_path / "upload.json").read_text() == "{}"
