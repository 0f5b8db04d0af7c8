"""Messages between a supervisor and its children, over the socket that they use."""

import os
import socket
from collections.abc import Iterator

import pytest

from dieselfs_client.supervision import control_channel as tethers
from dieselfs_client.supervision.control_channel import (
    CHUNK,
    MESSAGE_BYTES_MAX,
    SNAPSHOT,
    ControlChannel,
    KeptDescriptors,
    Message,
    receive_inheritance,
)
from tests.support.descriptors import descriptor_count


@pytest.fixture
def ends() -> Iterator[tuple[ControlChannel, ControlChannel]]:
    ours, theirs = ControlChannel.pair()
    with theirs:
        yield ours, ControlChannel(theirs)
    ours.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ours, theirs = ends
    ours.send("beat")
    ours.send("failed", "3 NotFound no such dataset: \udcff")
    assert theirs.receive() == Message("beat", "", None)
    assert theirs.receive() == Message("failed", "3 NotFound no such dataset: \udcff", None)
    with pytest.raises(BlockingIOError):
        theirs.receive()


def test_a_descriptor_travels_with_its_name_and_is_inherited_by_nobody(
    ends: tuple[ControlChannel, ControlChannel],
) -> None:
    ours, theirs = ends
    memory = os.memfd_create("test")
    os.write(memory, b"kept")
    ours.send("keep", "chunk-7", memory)
    os.close(memory)
    message = theirs.receive()
    assert message is not None and message.descriptor is not None
    assert (message.word, message.about) == ("keep", "chunk-7")
    assert os.pread(message.descriptor, 10, 0) == b"kept"
    assert not os.get_inheritable(message.descriptor)
    os.close(message.descriptor)


def test_a_long_text_is_cut_off(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ours, theirs = ends
    ours.send("failed", "x" * 2 * MESSAGE_BYTES_MAX)
    message = theirs.receive()
    assert message is not None
    assert len(message.word) + 1 + len(message.about) == MESSAGE_BYTES_MAX


def test_what_was_said_before_the_end_is_still_heard(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ours, theirs = ends
    theirs.send("beat")  # which will not be heard: the socket is reset
    ours.send("ended")
    ours.close()
    assert theirs.receive() == Message("ended", "", None)
    assert theirs.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):
        theirs.send("beat")


def test_who_takes_nothing_is_not_waited_for_long(
    ends: tuple[ControlChannel, ControlChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tethers, "SEND_TIMEOUT_S", 0.01)
    ours, theirs = ends
    with pytest.raises(TimeoutError):
        while True:
            ours.send_patiently("keep")
    with pytest.raises(BlockingIOError):
        while True:
            ours.send("keep")
    with pytest.raises(TimeoutError):
        while True:
            theirs.receive_patiently(0.01)


def test_both_ends_know_who_made_them(ends: tuple[ControlChannel, ControlChannel]) -> None:
    assert [end.maker for end in ends] == [os.getpid()] * 2


def test_an_inheritance_comes_by_name(ends: tuple[ControlChannel, ControlChannel]) -> None:
    ours, theirs = ends
    with socket.socket() as one, socket.socket() as other:
        ours.send("keep", "one", one.fileno())
        ours.send("keep", "other", other.fileno())
    ours.send("go", "clean")
    inherited, how = receive_inheritance(theirs)
    assert (list(inherited), how) == (["one", "other"], "clean")
    tethers.close_all(inherited)
    assert inherited == {}


def test_an_inheritance_that_does_not_come_leaves_nothing_open(
    ends: tuple[ControlChannel, ControlChannel],
) -> None:
    ours, theirs = ends
    before = descriptor_count()
    with socket.socket() as one:
        ours.send("keep", "one", one.fileno())
    ours.close()
    with pytest.raises(ConnectionError):
        receive_inheritance(theirs)
    assert descriptor_count() == before - 1  # our end


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_a_later_one_replaces_one_of_the_same_name_and_those_without_room_are_closed() -> None:
    kept = KeptDescriptors(2)
    first, second, third, fourth = (os.memfd_create("test") for _ in range(4))
    for name, descriptor in (("a", first), ("b", second), ("c", third), ("a", fourth)):
        kept.keep(name, descriptor)
    assert kept.descriptors == {"a": fourth, "b": second}
    assert [is_open(descriptor) for descriptor in (first, second, third, fourth)] == [
        False,
        True,
        False,
        True,
    ]
    kept.drop("a")
    kept.drop("unknown")
    assert not is_open(fourth)
    kept.close()
    assert not is_open(second)


def test_zygotes_get_the_snapshot_and_daemons_the_others() -> None:
    kept = KeptDescriptors(10)
    for name in (SNAPSHOT, "state", f"{CHUNK}1", f"{CHUNK}2"):
        kept.keep(name, os.memfd_create("test"))
    assert [*kept.for_zygote()] == [SNAPSHOT]
    assert [*kept.for_daemon()] == ["state", f"{CHUNK}1", f"{CHUNK}2"]
    kept.drop_chunks()
    assert [*kept.descriptors] == [SNAPSHOT, "state"]
    assert not kept.has_requests(), "it keeps no device"
    kept.close()
