"""What must hold of tags, leases, quotas and attached files, given what clients were told. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import DieselfsError


@dataclass(frozen=True, slots=True)
class Held:
    """The last acknowledged call of a member: when it was sent, and when the reply came."""

    incarnation: bytes
    sent_s: float
    answered_s: float


@dataclass(eq=False)
class Holdings:
    """`tags`: generation, its time and the digest of the snapshot, by name; the digest is empty until it is read."""

    tags: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    """Tags that were made before a purge could take anything of their generation."""
    removed: set[str] = field(default_factory=set)
    """Tags whose removal was asked for."""
    members: dict[str, Held] = field(default_factory=dict)
    """The living members of the job of leases, by node."""
    lists: dict[int, set[bytes]] = field(default_factory=dict)
    """Incarnations in each list of members, by its version."""
    joining: dict[bytes, str] = field(default_factory=dict)
    """The nodes of incarnations whose first join is under way: they may be in lists already."""
    uncertain: set[bytes] = field(default_factory=set)
    """Incarnations that have sent a first join without a reply: it may count at any time."""

    def tagged(self, name: str, generation: int, updated_ns: int, digest: bytes = b"") -> str | None:
        """A server says what a tag names; what is wrong with that."""
        if name in self.removed:
            return None
        known = self.tags.get(name, (generation, updated_ns, digest))
        self.tags[name] = (*known[:2], known[2] or digest)
        if known[:2] == (generation, updated_ns) and digest in (b"", self.tags[name][2]):
            return None
        return f"tag {name} names generation {known[0]}, and then {generation}"

    @contextmanager
    def first_join(self, incarnation: bytes, node: str) -> Iterator[None]:
        """Around the first join of a member, until its reply or its error."""
        self.joining[incarnation] = node
        try:
            yield
        except DieselfsError:
            self.uncertain.add(incarnation)
            raise
        finally:
            del self.joining[incarnation]

    def joined(self, node: str, held: Held, lease_s: float, is_first: bool) -> str | None:
        """A member was admitted, or has renewed its lease; what is wrong with that."""
        other = self.members.get(node)
        if other is not None and other.incarnation != held.incarnation and held.sent_s <= other.answered_s:
            # At the same time. A renewal came before the other's join: after it, it would be refused. Of two joins,
            # nobody knows which one counts, until it is renewed.
            if is_first:
                del self.members[node]
            return None
        self.members[node] = held
        if is_first or other is None or other.incarnation == held.incarnation:
            return None
        if held.incarnation in self.uncertain or other.incarnation in self.uncertain:
            return None
        if other.answered_s < held.sent_s and held.answered_s < other.sent_s + lease_s:
            return f"node {node} has two masters: one renews its lease beside the other"
        return None

    def missing(self, listed: set[bytes], sent_s: float, answered_s: float, lease_s: float) -> list[str]:
        """Nodes whose leases last, and which are not in a list that was asked for and came at these times."""
        # Servers admit a new master before it has its reply: it takes the place of the living one at once.
        replaced = {node for incarnation, node in self.joining.items() if incarnation in listed}
        return [
            node
            for node, held in sorted(self.members.items())
            if held.answered_s < sent_s
            and answered_s < held.sent_s + lease_s
            and held.incarnation not in listed
            and node not in replaced
            and not self.uncertain
        ]


@dataclass(eq=False)
class QuotaRecords:
    """The limits of a dataset, or of the user who owns all, that were ever asked for; None without a quota."""

    account: str = ""
    files_max: int | None = None
    bytes_max: int | None = None
    checks_bytes: bool = True
    """Whether only writers store: a purge copies, whatever the quota."""

    def asked(self, files: int, stored_bytes: int) -> None:
        self.files_max = max(files, self.files_max or 0)
        self.bytes_max = max(stored_bytes, self.bytes_max or 0)

    def exceeded(self, files: int, stored_bytes: int) -> str | None:
        """What is wrong with a usage."""
        if self.files_max is None or self.bytes_max is None:
            return None
        if files > self.files_max:
            return f"{files} files are stored, the largest quota was {self.files_max}"
        if self.checks_bytes and stored_bytes > self.bytes_max:
            return f"{stored_bytes} bytes are stored, the largest quota was {self.bytes_max}"
        return None


@dataclass(eq=False)
class ForeignObjects:
    """The objects that chunks are attached to: content and version by location."""

    objects: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    is_replaced: bool = False
    """Whether one of them has changed, so files that are attached to it are damaged."""
    kept_s: float | None = None
    """When servers had copied the bytes of all attached files; None while they have not, or may not have."""
    is_unsure: bool = False
    """Whether a chunk without a reply may still be attached."""

    def source(self, location: bytes, offset: int = 0) -> AttachedSource:
        content, version = self.objects[location]
        return AttachedSource(location, len(content), f"mtime_ns={version}", offset)

    def may_be_damaged(self, since_s: float) -> bool:
        """What a reader that began then may find."""
        return self.is_replaced and (self.is_unsure or self.kept_s is None or since_s <= self.kept_s)
