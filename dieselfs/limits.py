"""The limits of the formats and protocols, with their units and relations. Numbers that tune one module only are in
that module.

Before memory is allocated for a length from a file or from the network, it is compared with the bytes that are left
*and* with a limit of this module.
"""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# Names ------------------------------------------------------------------------------------------------
DATASET_NAME_CHARACTERS_MAX = 255
TAG_NAME_CHARACTERS_MAX = 64
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4095
PATH_DEPTH_MAX = 1024
NEW_PATH_DEPTH_MAX = 128
"""Parts of a path at which an entry may be made; deeper ones of earlier chunks are read."""

# Chunks -----------------------------------------------------------------------------------------------
CHUNK_TARGET_BYTES = 4 * MIB
"""Payload at which a writer seals a chunk."""
CHUNK_PAYLOAD_BYTES_MAX = 64 * MIB
CHUNK_HEADER_BYTES_MAX = 64 * MIB
CHUNK_ENTRIES_MAX = 65_536
CHUNK_PATH_BYTES_MAX = 16 * MIB
"""All paths and link targets of one chunk together; a writer seals before it exceeds this."""
CHUNK_FOLDERS_MAX = 65_536
"""Distinct folders above the entries of a new chunk; fewer, if it has few entries:"""
CHUNK_FOLDERS_BASE, CHUNK_FOLDERS_PER_ENTRY_MAX = 10_000, 4
"""a base, and a number for each entry."""
CHUNK_FOLDER_BYTES_MAX = 16 * MIB
"""The paths of these folders together."""
CHUNK_EXTENTS_PER_PAYLOAD_MAX = 2
"""All extents of a new chunk together may have this many times the bytes of its payload, which files may share."""
ATTACHED_HEADER_BYTES_MAX = 4 * MIB
"""Of a new attached chunk."""
FILE_BYTES_MAX = 1 << 60
COLUMNS_BYTES_MAX = 4 * GIB
"""The table of the columns of a dataset, which is read into memory."""
CHUNK_AHEAD_S_MAX = 15 * 60
"""A server refuses a chunk whose ID is further ahead of its clock: its writer's clock is wrong. A starting server looks
for chunks that were not applied from an hour before the newest ID, so no ID may be far ahead.
"""

# Network ----------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 2 * MIB
"""One Thrift message. Bulk bytes follow a message and do not count."""
CALL_BYTES_MAX = 64 * KIB
"""A call, unless its method needs more (`dieselfs/rpc/methods.py`)."""
CALL_VALUES_MAX = 64
"""Values in a call, with those inside others."""
HANDSHAKE_FRAME_BYTES_MAX = 4 * KIB
TOKEN_BYTES_MAX = 16 * KIB
"""A token of an identity provider, with the groups of its user."""
INLINE_FILE_BYTES_MAX = 1 * MIB
"""Largest file that the pure Thrift methods carry inside a message."""
KEY_RECORD_BYTES_MAX = 256 * KIB
"""The record of the keys of an encrypted dataset."""
CHUNK_OBJECT_BYTES_MAX = 112 + CHUNK_HEADER_BYTES_MAX + CHUNK_PAYLOAD_BYTES_MAX
RANGES_PER_REQUEST_MAX = 65_536
SHARED_PAYLOADS_MAX = 64
"""Chunks in one request for shared memory; Linux passes at most 253 descriptors at once."""
LISTING_ENTRIES_MAX = 1_024
LISTING_BYTES_MAX = 1 * MIB
"""Names and link targets of one page of a listing together."""
REPORT_LINE_BYTES_MAX = 1_000
"""One line of a report about a dataset, of which a reply holds at most REPORT_LINES_MAX."""
REPORT_LINES_MAX = 1_000
COPY_SELECTION_BYTES_MAX = 1 * MIB
"""A selection of entries to copy: a bit for each entry of a dataset."""
STRATA_BYTES_MAX = 16 * MIB
"""The strata of a dataset for a repack: 2 bytes for each extent of its files."""
ATTACHED_PER_REPLY_MAX = 100
"""Sources of attached chunks in one page of their list."""
VERSIONS_PER_REQUEST_MAX = 1 << 20
SNAPSHOT_BYTES_MAX = 64 * GIB
SNAPSHOT_BASES_MAX = 64
"""Snapshots that a client names when it asks for another one, so that the server can send a delta."""

