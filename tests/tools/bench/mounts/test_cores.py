import os

from bench.mounts.cores import limited, steps


def test_steps_end_with_all_processors() -> None:
    assert steps(1) == [1]
    assert steps(2) == [1, 2]
    assert steps(6) == [1, 2, 4, 6]
    assert steps(16) == [1, 2, 4, 8, 16]


def test_processes_that_are_started_meanwhile_are_limited() -> None:
    before = os.sched_getaffinity(0)
    with limited(1):
        assert len(os.sched_getaffinity(0)) == 1
        child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit $(nproc)"], os.environ)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert os.sched_getaffinity(0) == before
