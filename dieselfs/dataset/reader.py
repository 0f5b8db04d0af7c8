"""The reader of one frozen snapshot of a dataset, opened at first use. This module waits for
sockets and opens files.
"""

from threading import RLock
from typing import TYPE_CHECKING

from dieselfs.cache.file_reader import FileReader
from dieselfs.cluster.access import JobAccess
from dieselfs.cluster.node_client import NodeClient, socket_path
from dieselfs.errors import InvalidInput
from dieselfs.process.state_dirs import runtime_folder
from dieselfs.rpc.client import ServerClient
from dieselfs.selection.selected import stored_selection
from dieselfs.settings import Settings
from dieselfs.shuffle.order import Layout
from dieselfs.snapshot.derived import stored_plain
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.store import SnapshotStore
from dieselfs.sources.plain import node_source, readable

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs.cluster.attachment import Attachment


class FrozenReader:
    """Reads one generation of a dataset until `refresh`, `use` or `close`. Thread-safe."""

    def __init__(
        self,
        client: ServerClient,
        settings: Settings,
        name: str,
        generation: int,
        tag: str,
        memory_bytes: int,
        job: JobAccess | None,
        where: str = "",
    ) -> None:
        """`generation` 0: the one of `tag`, else the newest. `job`: the job whose nodes pool their memory. `where`:
        only the files for which this expression is true.
        """
        self.reader: FileReader | None = None
        """The open reader; None before the first `open`. Changed under the lock."""
        self.attachment: Attachment | None = None
        """That of the reader, in a job."""
        self.tag, self.memory_bytes, self.job, self.where = tag, memory_bytes, job, where
        self.whole: Snapshot | None = None
        """The snapshot of the dataset, of which `where` selects; None before the first `open`."""
        self._client, self._settings, self._name = client, settings, name
        self._store = SnapshotStore.of(settings)
        self._lock = RLock()  # guards `reader` and the three below
        self._generation = self._requested = generation
        self._is_closed = False
        self._layout: tuple[Snapshot, Layout] | None = None  # of the last folder; replaced by any thread

    @property
    def state(self) -> str:
        """The dataset, at the tag if there is one: `dataset` or `dataset@tag`."""
        return f"{self._name}@{self.tag}" if self.tag else self._name

    def check_open(self) -> None:
        """Raises InvalidInput after `close`."""
        if self._is_closed:
            raise InvalidInput(f"dataset {self.state} is closed: open it again with dieselfs.connect")

    def open(self) -> FileReader:
        """The reader; fetches the snapshot at first use. Raises as `check_open` and `SnapshotStore.get`."""
        with self._lock:
            if self.reader is None:
                self.check_open()
                record = self._client.dataset(self._name)
                return self._attach(self._store.get(self._client, record, self._generation, self.tag))
            return self.reader

    def use(self, snapshot: Snapshot) -> None:
        """Read with this snapshot from now on, and stay at its generation. Raises Damaged if other servers
        signed it than the earlier ones.
        """
        with self._lock:
            if not snapshot.header.is_encrypted and (cipher := self._client.known_cipher(self._name)):
                snapshot = stored_plain(self._store.adopt(snapshot.source, self._client.servers_pins), cipher)
            if not snapshot.header.is_encrypted:  # else it was made here, of one that was checked
                self._store.check_signer(snapshot.header)
            self._generation = snapshot.generation
            self._attach(snapshot)

    def _attach(self, snapshot: Snapshot) -> FileReader:
        """Replace the reader: it uses the daemon of this node, or the memory of the job."""
        self._close_reader()
        self.whole = snapshot
        if self.where:
            snapshot = stored_selection(snapshot, self._client, self.where)
        settings = self._settings
        disk = settings.disk, settings.disk_size_bytes
        chunks = node_source(self._client, snapshot, *disk, opens_ahead=self.job is None)
        daemon: NodeClient | Attachment | None
        if self.job is None:
            path = socket_path(runtime_folder(), snapshot.dataset, snapshot.digest)
            daemon = NodeClient(path, snapshot.digest)
        else:
            daemon = self.attachment = self.job.attach(snapshot, chunks)
        self.reader = FileReader(readable(chunks, self._client), self.memory_bytes, daemon)
        return self.reader

    def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()
            reader.chunks.close()

    def refresh(self) -> None:
        """The next `open` reads the newest generation, or that of the tag."""
        with self._lock:
            self._generation = self._requested = 0
            self._close_reader()

    def refresh_if_newest(self) -> None:
        """As `refresh`, unless one generation was requested; a snapshot from a file gives way to the newest."""
        with self._lock:
            if self._requested == 0:
                self._generation = 0
                self._close_reader()

    def layout(self, folder: bytes) -> tuple[Snapshot, Layout]:
        """The snapshot, and the layout of a folder in it; the last one is remembered. Raises as `Layout.of`."""
        snapshot, last = self.open().chunks.snapshot, self._layout
        if last is None or last[0] is not snapshot or last[1].folder != folder:
            self._layout = last = snapshot, Layout.of(snapshot, folder)
        return last

    def close(self) -> None:
        """Release the reader's memory and connections. May be called again."""
        with self._lock:
            self._is_closed = True
            self._close_reader()
