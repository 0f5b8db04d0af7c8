"""Who asks for a dataset's ID waits for the metadata store only as long as a reader can."""

from threading import Event
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from dieselfs.limits import METADATA_ANSWER_S, METADATA_AWAY_S
from dieselfs.records import DatasetRecord
from dieselfs_server.access.accounts import Caller
from dieselfs_server.access.users import UserStore
from dieselfs_server.call import Access, Call
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.chunks import DATASET_ID

NAME = "pets"


def test_a_chunk_read_does_not_wait_for_metadata_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata, store = SqliteMetadata(":memory:"), MemoryStore()
    metadata.create_dataset(NAME, DATASET_ID)
    answers, asked = Event(), []
    find = metadata.dataset

    def silent(name: str) -> DatasetRecord:
        asked.append(name)
        answers.wait()
        return find(name)

    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        catalog = Catalog(store, metadata, clock.current_time)
        caller = Caller("ada", "k", is_trusted=True)
        arguments = SimpleNamespace(dataset=NAME)

        async def read() -> float:
            began_s = trio.current_time()
            call = Call(Access(UserStore(store), catalog), caller, "get_payload", arguments)
            assert await call.dataset_id() == DATASET_ID and call.is_allowed
            return trio.current_time() - began_s

        assert await read() == 0
        monkeypatch.setattr(metadata, "dataset", silent)
        clock.autojump_threshold = 0.05  # longer than a thread takes that waits for nobody
        assert METADATA_ANSWER_S <= await read() < 2 * METADATA_ANSWER_S
        clock.autojump_threshold = float("inf")
        assert [await read() for _ in range(3)] == [0, 0, 0] and asked == [NAME]
        clock.jump(METADATA_AWAY_S)
        answers.set()
        assert await read() == 0 and asked == [NAME] * 2

    try:
        trio.run(main, clock=MockClock())
    finally:
        answers.set()
        metadata.close()
