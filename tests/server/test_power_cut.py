"""What was acknowledged survives a real power cut; what was not is whole or absent."""

import os
import threading
from pathlib import Path

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.transfer.sender import ChunkSender
from tests.support.disks import xfs_disk
from tests.support.server import start_server

ACKNOWLEDGED_MIN = 6


def test_acknowledged_files_survive_a_power_cut_in_the_middle_of_an_upload(tmp_path: Path) -> None:
    contents = {b"f%03d" % n: os.urandom(300_000) for n in range(200)}
    acknowledged: set[bytes] = set()
    enough = threading.Event()

    def note(chunk: object, generation: int) -> None:
        acknowledged.update(entry[0] for entry in chunk.entries)  # type: ignore[attr-defined]  # a sealed chunk
        if len(acknowledged) >= ACKNOWLEDGED_MIN:
            enough.set()

    with xfs_disk(tmp_path) as disk:
        server = start_server(disk.folder / "server")
        data = Dataset(server.settings(), "data", must_exist=False)
        sender = ChunkSender(data.client, data.create(), note)

        def upload() -> None:
            builder = ChunkBuilder()
            try:
                for path, content in contents.items():
                    builder.add_file(path, content, 0o644, 0)
                    if len(builder) == 3:
                        sender.submit(builder.seal())
            except DieselfsError:
                return  # the power is gone

        uploader = threading.Thread(target=upload)
        uploader.start()
        assert enough.wait(60)
        at_the_cut = set(acknowledged)
        server.kill()
        disk.cut_power()
        uploader.join()
        sender.abandon()
        data._end()
        assert len(at_the_cut) < len(contents), "all was stored before the cut: this run proves nothing"

        again = start_server(disk.folder / "server")
        try:
            with Dataset(again.settings(), "data") as reader:
                found = {os.fsencode(path): reader.get(path) for path in reader.files()}
            assert at_the_cut <= found.keys()
            assert all(contents[path] == content for path, content in found.items())
            client = again.client()
            assert client.fsck("data", is_deep=True, is_repair=False).problem_count == 0
            client.close()
        finally:
            again.stop()
