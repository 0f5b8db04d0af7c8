"""What simulated clients do beyond one dataset: copies and moves to another one, and files whose bytes stay outside."""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AlreadyExists, Damaged, NotFound, StorageFull, Unavailable
from dieselfs.transfer.sender import ChunkSender
from dieselfs_server.store import attached
from tests.simulation.actors import (
    CALL_S_MAX,
    JOB_S_MAX,
    Cluster,
    Kind,
    Step,
    check_damage,
    content_of,
    fetched,
    files_of,
    opened,
)
from tests.simulation.clock import now_s
from tests.simulation.disk import STORE_S
from tests.simulation.green import current_process
from tests.simulation.oracle import Oracle
from tests.simulation.uses import copy_to, move_to
from tests.simulation.world import World

ELSEWHERE, ATTACHED = "elsewhere", "attached"
HEAD = b"bytes of another format"
"""Each foreign object begins with it, so payloads of chunks begin inside of it."""


# -- copies to another dataset -----------------------------------------------------------------------------------


def copy_elsewhere(cluster: Cluster, step: Step) -> None:
    """Copy a folder, in which others write, to another dataset."""
    _make(cluster, step.actor, ELSEWHERE)
    copy_to(cluster, step, ELSEWHERE, cluster.elsewhere)


def move_elsewhere(cluster: Cluster, step: Step) -> None:
    """Move an own file to another dataset."""
    _make(cluster, step.actor, ELSEWHERE)
    move_to(cluster, step, ELSEWHERE, cluster.elsewhere)


def read_elsewhere(cluster: Cluster, step: Step) -> None:
    _check(cluster, step, ELSEWHERE, cluster.elsewhere)


def _make(cluster: Cluster, actor: str, name: str) -> None:
    with suppress(AlreadyExists):
        cluster.bounded("create", partial(cluster.client(actor).create_dataset, name))
    cluster.sync()  # a dataset without a chunk may be lost


def _check(cluster: Cluster, step: Step, name: str, oracle: Oracle) -> bool:
    """Read all files of a dataset that may not be there yet; whether none of them was damaged."""
    what, began_s = f"step {step.number}: {name}", now_s()
    reading = oracle.read()
    found: dict[bytes, bytes] | None = None
    try:
        try:
            snapshot = opened(fetched(cluster, step.actor, name))
        except NotFound:
            found = None if cluster.has_lost and not cluster.world.is_calm else {}
        else:
            found = files_of(cluster, step.actor, snapshot)
    except NotFound as error:
        if cluster.is_graced(began_s):
            cluster.world.violated(f"{what}: {error}")
    except Damaged as error:
        if name != ATTACHED or not cluster.world.foreign.may_be_damaged(began_s):
            check_damage(cluster.world, what, error)
        return False
    finally:
        for wrong in oracle.end(reading, found):
            cluster.world.violated(f"{what}: {wrong}")
    return True


# -- attached files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OpenObject:
    """An `OpenSource`: one version of a foreign object, whose storage is late, and sometimes away."""

    world: World
    source: AttachedSource
    mtime_ns: int = 0
    descriptor: int | None = None

    def read(self, offset: int, length: int) -> bytes:
        self.world.pause(STORE_S)
        if self.world.fault("store away"):
            raise Unavailable(f"{self.source.name}: its storage does not answer")
        self.check()
        content, _ = self.world.foreign.objects[self.source.location]
        return content[offset : offset + length]

    def check(self) -> None:
        if self.world.foreign.source(self.source.location) != self.source:
            raise Damaged(f"{self.source.name}: it has changed")

    def close(self) -> None:
        """Nothing is open."""


def _open_source(location: bytes, *_: object) -> _OpenObject:
    process = current_process()
    assert process is not None
    world: World = process.parts["host"].world
    world.pause(STORE_S)
    return _OpenObject(world, world.foreign.source(location))


def install() -> None:
    """Let servers read foreign objects from here."""
    setattr(attached, "open_source", _open_source)  # noqa: B010  # mypy takes the assignment for a mistake


def attach(cluster: Cluster, step: Step) -> None:
    """Attach ranges of a new foreign object as files."""
    client, oracle, foreign = cluster.client(step.actor), cluster.attached, cluster.world.foreign
    _make(cluster, step.actor, ATTACHED)
    files = {path: content_of(path, step.number, size) for path, size in step.arguments[0]}
    location, payload = b"/sources/%d" % step.number, b"".join(files.values())
    foreign.objects[location] = HEAD + payload, 1
    builder, place = ChunkBuilder(), 0
    for path, content in files.items():
        builder.add_file(path, content, 0o644, 0, offset=place)
        place += len(content)
    dataset = cluster.bounded("dataset", partial(client.dataset, ATTACHED))
    sender = ChunkSender(client, dataset)
    foreign.kept_s, was_unsure, foreign.is_unsure = None, foreign.is_unsure, True
    try:
        for path, content in files.items():
            oracle.begin(path, content)
        sender.submit(builder.seal(payload, foreign.source(location, len(HEAD))))
        cluster.bounded("attach", sender.wait_stored, 2 * CALL_S_MAX)
        foreign.is_unsure = was_unsure
        for path, content in files.items():
            oracle.acknowledge(path, content)
    except StorageFull as error:
        # With a full metadata store, the chunk is stored, and may yet be applied.
        if "over quota" in str(error):
            foreign.is_unsure = was_unsure
        raise
    finally:
        sender.close()


def keep(cluster: Cluster, step: Step) -> None:
    """Let servers copy the bytes of all attached files."""
    client, foreign = cluster.client(step.actor), cluster.world.foreign
    call = partial(client.copy_attached, ATTACHED, False)
    copied = cluster.bounded("copy_attached", call, JOB_S_MAX)
    cluster.world.note(f"step {step.number}: {copied} chunks copied")
    if not foreign.is_replaced:
        foreign.kept_s = now_s()


def replace_objects(cluster: Cluster, step: Step) -> None:
    """Another program replaces all foreign objects by others of the same length."""
    foreign = cluster.world.foreign
    foreign.is_replaced = foreign.is_replaced or bool(foreign.objects)
    for location, (content, version) in foreign.objects.items():
        foreign.objects[location] = bytes(len(content)), version + 1


def read_attached(cluster: Cluster, step: Step) -> None:
    _check(cluster, step, ATTACHED, cluster.attached)


def check_exchanges(cluster: Cluster) -> None:
    """Nothing fails any more."""
    for name, oracle in ((ELSEWHERE, cluster.elsewhere), (ATTACHED, cluster.attached)):
        _check(cluster, Step(1 << 21, "checker", "read", 0.0), name, oracle)


EXCHANGES: dict[str, Kind] = {
    "copy elsewhere": copy_elsewhere,
    "move elsewhere": move_elsewhere,
    "read elsewhere": read_elsewhere,
    "attach": attach,
    "keep attached": keep,
    "replace objects": replace_objects,
    "read attached": read_attached,
}
