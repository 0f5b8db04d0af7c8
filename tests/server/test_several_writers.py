"""Several writers at once, and several servers over the same stores: one whole outcome, the same everywhere."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists
from dieselfs.transfer.upload import TreeUpload, walk_source
from tests.support.server import RunningServer, start_server

WRITERS = 4


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RunningServer]]:
    """Two servers, each with a state of its own, over one object store and one metadata store."""
    folder = tmp_path / "shared"
    with ExitStack() as stack:
        running = []
        for number in range(2):
            state = [
                "--state",
                str(tmp_path / f"state-{number}"),
                "--listen",
                f"unix:{tmp_path}/{number}.sock",
            ]
            server = start_server(folder, state) if number == 0 else start_second(folder, tmp_path, state)
            stack.callback(server.stop)
            running.append(server)
        yield running


def start_second(folder: Path, tmp_path: Path, state: list[str]) -> RunningServer:
    """Another server over the stores of the first; its own sockets and log lie in another folder."""
    own = tmp_path / "second"
    options = [*state, "--store", f"posix://{folder}/chunks", "--metadata", f"sqlite://{folder}/metadata.db"]
    return start_server(own, options)


def outcome(server: RunningServer, name: str = "data") -> dict[str, bytes]:
    with Dataset(server.settings(), name) as reader:
        paths = list(reader.files())
        return dict(zip(paths, reader.get_many(paths), strict=True))


def run_all(functions: list[object]) -> None:
    errors: list[BaseException] = []

    def guarded(function: object) -> None:
        try:
            function()  # type: ignore[operator]  # each is a function without arguments
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_path_written_by_many_is_one_whole_file_everywhere(servers: list[RunningServer]) -> None:
    candidates = [bytes([number]) * (5_000_000 + number) for number in range(WRITERS)]  # each spans chunks
    small = [b"%d" % number * 100 for number in range(WRITERS)]

    def write(number: int) -> None:
        with Dataset(servers[number % 2].settings(), "data", must_exist=False) as writer:
            for _ in range(3):
                writer.put("folder/large", candidates[number])
                writer.put("folder/small", small[number])
                writer.flush()

    run_all([lambda number=number: write(number) for number in range(WRITERS)])
    seen = [outcome(server) for server in servers]
    assert seen[0] == seen[1]
    assert seen[0]["folder/large"] in candidates and seen[0]["folder/small"] in small
    client = servers[0].client()
    client.rebuild("data")
    client.close()
    assert [outcome(server) for server in servers] == seen


def test_two_uploads_into_one_folder(servers: list[RunningServer], tmp_path: Path) -> None:
    trees = []
    for number in range(2):
        tree = tmp_path / f"tree-{number}"
        tree.mkdir()
        for n in range(100):
            (tree / f"own-{number}-{n}").write_bytes(os.urandom(2000))
            (tree / f"both-{n}").write_bytes(os.urandom(3000))
        trees.append(tree)

    def upload(number: int) -> None:
        with Dataset(servers[number].settings(), "data", must_exist=False) as writer:
            run = TreeUpload(writer.client, writer.create(), None, chunk_bytes=20_000)
            report = run.run(lambda failed: walk_source(os.fsencode(trees[number]), b"same", failed))
            assert not report.failures

    run_all([lambda number=number: upload(number) for number in range(2)])
    seen = outcome(servers[0])
    assert seen == outcome(servers[1]) and len(seen) == 300
    for path, content in seen.items():
        name = os.path.basename(path)
        assert content in [(tree / name).read_bytes() for tree in trees if (tree / name).exists()]
    client = servers[1].client()
    client.rebuild("data")
    assert outcome(servers[0]) == seen
    assert client.fsck("data", is_deep=True, is_repair=False).problem_count == 0
    client.close()


def test_a_dataset_is_made_once(servers: list[RunningServer]) -> None:
    made = []

    def make(number: int) -> None:
        client = servers[number % 2].client()
        try:
            made.append(client.create_dataset("new").dataset_id)
        except AlreadyExists:
            pass
        finally:
            client.close()

    run_all([lambda number=number: make(number) for number in range(WRITERS)])
    assert len(made) == 1
    assert outcome(servers[1], "new") == {}
