"""The descriptors that a supervisor keeps."""

import os

from dieselfs_client.supervision.kept_descriptors import CHUNK, SNAPSHOT, KeptDescriptors


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