CONNECT_TIMEOUT_S = 10.0
"""A connection attempt fails after this time, if there is no other server."""
OTHER_CONNECT_TIMEOUT_S = 1.5
"""A connection attempt moves after this time to another server, if one has not failed lately."""
KEEP_ALIVE_S = 10.0
"""A server sends an empty message this often while it works on a call that takes long."""
PROGRESS_S = 1.0
"""A server that copies sends its progress this often."""
LEAST_RATE_BYTES_PER_S = 64 * KIB
"""Bulk bytes that move more slowly over the whole of a transfer end the connection."""
HANDSHAKE_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
"""A request fails when no byte has moved for this long."""
WAIT_LOOK_S = 0.1
"""How often a client that waits for bytes checks for progress."""
IDLE_TIMEOUT_S = 600.0
"""A server closes a connection without a request for this long."""
BULK_IDLE_TIMEOUT_S = 30.0
"""A server closes a connection whose peer neither receives nor sends bytes for this long."""
SNAPSHOT_BUILD_TIMEOUT_S = 600.0

BULK_BYTES_MAX = 512 * MIB
"""Bulk bytes of uploads that a server receives at the same time."""
BULK_BYTES_PER_USER_MAX = 256 * MIB
MIRROR_PART_BYTES = 64 * MIB
"""Of the snapshot of a mirror, which is sent in parts: as much as half a million files."""
MIRROR_PARTS_MAX = SNAPSHOT_BYTES_MAX // MIRROR_PART_BYTES
REPLY_BYTES_MAX = 1 * GIB
"""Bulk bytes of replies that a server holds at the same time, until their clients have received them."""
REPLY_BYTES_PER_USER_MAX = 512 * MIB
SMALL_REPLY_BYTES = 64 * KIB
"""Replies up to this do not count: there is one for each connection."""
OPEN_FILE_HELD_BYTES = 256 * KIB
"""A file that is passed with a reply counts as this much of it, so a server has 2,048 of them open at most."""
BULK_WAIT_S = 10.0
"""An upload, or a reply, waits this long for its share of these bytes."""

CALL_COST_MAX_US = 400_000
"""What calls in flight may cost together, by the model in `dieselfs/rpc/methods.py`; a call of more is alone."""
CALL_COST_OF_USER_MAX_US = 100_000
"""The same for the calls of one user, over all connections: 12 look-ups, or 38 payloads of chunks."""
CALL_DEBT_MAX_US = 1_000_000
"""What calls have cost beyond that model puts the next ones of their user behind those of others, by this at most."""
SMALL_CALL_COST_US = 10_000
"""A call of this cost waits only for others of its user."""
BUILDS_OF_USER_MAX = 2
BUILDS_MAX = 16
"""Calls in flight that may build a snapshot, which keeps a processor busy: of one user, and of all."""
TURN_WAIT_S = 10.0
"""A call waits this long for the turn of its user."""

CONNECTIONS_MAX = 1024
CONNECTIONS_PER_PEER_MAX = 256
"""Authenticated connections per address (of IPv6: per /64)."""
UNAUTHENTICATED_MAX = 128
"""Unauthenticated connections, beside the authenticated ones."""
UNAUTHENTICATED_S_MIN = 0.5
"""Evict the oldest unauthenticated connection after this time, while there are UNAUTHENTICATED_MAX."""
KNOWN_ADDRESS_S = 3600.0
"""An address from which a client has proved a key comes first among unauthenticated ones for this long."""

