"""What is said of the nodes of a job: before they are waited for, and afterwards."""

import pytest

from dieselfs.settings.table import JobSettings
from dieselfs_tools.cli.output import Output
from dieselfs_tools.commands.mounts import announce_job, report_job


@pytest.mark.parametrize(
    ("job", "environment", "said"),
    [
        (JobSettings("train", 3), {}, "waiting for 3 nodes of the job, 60 s at most\n"),
        (JobSettings("auto"), {"SLURM_NNODES": "8"}, "waiting for 8 nodes of the job, 60 s at most\n"),
        (JobSettings("train", 1), {"SLURM_NNODES": "8"}, ""),
        (JobSettings("train"), {}, ""),
    ],
)
def test_who_waits_hears_it(
    job: JobSettings, environment: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_job(Output(), job, environment)
    for output in (Output(is_quiet=True), Output(is_json=True)):
        announce_job(output, job, environment)
    assert capsys.readouterr() == ("", said)


def test_nodes_that_are_missing_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    fields = report_job(Output(is_quiet=True), "train", 3, ["b", "a"])
    assert fields == {"job": "train", "nodes": 3, "members": ["a", "b"]}
    said = capsys.readouterr().err
    assert said.startswith("dlcmd: of 3 nodes of job train 2 are here: a, b; the others are late, ")
    assert "another secret" in said


@pytest.mark.parametrize(("nodes", "members"), [(2, ["b", "a"]), (0, ["a"]), (2, None)])
def test_there_is_nothing_to_warn_of(
    nodes: int, members: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = report_job(Output(), "train", nodes, members)
    assert fields["members"] == (members and ["a", "b"][: len(members)])
    assert capsys.readouterr() == ("", "")
