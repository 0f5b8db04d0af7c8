"""What simulated clients do besides writing and reading: tags, pins, leases, quotas, copies, moves, drops, and
repacks.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

from dieselfs.chunk.builder import FileExtent
from dieselfs.cluster.member import INCARNATION_BYTES, Member
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import AlreadyExists, Damaged, DieselfsError, NotFound, StorageFull, Unavailable
from dieselfs.limits import JOB_LEASE_S_MIN
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.limit_kinds import QuotaRecord, UsageRecord
from dieselfs.rpc.members import JobId
from dieselfs.rpc.records import CopyRequest, RemoteSnapshot
from dieselfs.shuffle.strata import strata_of_classes
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.equal_extents import EqualExtents
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.tree_digest import digest_of_snapshot
from tests.simulation.actors import (
    CALL_S_MAX,
    DATASET,
    JOB_S_MAX,
    KINDS,
    Cluster,
    Kind,
    Step,
    check_damage,
    check_files,
    fetched,
    files_of,
    opened,
    write_files,
)
from tests.simulation.clock import now_s
from tests.simulation.green import Thread, pause
from tests.simulation.holdings import Held
from tests.simulation.oracle import Oracle

SCRATCH = "scratch"
TOGETHER_S = 0.5
"""Clients tag at multiples of this time, so that two of them often do at once."""
JOB_ID = JobId(DATASET, "leases", 1, bytes(32))
SECRET = JobSecret(b"the secret of the job of leases.")


# -- tags and pins -----------------------------------------------------------------------------------------------


def tag(cluster: Cluster, step: Step) -> None:
    """Tag the newest generation, and read what the tag names."""
    (name,) = step.arguments
    if name in cluster.holdings.removed:
        return
    pause(-now_s() % TOGETHER_S)
    client, oracle, began_s = cluster.client(step.actor), cluster.oracle, now_s()
    reading, found = oracle.read(), None
    try:
        record = cluster.bounded("put_tag", partial(client.put_tag, DATASET, name))
        if wrong := cluster.holdings.tagged(name, record.generation, record.updated_ns):
            cluster.world.violated(f"step {step.number}: {wrong}")
        is_kept = cluster.is_graced(began_s)
        found = _tagged_files(cluster, step, name, is_kept)
    finally:
        for wrong in oracle.end(reading, found):
            cluster.world.violated(f"step {step.number}: tag {name}: {wrong}")


def read_tag(cluster: Cluster, step: Step) -> None:
    """Read a tag, which may not be there yet."""
    (name,) = step.arguments
    _tagged_files(cluster, step, name, False)


def untag(cluster: Cluster, step: Step) -> None:
    """Remove a tag, for good."""
    (name,) = step.arguments
    cluster.holdings.removed.add(name)
    cluster.bounded("delete_tag", partial(cluster.client(step.actor).delete_tag, DATASET, name))


def _tagged_files(cluster: Cluster, step: Step, name: str, is_kept: bool) -> dict[bytes, bytes] | None:
    """The files of a tag; None if it is gone, or its files may be."""
    holdings, what, is_known = (
        cluster.holdings,
        f"step {step.number}: tag {name}",
        name in cluster.holdings.tags,
    )
    try:
        remote = fetched(cluster, step.actor, tag=name)
        snapshot = opened(remote)
    except NotFound as error:
        if is_known and name not in holdings.removed:
            cluster.world.violated(f"{what} is gone: {error}")
        return None
    if wrong := holdings.tagged(name, remote.generation, remote.updated_ns, snapshot.digest):
        cluster.world.violated(f"{what}: {wrong}")
    if is_kept:
        holdings.kept.add(name)
    try:
        return files_of(cluster, step.actor, snapshot)
    except NotFound as error:
        if name in holdings.kept and name not in holdings.removed:
            cluster.world.violated(f"{what} has lost files: {error}")
    except Damaged as error:
        check_damage(cluster.world, what, error)
    return None


def pin(cluster: Cluster, step: Step) -> None:
    """Pin a generation, read it until the lease is over or the holder dies."""
    lease_s, rounds, is_ended = step.arguments
    client, what, fetched_s = cluster.client(step.actor), f"step {step.number}", now_s()
    remote = fetched(cluster, step.actor)
    snapshot, holder = opened(remote), f"holder {step.number}"
    until_s, is_held = 0.0, False
    for number in range(rounds):
        asked_s = now_s()
        with noted(cluster, what):
            call = partial(client.pin, DATASET, holder, remote.generation, remote.updated_ns, lease_s)
            cluster.bounded("pin", call)
            in_time = cluster.is_graced(fetched_s) if not number else is_held and now_s() < until_s
            is_held, until_s = in_time and cluster.keeps_notes, asked_s + lease_s
        pause(lease_s / 3)
        try:
            files_of(cluster, step.actor, snapshot)
        except NotFound as error:
            if is_held and now_s() < until_s:
                cluster.world.violated(f"{what}: files of a pinned generation are gone: {error}")
            return
        except Damaged as error:
            check_damage(cluster.world, what, error)
    if is_ended:
        call = partial(client.pin, DATASET, holder, remote.generation, remote.updated_ns, 0)
        cluster.bounded("pin", call)


@contextmanager
def noted(cluster: Cluster, what: str) -> Iterator[None]:
    """Errors of the product are noted, and the work continues."""
    try:
        yield
    except DieselfsError as error:
        cluster.world.note(f"{what}: {type(error).__name__}: {error}")


# -- leases ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Membership:
    """One master of a node, in the job of leases."""

    cluster: Cluster
    step: Step
    node: str
    version: int = 0

    def __post_init__(self) -> None:
        number = self.step.number
        self.incarnation = hashlib.sha256(b"%d" % number).digest()[:INCARNATION_BYTES]
        self.member = Member(
            self.node, number, TcpAddress(self.node, 9000 + number % 1000), 0, self.incarnation
        )

    def renew(self) -> float:
        """Join, or renew the lease; returns after how many seconds to do so again."""
        cluster, holdings = self.cluster, self.cluster.holdings
        client, sent_s, is_first = cluster.client(self.step.actor), now_s(), not self.version
        sealed = SECRET.seal(self.member, JOB_ID)
        call = partial(client.join_job, JOB_ID, SECRET.fingerprint(), sealed, self.version)
        with holdings.first_join(self.incarnation, self.node) if is_first else nullcontext():
            answer = cluster.bounded("join_job", call)
        before, self.version = self.version, answer.version
        listed = {SECRET.open(one, JOB_ID).incarnation for one in answer.members or ()}
        if listed and (self.version < before or holdings.lists.setdefault(self.version, listed) != listed):
            cluster.world.violated(f"step {self.step.number}: two lists have version {answer.version}")
        if not (cluster.keeps_notes and cluster.has_close_clocks):
            return answer.interval_s
        held = Held(self.incarnation, sent_s, now_s())
        if wrong := holdings.joined(self.node, held, JOB_LEASE_S_MIN, is_first):
            cluster.world.violated(f"step {self.step.number}: {wrong}")
        if listed:
            for node in holdings.missing(listed, sent_s, now_s(), JOB_LEASE_S_MIN):
                cluster.world.violated(f"step {self.step.number}: {node} lives, and has lost its lease")
        return answer.interval_s

    def end(self, is_told: bool) -> None:
        """Leave the job, or just die."""
        cluster, held = self.cluster, self.cluster.holdings.members.get(self.node)
        if held is not None and held.incarnation == self.incarnation:
            del cluster.holdings.members[self.node]
        if is_told:
            sealed = SECRET.seal(self.member, JOB_ID)
            client = cluster.client(self.step.actor)
            cluster.bounded("leave_job", partial(client.leave_job, JOB_ID, SECRET.fingerprint(), sealed))


def lease(cluster: Cluster, step: Step) -> None:
    """Be a member of a job for a while: join, renew the lease, then leave, or die."""
    node, rounds, is_told = step.arguments
    membership, interval_s = _Membership(cluster, step, node), 1.0
    try:
        for _ in range(rounds):
            try:
                interval_s = membership.renew()
            except AlreadyExists as error:  # the node has another master
                cluster.world.note(f"step {step.number}: {error}")
                is_told = False
                return
            except DieselfsError as error:
                cluster.world.note(f"step {step.number}: {type(error).__name__}: {error}")
            pause(interval_s)
    finally:
        membership.end(is_told)


# -- copies, moves, drops ----------------------------------------------------------------------------------------


def copy(cluster: Cluster, step: Step) -> None:
    """Copy a folder, in which others write, to a new place."""
    copy_to(cluster, step, DATASET, cluster.oracle)


def copy_to(cluster: Cluster, step: Step, dataset: str, into: Oracle) -> None:
    (folder,) = step.arguments
    client, oracle = cluster.client(step.actor), cluster.oracle
    source, target = folder, b"copies/%d" % step.number
    is_there = any(
        None not in contents and path.startswith(source + b"/") for path, contents in oracle.possible.items()
    )
    reading, is_done = oracle.begin_copy(source + b"/", target + b"/", into), False
    try:
        request = CopyRequest(DATASET, source, dataset, target)
        cluster.bounded("copy", partial(client.copy_entries, request), 700.0)
        is_done = True
    except NotFound as error:
        if is_there and cluster.is_graced(now_s()):
            cluster.world.violated(f"step {step.number}: nothing to copy: {error}")
        raise
    finally:
        oracle.end_copy(reading, source + b"/", target + b"/", into, is_done)


def share(cluster: Cluster, step: Step) -> None:
    """Store the files of a folder, in which others write, at a new place without their bytes, as `put --dedup` does."""
    (folder,) = step.arguments
    client, oracle = cluster.client(step.actor), cluster.oracle
    source, target = folder + b"/", b"shared/%d/" % step.number
    reading, is_done = oracle.begin_copy(source, target, oracle), False
    sender = None
    try:
        snapshot = opened(fetched(cluster, step.actor))
        sender = ChunkSender(client, cluster.bounded("dataset", partial(client.dataset, DATASET)))
        equals = EqualExtents(lambda: snapshot)
        for node in snapshot.walk():
            path, stat = snapshot.path(node), snapshot.stat(node)
            if not stat.is_file or not path.startswith(source):
                continue
            extents = snapshot.extents(node)
            version = 0 if len(extents) == 1 else cluster.bounded("version", sender.reserve_version)
            new = target + path.removeprefix(source), stat.mode, stat.mtime_ns, stat.size
            for extent in extents:
                equals.put_off(False, FileExtent(*new, extent.place, extent.length, extent.digest, version))
        is_any = bool(equals.waiting)
        if is_any:
            for chunk in equals.references()[0]:
                cluster.bounded("refer", partial(sender.submit, chunk), 2 * CALL_S_MAX)
            cluster.bounded("referred", sender.wait_stored, 2 * CALL_S_MAX)
        # Of an empty folder nothing is stored, and a dataset without a chunk may be lost.
        is_done = is_any and not sender.refused
        cluster.world.note(f"step {step.number}: shared {folder!r}, {len(sender.refused)} refused")
    finally:
        if sender is not None:
            sender.close()
        oracle.end_copy(reading, source, target, oracle, is_done)


def move(cluster: Cluster, step: Step) -> None:
    """Move an own file to a new place: a copy, after which the source is removed."""
    move_to(cluster, step, DATASET, cluster.oracle)


def move_to(cluster: Cluster, step: Step, dataset: str, into: Oracle) -> None:
    (source,) = step.arguments
    target = b"moved/%d" % step.number
    client, oracle = cluster.client(step.actor), cluster.oracle
    before = set(oracle.possible.get(source, [None]))
    oracle.begin_any(source, {None})
    into.begin_any(target, before)
    request = CopyRequest(DATASET, source, dataset, target, is_move=True)
    cluster.bounded("move", partial(client.copy_entries, request), 700.0)
    into.acknowledge_any(target, before - {None} or before)
    # A write without a reply may still come, and is newer than what was moved.
    oracle.acknowledge_any(source, {None} if len(before) == 1 else before | {None})


def make(cluster: Cluster, step: Step) -> None:
    """Make the dataset that is dropped now and then, and write to it."""
    client = cluster.client(step.actor)
    if cluster.is_dropping:
        drop(cluster, step)
    with suppress(AlreadyExists):
        cluster.bounded("create", partial(client.create_dataset, SCRATCH))
    cluster.sync()  # a dataset without a chunk may be lost
    write_files(cluster, step, SCRATCH, cluster.scratch)


def drop(cluster: Cluster, step: Step) -> None:
    """Drop it, with all its files."""
    client, oracle = cluster.client(step.actor), cluster.scratch
    paths = [*oracle.possible]
    for path in paths:
        oracle.begin(path, None)
    cluster.is_dropping = True
    with suppress(NotFound):
        dataset_id = cluster.bounded("find", partial(client.dataset, SCRATCH)).dataset_id
        cluster.bounded("drop", partial(client.drop_dataset, SCRATCH, dataset_id))
    cluster.is_dropping, cluster.dropped_s = False, now_s()
    cluster.sync()  # a drop may be forgotten, too
    for path in paths:
        oracle.acknowledge(path, None)


def read_scratch(cluster: Cluster, step: Step) -> None:
    """A dataset that is gone has no files; a new one of its name none of the old bytes."""
    oracle, what, began_s = cluster.scratch, f"step {step.number}", now_s()
    reading = oracle.read()
    found: dict[bytes, bytes] | None = None
    try:
        try:
            snapshot = opened(fetched(cluster, step.actor, SCRATCH))
        except NotFound:
            found = {}
        else:
            found = files_of(cluster, step.actor, snapshot)
    except NotFound as error:
        is_dropped = cluster.is_dropping or cluster.dropped_s >= began_s
        if not is_dropped and cluster.is_graced(began_s):
            cluster.world.violated(f"{what}: {SCRATCH}: {error}")
    except Damaged as error:
        check_damage(cluster.world, what, error)
    finally:
        for wrong in oracle.end(reading, found):
            cluster.world.violated(f"{what}: {SCRATCH}: {wrong}")


# -- quotas ------------------------------------------------------------------------------------------------------


def quota(cluster: Cluster, step: Step) -> None:
    """Change the quota of the dataset."""
    files, stored_bytes = step.arguments
    set_quota(cluster, step.actor, files, stored_bytes)


def set_quota(cluster: Cluster, actor: str, files: int, stored_bytes: int) -> None:
    cluster.quota.asked(files, stored_bytes)
    record = QuotaRecord(cluster.quota.account, stored_bytes, files)
    cluster.bounded("set_quota", partial(cluster.client(actor).set_quota, record))


def usage(cluster: Cluster, step: Step) -> None:
    """No quota is exceeded that has ever been."""
    _check_usage(cluster, step.actor, f"step {step.number}")


def _check_usage(cluster: Cluster, actor: str, what: str) -> UsageRecord:
    records = cluster.bounded("usage", cluster.client(actor).usage)
    record = next(each for each in records if f"{each.kind}:{each.name}" == cluster.quota.account)
    wrong = cluster.quota.exceeded(record.files, record.stored_bytes)
    if wrong and cluster.keeps_notes and cluster.has_close_clocks:
        cluster.world.violated(f"{what}: {wrong}")
    return record


# -- repacks -----------------------------------------------------------------------------------------------------


def repack(cluster: Cluster, step: Step) -> None:
    """Mix the folders of the newest generation, and read all files."""
    (chunk_bytes,) = step.arguments
    snapshot = opened(fetched(cluster, step.actor))
    strata = strata_of_classes(snapshot)
    asked = DATASET, snapshot.generation, strata, step.number, False, None, chunk_bytes
    report = cluster.bounded("repack", partial(cluster.client(step.actor).repack, *asked), JOB_S_MAX)
    cluster.world.note(f"step {step.number}: {report}")
    check_files(cluster, step.actor, f"step {step.number}: repacked")


def _check_repacked(cluster: Cluster, actor: str, number: int) -> None:
    """The digest of the tree stays, also when a purge has removed the old chunks."""

    def digest() -> str:
        snapshot = opened(fetched(cluster, actor))
        return digest_of_snapshot(snapshot, ServerSource(cluster.client(actor), snapshot)).hex()

    before = digest()
    # Else the lease of a job may last: its server's clock was ahead, and its end is forgotten.
    with nullcontext() if cluster.has_close_clocks else suppress(Unavailable):
        repack(cluster, Step(number, actor, "repack", 0.0, (1000,)))
    if cluster.has_close_clocks:
        cluster.bounded("purge", partial(cluster.client(actor).purge, DATASET, 0, False), JOB_S_MAX)
    if digest() != before:
        cluster.world.violated("a repack has changed the tree")


# -- at the end --------------------------------------------------------------------------------------------------


def check_uses(cluster: Cluster) -> None:
    """Nothing fails any more: what is kept is there, what was dropped is gone, and quotas have no lost room."""
    actor, number, world = "checker", 1 << 20, cluster.world
    client = cluster.client(actor)
    for name in sorted(cluster.holdings.tags):
        _tagged_files(cluster, Step(number, actor, "tag", 0.0), name, False)
    if cluster.is_dropping:
        drop(cluster, Step(number, actor, "drop", 0.0))
    if (lost := client.lost_datasets()) and not cluster.has_lost:
        world.violated(f"datasets are lost: {lost}")
    read_scratch(cluster, Step(number, actor, "read scratch", 0.0))
    if cluster.has_close_clocks and (cluster.holdings.members or cluster.holdings.uncertain):
        _check_alone(cluster, Step(number, actor, "lease", 0.0))
    if cluster.quota.files_max is None:
        write_files(cluster, Step(number, actor, "write", 0.0, ([(b"last/0", 40)],)), DATASET, cluster.oracle)
        if cluster.has_repacks:
            _check_repacked(cluster, actor, number)
        if cluster.has_close_clocks and cluster.has_holders:
            _check_kept(cluster, actor, number)
        if cluster.holdings.tags and "," in cluster.servers:
            _tag_at_once(cluster, actor, number)
    else:
        _check_quota(cluster, actor, number)
    check_files(cluster, actor, "after the last write")


def _check_alone(cluster: Cluster, step: Step) -> None:
    """A new member of the job of leases is alone: all other leases have expired."""
    membership = _Membership(cluster, step, "last")
    cluster.holdings.members.clear()
    cluster.holdings.lists.clear()  # nobody is left who knows one
    membership.renew()
    sealed = SECRET.seal(membership.member, JOB_ID)
    client = cluster.client(step.actor)
    answer = client.join_job(JOB_ID, SECRET.fingerprint(), sealed, 0)
    listed = {SECRET.open(one, JOB_ID).incarnation for one in answer.members or ()}
    if listed - {membership.incarnation}:
        cluster.world.violated(f"{len(listed) - 1} dead members are in a job")


def _tag_at_once(cluster: Cluster, actor: str, number: int) -> None:
    """Two clients make a tag while others write: it has one generation."""

    def make(name: str, each: int) -> None:
        pause(TOGETHER_S / 10)
        with noted(cluster, name):
            tag(cluster, Step(number, f"{actor}{each}", "tag", 0.0, (name,)))

    def change(name: str, each: int) -> None:
        pause(TOGETHER_S - 0.2 * cluster.world.delays.random())
        files = [(b"last/%s%d" % (name.encode(), each), 40)]
        with noted(cluster, name):
            write_files(
                cluster, Step(number, f"{actor}{each}", "write", 0.0, (files,)), DATASET, cluster.oracle
            )

    for name in ("race0", "race1", "race2"):
        at_once(
            [partial(make, name, each) for each in (0, 1)] + [partial(change, name, each) for each in (2, 3)]
        )


def at_once(work: Sequence[Callable[[], None]]) -> None:
    """Do all in threads, from the next multiple of TOGETHER_S on; return when they have ended."""
    pause(-now_s() % TOGETHER_S)
    threads = [Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _check_kept(cluster: Cluster, actor: str, number: int) -> None:
    """A tag and a pin keep what a purge without a grace time takes otherwise."""
    client, kept = cluster.client(actor), dict[str, RemoteSnapshot]()
    for place, holder in enumerate(("tag", "pin")):
        path = b"last/%s" % holder.encode()
        write_files(
            cluster, Step(number + place, actor, "write", 0.0, ([(path, 40)],)), DATASET, cluster.oracle
        )
        kept[holder] = remote = fetched(cluster, actor)
        if holder == "tag":
            client.put_tag(DATASET, "kept")
        else:
            client.pin(DATASET, "last", remote.generation, remote.updated_ns, 600)
        # Before the next one is made, which would keep it, too.
        write_files(
            cluster, Step(number + place, actor, "write", 0.0, ([(path, 1)],)), DATASET, cluster.oracle
        )
    cluster.bounded("purge", partial(client.purge, DATASET, 0, is_dry_run=False), JOB_S_MAX)
    for holder, remote in kept.items():
        try:
            files_of(cluster, actor, opened(remote))
        except NotFound as error:
            cluster.world.violated(f"files that a {holder} keeps are gone: {error}")


def _check_quota(cluster: Cluster, actor: str, number: int) -> None:
    """What fits is stored, what does not fit is refused, to the file."""
    record = _check_usage(cluster, actor, "the end")
    for more, fits in ((2, True), (0, False)):
        set_quota(cluster, actor, record.files + more, record.stored_bytes + 1_000_000)
        step = Step(number + more, actor, "write", 0.0, ([(b"last%d/0" % more, 40)],))  # a file and a folder
        try:
            write_files(cluster, step, DATASET, cluster.oracle)
            if not fits:
                cluster.world.violated("a write beyond the quota is stored")
        except StorageFull as error:
            if fits and cluster.has_close_clocks:  # holds of a clock that was ahead last until that time
                cluster.world.violated(f"room in a quota is lost: {error}")
        record = _check_usage(cluster, actor, "the end")
    set_quota(cluster, actor, record.files + 1, record.stored_bytes + 1_000_000)
    at_once([partial(_write_last, cluster, f"{actor}{each}", number) for each in range(2)])
    files = _check_usage(cluster, actor, "the end").files
    if (
        files > record.files + 1 and cluster.has_close_clocks
    ):  # else a hold of one server has expired for the other
        cluster.world.violated("two writes at once exceed a quota that has room for one")


def _write_last(cluster: Cluster, actor: str, number: int) -> None:
    path = b"last2/" + actor.encode()
    with noted(cluster, actor):
        write_files(cluster, Step(number, actor, "write", 0.0, ([(path, 40)],)), DATASET, cluster.oracle)


USES: dict[str, Kind] = KINDS | {
    "tag": tag,
    "read tag": read_tag,
    "untag": untag,
    "pin": pin,
    "lease": lease,
    "copy": copy,
    "share": share,
    "move": move,
    "make": make,
    "drop": drop,
    "read scratch": read_scratch,
    "quota": quota,
    "usage": usage,
    "repack": repack,
}