# Metadata in Redis --------------------------------------------------------------------------------------
REDIS_REQUEST_TIMEOUT_S = 3.0
"""A request to a Redis node fails after this time without an answer: the node hangs."""
REDIS_PATIENCE_S = 10.0
"""Calls are retried for this time from the start of an outage: a Redis node is down, starts, or is replaced. A single
server that hangs is replaced by nobody.
"""
REDIS_AWAY_S = 1.0
"""In an outage that lasts longer, each call is retried for this time, and waits as long for a connection."""
METADATA_ANSWER_S = 1.0
"""A chunk read waits this long for the metadata store; then it uses the last known state."""
METADATA_AWAY_S = 30.0
"""After the metadata store failed, chunk reads use the last known state, and retry the store at this interval."""
REDIS_RETRY_S = 0.1
REDIS_SWAPS_MAX = 256
"""Tries of a change that loses against concurrent changes. With each lost try, another change was made."""
REDIS_SCAN_ENTRIES = 8_192
"""Entries per reply while a whole dataset is read; each blocks Redis for 2 to 3 ms."""
REDIS_HOLD_S = 15.0
"""Writers wait this long for a reader of the whole dataset that makes no progress."""

# Several servers --------------------------------------------------------------------------------------
FAILOVER_TIMEOUT_S = 60.0
"""A call is retried on other servers until it has taken this long; then it fails."""
SERVER_AVOIDED_S = 10.0
"""A server that failed gets no new connections for this long, if there are others."""
SERVER_SILENCE_S = 12.0
"""A read without progress for this long is retried on another server, if one has not failed lately."""
SERVER_GONE_S = 10.0
"""A connection fails when the other machine acknowledges nothing for this long, whatever the timeout of the call."""
READ_GONE_S = 2.0
"""The same for a read, if there is another server that has not failed lately. The kernel counts in whole seconds."""
LOST_MACHINE_S = 3.0
"""A machine that vanishes costs a read less than this, if another has the bytes. If none has, the read of a server
fails within this time. The waits of each way add up to less, by LOST_MACHINE_REST_S: see the end of this module.
"""
LOST_MACHINE_REST_S = 0.2
"""Of it for what a read does beside its waits."""
OPEN_AHEAD_S = 1.0
"""A server has this long to open files that a reader needs later, and as long again for its reply."""
READ_PATIENCE_S = 25.0
"""A read that failed on all servers is retried on all of them until it has taken this long."""
VERB_PATIENCE_S = 4.0
"""The same for a read of dlcmd, for which somebody waits, and for its connection attempts. A server whose store is away
takes up to 10 s to say so."""
VERB_SILENCE_S = 1.5
"""A server that is silent for this long during a call of dlcmd must take a new connection within twice this time."""
SERVERS_REFRESH_S = 10.0
"""A client that needs a connection reads the servers from etcd again if its list is older than this."""
SERVER_LEASE_S = 10
"""A crashed server stays on etcd's list for at most this long."""
SERVERS_LOOK_S = 10.0
"""The web page looks this often whether the other servers answer."""
SERVER_ANSWER_S = 3.0
"""One that takes longer for a connection, or for its first answer, is shown as not answering."""
ETCD_TIMEOUT_S = 3.0
"""One request to one member of etcd."""
ETCD_PATIENCE_S = 0.5
"""A call that needs a connection waits this long for etcd's list; then it uses the last one."""

# Plans ------------------------------------------------------------------------------------------------
SKIP_RANGES_MAX = 8
"""Skipped ranges of one epoch; every cursor contains them."""
CURSOR_CHARACTERS_MAX = 320
MIXED_SOURCES_MAX = 1 << 12
"""Datasets in one order."""
MIXED_SAMPLES_MAX = 1 << 31
"""Positions of an epoch of a mixture; each takes 10 bytes."""
BATCH_FILES_MAX = 1 << 32
"""Files of one step, of all ranks together."""
RANKS_MAX = 1 << 20
WORKERS_MAX = 1 << 16
"""Worker processes of one rank."""

