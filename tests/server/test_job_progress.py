"""The progress of jobs of a server: it reaches the clients that ask for it, and no others."""

from contextlib import closing
from pathlib import Path
from threading import Event

from dieselfs.attached.opening import open_source
from dieselfs.rpc.messages import decode_call, encode_call
from dieselfs.rpc.records import CopyProgress
from tests.server.test_attach_rights import attach_source
from tests.support.http_files import web_file
from tests.support.server import running_server


def test_a_client_sees_how_far_a_check_is(tmp_path: Path) -> None:
    with web_file(bytes(1000)) as file:
        root = file.url.removesuffix("/a.tar")
        with (
            running_server(tmp_path, ("--attach-roots", root)) as server,
            closing(server.client(server.user("ann", pets="write"))) as ann,
        ):
            ann.create_dataset("pets")
            source = open_source(file.url.encode(), lambda location: None).source
            for _ in range(3):
                attach_source(ann, "pets", source, bytes(100))
            file.held = Event()  # the check waits for the source, until its progress was seen
            seen: list[CopyProgress] = []

            def progressed(progress: CopyProgress) -> None:
                seen.append(progress)
                assert file.held is not None
                file.held.set()

            report = ann.fsck("pets", True, False, progressed)
            assert (report.chunks, report.problem_count) == (3, 0)
            assert seen[0].total == 3 and 0 <= seen[0].done < 3
            assert ann.fsck("pets", True, False).chunks == 3


def test_clients_and_servers_of_both_kinds_understand_each_other() -> None:
    call = encode_call("fsck", 1, {"dataset": "pets", "is_deep": True, "is_repair": False})
    assert b"\x02\x00\x04" in call
    older = call.replace(b"\x02\x00\x04\x00", b"")  # without the last argument
    assert decode_call(older)[2].with_progress is False
    newer = call.replace(b"\x02\x00\x04\x00", b"\x02\x00\x63\x01")  # with one that nobody knows
    assert decode_call(newer)[2].is_deep is True
