"""What a forked child does before anything else: everything that lives is told, and nothing that is gone."""

import gc
import os

from dieselfs.forks import renew_after_fork


class Noted:
    def __init__(self, notes: list[str], name: str) -> None:
        self._notes = notes
        self._name = name
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._notes.append(self._name)


def test_a_child_begins_with_what_lives() -> None:
    notes: list[str] = []
    kept = Noted(notes, "kept")
    Noted(notes, "gone")
    gc.collect()
    child = os.fork()
    if not child:
        os._exit(0 if notes == ["kept"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kept and notes == []