# Jobs -------------------------------------------------------------------------------------------------
JOB_NAME_CHARACTERS_MAX = 128
NODE_NAME_CHARACTERS_MAX = 128
MEMBER_BYTES_MAX = 512
"""A member record of a job, as other nodes receive it: name, address, memory, incarnation."""
SEAL_BYTES = 32 + 8
"""Before a member record: its authentication code, made with the job's secret, and its expiry."""
SEALED_MEMBER_BYTES_MAX = SEAL_BYTES + MEMBER_BYTES_MAX
MEMBER_MEMORY_BYTES_MAX = 1 << 50
JOB_NODES_MAX = 4_096
JOBS_MAX = 1_024
"""Jobs that read one dataset at the same time."""
JOB_MESSAGES_PER_S = 100
"""Messages of all members of a job together, at the servers: each sends less often in a larger job."""
JOB_INTERVAL_S_MIN = 1.0
JOB_LEASE_S_MIN = 10.0
"""A crashed member stays on the membership list for at most this long, in jobs of up to 300 nodes."""
JOB_LEASE_INTERVALS = 3
"""Intervals in a lease: a member stays listed if single messages are lost or late."""
JOB_ANSWER_TIMEOUT_S = 4.0
"""A member waits this long for a server, which leaves time to try another before its lease expires."""
PEER_CLIENTS_MAX = 16_384
"""Connections that one node accepts: 1,024 peers with 16 processes each. One takes a descriptor, and 5 KB."""
PEER_CONNECT_TIMEOUT_S = 1.5
PEER_SILENCE_S = 2.5
"""A request to a peer fails when no byte has moved for this long: the peer crashed, stopped, or is cut off."""
PEER_CALL_TIMEOUT_S = 10.0
"""A request to a peer fails after this time, including the wait for a free connection."""
PEER_ANSWER_S = 0.05
"""A peer answers within this time with the chunks that it has by then, because other requests need the connection."""
PEER_PATIENCE_S = 15.0
"""A chunk that a peer has not fetched within this time is fetched from a server."""
PEER_CHUNKS_MAX = 1_024
"""Chunks whose extents one request can list."""
PEER_ANSWER_BYTES_MAX = CHUNK_PAYLOAD_BYTES_MAX
"""All extents of one answer."""
PEER_REQUESTS_AT_ONCE_MAX = 8
"""Peers that are queried at the same time for one batch of extents."""
PEER_PINGS_AT_ONCE_MAX = 32
"""Threads that wait for a ping: this many nodes can fail at the same moment and be detected together."""
PEER_AVOIDED_S = 1.0
PEER_PROBE_INTERVAL_S = 0.25
"""How often suspected peers that are due are probed."""
MASTER_POLL_S = 0.2
"""How often a process that waits to become node master checks whether there is one."""
MASTER_PATIENCE_S = 2.0
"""While a node has no master, a process waits this long for a live process with a smaller rank."""
MASTER_SILENCE_S = 20.0
"""A node master that sends nothing to the processes of its node for this long is killed; its lease has expired."""
JOB_MASTER_WAIT_S = 20.0
"""The first read of a process waits this long until its node has a master, and the master a membership list."""
NOTES_AT_ONCE_MAX = 8_192
"""Notes of a dataset that are read in one call."""

# Library ----------------------------------------------------------------------------------------------
LIBRARY_MEMORY_BYTES = 512 * MIB
"""Default chunk cache of a process, for each dataset."""

NODE_PACKET_BYTES_MAX = 2 * KIB
"""One message between a reader and its node's daemon."""
NODE_HELLO_TIMEOUT_S = 2.0
"""A reader ignores a daemon that sends no greeting within this time."""
NODE_CHUNK_TIMEOUT_S = 15.0
"""A reader waits this long for a chunk from the daemon."""
NODE_AVOIDED_S = 5.0
"""After a daemon failed or was not found, a reader uses the server for this long before the next try."""
NODE_MEMBERS_INTERVAL_S = 1.0
"""Shortest time between two requests of a process to its node master for the membership list."""
NODE_READERS_MAX = 1024
"""Connections of readers to one daemon."""

# Mount ------------------------------------------------------------------------------------------------
READ_TIMEOUT_S = 30.0
"""A read through the mount returns its bytes or EIO within this time."""
WRITE_EVERY_S = 30.0
"""What is written through a mount is stored at this interval, unless the user gives another."""
READ_BYTES_MAX = 1 * MIB
FETCHES_AT_ONCE_MAX = 8
"""Chunks that a mount has in flight."""
MOUNT_MEMORY_BYTES = 1 * GIB
"""Default memory of a mount for chunks."""
MOUNT_MEMORY_BYTES_MIN = 2 * CHUNK_TARGET_BYTES
MOUNT_START_TIMEOUT_S = SNAPSHOT_BUILD_TIMEOUT_S + 60.0
"""Wait for a mount to become ready."""
JOB_GATHER_TIMEOUT_S = 60.0
"""A node waits this long for the other nodes of its job, then starts with those that are there."""
WARMTH_TIMEOUT_S = 1.5
"""Wait for the answers of all nodes of a job to a query of their warmth."""
PEER_SCORES_TIMEOUT_S = 10.0
"""A node draws the order of 10 million files for the mounts of its job, and answers, in this time."""
PEER_SCORES_PATIENCE_S = 20.0
"""An order waits this long for the node that has the scores of a job. A crashed node is no longer listed then."""
JOB_FILES_LEAVE_S = 2.0
"""A mount that leaves its job gives its important files to the others for this time."""
PEER_REPORT_BYTES_MAX = 1 * MIB
"""What a node tells the others of its metrics, or of their history."""
UNMOUNT_TIMEOUT_S = 10.0

assert CHUNK_TARGET_BYTES <= CHUNK_PAYLOAD_BYTES_MAX
assert PATH_BYTES_MAX < CHUNK_PATH_BYTES_MAX < CHUNK_HEADER_BYTES_MAX
assert HANDSHAKE_FRAME_BYTES_MAX <= FRAME_BYTES_MAX
assert max(INLINE_FILE_BYTES_MAX, COPY_SELECTION_BYTES_MAX) + CALL_BYTES_MAX < FRAME_BYTES_MAX
assert INLINE_FILE_BYTES_MAX <= CHUNK_PAYLOAD_BYTES_MAX
assert RANGES_PER_REQUEST_MAX * 8 < FRAME_BYTES_MAX
assert CHUNK_ENTRIES_MAX <= VERSIONS_PER_REQUEST_MAX
assert LISTING_ENTRIES_MAX * (NAME_BYTES_MAX + 128) < FRAME_BYTES_MAX
assert LISTING_ENTRIES_MAX * 128 + LISTING_BYTES_MAX + PATH_BYTES_MAX + NAME_BYTES_MAX < FRAME_BYTES_MAX
assert REPORT_LINES_MAX * (REPORT_LINE_BYTES_MAX + 128) < FRAME_BYTES_MAX
assert ATTACHED_PER_REPLY_MAX * (PATH_BYTES_MAX + REPORT_LINE_BYTES_MAX + 512) < FRAME_BYTES_MAX
assert LISTING_ENTRIES_MAX <= REDIS_SCAN_ENTRIES
assert MIRROR_PART_BYTES <= BULK_BYTES_PER_USER_MAX
assert CHUNK_OBJECT_BYTES_MAX <= BULK_BYTES_PER_USER_MAX < BULK_BYTES_MAX
assert CHUNK_PAYLOAD_BYTES_MAX <= REPLY_BYTES_PER_USER_MAX < REPLY_BYTES_MAX
assert SHARED_PAYLOADS_MAX * OPEN_FILE_HELD_BYTES <= CHUNK_PAYLOAD_BYTES_MAX
assert SMALL_CALL_COST_US < CALL_COST_OF_USER_MAX_US < CALL_COST_MAX_US
assert TURN_WAIT_S < SERVER_SILENCE_S
assert BULK_WAIT_S < SERVER_SILENCE_S < BULK_IDLE_TIMEOUT_S
assert 2 * KEEP_ALIVE_S < REQUEST_TIMEOUT_S
assert REDIS_PATIENCE_S + REDIS_REQUEST_TIMEOUT_S < REQUEST_TIMEOUT_S
assert REDIS_PATIENCE_S < SERVER_SILENCE_S  # a server without Redis answers before its client tries another
assert REDIS_PATIENCE_S + REDIS_REQUEST_TIMEOUT_S < METADATA_AWAY_S
assert SERVER_SILENCE_S + max(SERVER_GONE_S, CONNECT_TIMEOUT_S) < READ_PATIENCE_S < READ_TIMEOUT_S
assert 2 * OPEN_AHEAD_S + READ_PATIENCE_S < READ_TIMEOUT_S
assert READ_GONE_S + ETCD_PATIENCE_S + LOST_MACHINE_REST_S < LOST_MACHINE_S  # 2.0 + 0.5 + 0.2 = 2.7 s
assert (
    OTHER_CONNECT_TIMEOUT_S + ETCD_PATIENCE_S + LOST_MACHINE_REST_S < LOST_MACHINE_S
)  # 1.5 + 0.5 + 0.2 = 2.2 s
assert METADATA_ANSWER_S + LOST_MACHINE_REST_S < LOST_MACHINE_S  # 1.0 + 0.2 = 1.2 s
assert PEER_SILENCE_S + WAIT_LOOK_S + LOST_MACHINE_REST_S < LOST_MACHINE_S  # 2.5 + 0.1 + 0.2 = 2.8 s
assert 3 * VERB_SILENCE_S < VERB_PATIENCE_S + 1 < READ_PATIENCE_S
assert 2 * ETCD_TIMEOUT_S < SERVER_LEASE_S
assert JOB_NODES_MAX < NOTES_AT_ONCE_MAX <= REDIS_SCAN_ENTRIES
assert JOB_NAME_CHARACTERS_MAX + NODE_NAME_CHARACTERS_MAX < MEMBER_BYTES_MAX
assert JOB_LEASE_INTERVALS * JOB_INTERVAL_S_MIN < JOB_LEASE_S_MIN
assert 2 * JOB_ANSWER_TIMEOUT_S < JOB_LEASE_S_MIN
assert PEER_ANSWER_S < PEER_SILENCE_S / 2  # a late answer is not taken for silence
assert FETCHES_AT_ONCE_MAX * PEER_ANSWER_S < PEER_AVOIDED_S  # concurrent requests are fetched together
assert PEER_CONNECT_TIMEOUT_S + PEER_SILENCE_S < PEER_CALL_TIMEOUT_S < PEER_PATIENCE_S
assert PEER_PATIENCE_S + PEER_CALL_TIMEOUT_S < READ_TIMEOUT_S
assert JOB_MASTER_WAIT_S + 2 * NODE_HELLO_TIMEOUT_S < READ_TIMEOUT_S
assert JOB_LEASE_S_MIN + JOB_INTERVAL_S_MIN < MASTER_SILENCE_S
assert JOB_LEASE_S_MIN + JOB_INTERVAL_S_MIN < PEER_SCORES_PATIENCE_S < READ_TIMEOUT_S
assert JOB_NODES_MAX <= PEER_CLIENTS_MAX
assert PEER_CHUNKS_MAX * 8 + RANGES_PER_REQUEST_MAX * 8 < FRAME_BYTES_MAX
