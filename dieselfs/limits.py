"""Every limit of the formats and of the protocol, with its unit, and how the limits relate.

A length that comes from a file or from the network is compared with the bytes that are left *and* with a
limit of this module before anything is allocated.
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

# Chunks -----------------------------------------------------------------------------------------------
CHUNK_TARGET_BYTES = 4 * MIB
"""Payload at which a writer seals a chunk."""
CHUNK_PAYLOAD_BYTES_MAX = 64 * MIB
CHUNK_HEADER_BYTES_MAX = 64 * MIB
CHUNK_ENTRIES_MAX = 65_536
CHUNK_PATH_BYTES_MAX = 16 * MIB
"""All paths and link targets of one chunk together; a writer seals before it is passed."""
FILE_BYTES_MAX = 1 << 60

# Network ----------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 2 * MIB
"""One Thrift message. Bulk bytes follow a message and do not count."""
HANDSHAKE_FRAME_BYTES_MAX = 4 * KIB
INLINE_FILE_BYTES_MAX = 1 * MIB
"""Largest file that the pure Thrift methods carry inside a message."""
CHUNK_OBJECT_BYTES_MAX = 72 + CHUNK_HEADER_BYTES_MAX + CHUNK_PAYLOAD_BYTES_MAX
RANGES_PER_REQUEST_MAX = 65_536
LISTING_ENTRIES_MAX = 1_024
LISTING_BYTES_MAX = 1 * MIB
"""Names and link targets of one page of a listing together; a page ends before it is passed."""
REPORT_LINE_BYTES_MAX = 1_000
"""One line of a report about a dataset, of which a reply holds at most REPORT_LINES_MAX."""
REPORT_LINES_MAX = 1_000
VERSIONS_PER_REQUEST_MAX = 1 << 20
SNAPSHOT_BYTES_MAX = 64 * GIB

CONNECT_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
"""A client waits this long for bytes to move before it gives a request up."""
WAIT_LOOK_S = 0.1
"""A client that waits for bytes looks this often how long none has moved."""
IDLE_TIMEOUT_S = 600.0
"""A server closes a connection on which nothing was asked for this long."""
BULK_IDLE_TIMEOUT_S = 30.0
"""A server closes a connection whose peer neither takes nor gives bytes for this long."""
SNAPSHOT_BUILD_TIMEOUT_S = 600.0
MAINTENANCE_TIMEOUT_S = 24 * 3600.0
"""A purge, a rebuild, or a check of a whole dataset."""

CONNECTIONS_MAX = 1024
CONNECTIONS_PER_PEER_MAX = 256

# Metadata in Redis --------------------------------------------------------------------------------------
REDIS_CONNECT_TIMEOUT_S = 2.0
REDIS_REQUEST_TIMEOUT_S = 10.0
"""A node of Redis that is silent for this long does not answer."""
REDIS_PATIENCE_S = 10.0
"""How long calls are made again while a node is away, starts, or is replaced; then they are given up."""
METADATA_AWAY_S = 30.0
"""Reads of chunks go by what is known of a dataset, and ask a metadata store that failed only this often."""
REDIS_RETRY_S = 0.1
REDIS_CONNECTIONS_MAX = 32
"""To each node, from each server process."""
REDIS_SWAPS_MAX = 256
"""A change that others were ahead of is worked out anew this often. Each time, one of them was done."""
REDIS_SCAN_ENTRIES = 8_192
"""Entries that Redis gives at once while a whole dataset is read; it does nothing else for 2 to 3 ms."""
REDIS_HOLD_S = 15.0
"""Writers wait this long for a reader of the whole dataset that gives no sign of life."""

# Several servers --------------------------------------------------------------------------------------
FAILOVER_TIMEOUT_S = 60.0
"""A call that fails goes to no further server once it has taken this long; then it fails."""
SERVER_AVOIDED_S = 10.0
"""A server that failed gets no new connections for this long, as long as there are others."""
SERVER_SILENCE_S = 12.0
"""A read whose bytes do not move for this long goes to another server, if there is one that has not failed lately."""
SERVER_GONE_S = 10.0
"""A machine that acknowledges nothing for this long is gone, however long the call may take that waits for it."""
READ_PATIENCE_S = 25.0
"""A read for which no server is left begins again with all of them, until it has taken this long."""
SERVER_RETRY_S = 0.25
"""Between two such rounds."""
SERVERS_REFRESH_S = 10.0
"""A client asks etcd for the servers anew when it needs a connection and its list is older than this."""
SERVER_LEASE_S = 10
"""A server that dies is on etcd's list for at most this long."""
ETCD_TIMEOUT_S = 3.0
"""One request to one member of etcd."""

# Plans ------------------------------------------------------------------------------------------------
SKIP_RANGES_MAX = 8
"""Ranges that are skipped in one epoch; they are part of every cursor."""
CURSOR_CHARACTERS_MAX = 320
BATCH_FILES_MAX = 1 << 32
"""Files of one step, of all ranks together."""
RANKS_MAX = 1 << 20
WORKERS_MAX = 1 << 16
"""Of one rank."""

# Jobs -------------------------------------------------------------------------------------------------
JOB_NAME_CHARACTERS_MAX = 128
NODE_NAME_CHARACTERS_MAX = 128
MEMBER_BYTES_MAX = 512
"""A member of a job as the others get it: its name, address, memory, and proof."""
MEMBER_MEMORY_BYTES_MAX = 1 << 50
JOB_NODES_MAX = 4_096
JOBS_MAX = 1_024
"""Jobs that read one dataset at one time."""
JOB_MESSAGES_PER_S = 100
"""Of all members of one job together, at the servers: the more members, the more seldom each one asks."""
JOB_INTERVAL_S_MIN = 1.0
JOB_LEASE_S_MIN = 10.0
"""A member that dies is on the roll of its job for at most this long, in jobs of up to 300 nodes."""
JOB_LEASE_INTERVALS = 3
"""So messages of a member may be lost, or late, without its being taken for dead."""
JOB_ANSWER_TIMEOUT_S = 4.0
"""A member waits this long for a server, and so has time to ask another before its lease ends."""
JOB_LEAVE_TIMEOUT_S = 2.0
"""A member that leaves waits no longer for a server to hear of it; its lease ends by itself."""
JOB_AGAIN_S_MAX = 60.0
"""A member whose name is another's by now asks to come back after twice as long each time, up to this."""
JOB_SECRET_FILE_BYTES_MAX = 4 * KIB
PEER_CONNECTIONS_MAX = 1
"""From one node of a job to each other one, unless it has more processes: so p nodes with n processes have p x (n - 1).
"""
PEER_CLIENTS_MAX = 16_384
"""That one node answers: 1,024 others with 16 processes each. A connection takes a descriptor, and 5 KB."""
PEER_CONNECT_TIMEOUT_S = 1.5
PEER_SILENCE_S = 3.0
"""A peer whose bytes do not move for this long is dead, stopped, or cut off."""
PEER_CALL_TIMEOUT_S = 10.0
"""One that needs longer for an answer, or for others' answers before, is too slow to be asked."""
PEER_ANSWER_S = 0.05
"""A peer answers within this time, with what it has by then: others wait for the connection meanwhile."""
PEER_PATIENCE_S = 15.0
"""What a peer has not fetched within this time is fetched from a server."""
PEER_AGAIN_S = 0.01
PEER_AGAIN_MAX_S = 0.16
"""Between asking a peer for what it has not fetched yet, and asking again: the first figure, then twice as long each
time, up to the second. So a thousand nodes that wait for one chunk of a slow one ask it 5,000 times a second.
"""
PEER_CHUNKS_MAX = 1_024
"""Of which pieces are asked for in one request."""
PEER_FETCHES_MAX = 16
"""Chunks that a node fetches for one request before it answers; for others, it is to be asked again."""
PEER_ANSWER_BYTES_MAX = CHUNK_PAYLOAD_BYTES_MAX
"""Pieces in one answer, together."""
PEER_BATCH_BYTES = 8 * MIB
"""What is asked for in one request, unless it is one chunk: others wait for the connection meanwhile, and each of the
parcels that a mount has on their way takes so much memory.
"""
PEER_REQUESTS_AT_ONCE_MAX = 8
"""Peers that one batch of pieces is asked from at one moment."""
PEER_PINGS_AT_ONCE_MAX = 32
"""Threads that wait for a ping: as many nodes as may be lost at one moment, and are found out together."""
PEER_AVOIDED_S = 1.0
PEER_AVOIDED_MAX_S = 15.0
"""A peer that failed is not asked for the first figure, then for twice as long each time; one that lied for the second.
"""
PEER_RETURN_S = 10.0
"""A peer that has proved itself is asked for more and more of its chunks, and after this time for all."""
PEER_PROBE_INTERVAL_S = 0.25
"""How often it is looked whether a peer may prove itself."""
MASTER_POLL_S = 0.2
"""How often a process that waits to be the master of its node looks whether there is one."""
MASTER_PATIENCE_S = 2.0
"""A process with a smaller rank that lives is waited for this long, while its node has no master."""
MASTER_SILENCE_S = 20.0
"""A master that says nothing to the processes of its node for so long is killed. By then it is off the roll, too."""
JOB_MASTER_WAIT_S = 20.0
"""The first read of a process waits so long until its node has a master, and the master its members."""
JOB_START_INTERVAL_S = 5.0
"""The programs of a node start a daemon no more often; it takes a lock of its own as soon as it runs."""
NODE_LOCK_TIMEOUT_S = 5.0
"""A file of locks that another process is removing is waited for this long. It takes no time, unless that is stopped.
"""
JOB_IDLE_S = 30.0
"""A daemon that programs of a job have started ends when none of them has been on the node for this long."""
JOB_IDLE_POLL_S = 1.0
"""How often it looks."""
NOTES_AT_ONCE_MAX = 8_192
"""Notes of a dataset that are read at one instant."""
NOTE_TRIES_MAX = 256
"""A change of notes that others were ahead of is worked out anew this often. Each time, one of them was done."""

# Library ----------------------------------------------------------------------------------------------
LIBRARY_MEMORY_BYTES = 512 * MIB
"""Chunks that a process keeps of each dataset that it reads, unless the user says otherwise."""

NODE_PACKET_BYTES_MAX = 2 * KIB
"""One message between a reader and the daemon of its node."""
NODE_HELLO_TIMEOUT_S = 2.0
"""A daemon that does not greet a reader within this time is as good as none."""
NODE_CHUNK_TIMEOUT_S = 15.0
"""A daemon that does not bring a chunk within this time is not waited for any longer."""
NODE_AVOIDED_S = 5.0
"""A reader that found no daemon, or one that failed, goes to the server by itself for so long."""
NODE_MEMBERS_INTERVAL_S = 1.0
"""A process of a job asks the master of its node for the members no more often than this."""
NODE_READERS_MAX = 1024
"""Connections of readers that one daemon has."""

SPARE_SHARE = 0.25
DESCRIPTORS_SPARE_MAX = PEER_CLIENTS_MAX + 2 * NODE_READERS_MAX
MAPPINGS_SPARE_MAX = 4_096
"""Each chunk on a shelf is a descriptor and a mapping. This share of what a process may have of either, and no more
than so many, is not for chunks, but for connections and what is handed out; for libraries, threads, and what is on its
way.
"""

# Mount ------------------------------------------------------------------------------------------------
READ_TIMEOUT_S = 30.0
"""A read through the mount is answered within this time, with its bytes or with EIO."""
READ_BYTES_MAX = 1 * MIB
READ_AHEAD_BYTES = 2 * CHUNK_TARGET_BYTES
"""How far ahead of a reader who reads a file in order its chunks are fetched."""
FETCHES_AT_ONCE_MAX = 8
"""Chunks that a mount has on their way at one moment."""
MOUNT_MEMORY_BYTES = 1 * GIB
"""Chunks that a mount holds in memory, unless the user says otherwise."""
MOUNT_MEMORY_BYTES_MIN = 2 * CHUNK_TARGET_BYTES
MOUNT_START_TIMEOUT_S = SNAPSHOT_BUILD_TIMEOUT_S + 60.0
"""A mount that is not there by then is given up."""
UPGRADE_TIMEOUT_S = 120.0
"""A new daemon that has not taken over by then is not waited for."""
LOGBOOK_BYTES_MAX = 8 * MIB
"""What a daemon writes down for the next one; if there is more, the next one begins anew."""
PAGE_HELPER_END_S = 5.0
"""A process that fills the page cache is killed when it does not end within this time."""
PAGE_HELPER_ORDER_S = 45
"""It is killed when one order takes longer: a page that it waits for is free when its read has failed, after 30 s."""
PAGE_HELPER_STARTS_MAX = 16
"""A mount does without that process once it had to be started so many times."""
JOB_GATHER_TIMEOUT_S = 60.0
"""A node waits so long for the others of its job, and then goes on with those who are there."""
WARM_LOADS_AT_ONCE_MAX = 2
"""Chunks that a node fetches before anybody asks for them, at one moment, beside those that readers wait for."""
WARM_SHARE = 0.8
"""Of its time that each of these loads is at work; then it rests, whoever else uses the network and the store."""
WARM_QUIET_S = 0.1
"""Nothing is fetched ahead until nobody has waited for a fetch of his own for so long."""
WARM_AGAIN_S = 5.0
"""After a load that failed; it is tried again when all others are done."""
WARMTH_TIMEOUT_S = 1.5
"""How long the nodes of a job are waited for, together, when they are asked how much of it is in their memory."""
WARMTH_INTERVAL_S = 1.0
"""They are asked no more often, nor more often than JOB_MESSAGES_PER_S allows for so many."""
CACHE_STOP_TIMEOUT_S = 10.0
UNMOUNT_TIMEOUT_S = 10.0
UNMOUNT_BUSY_TIMEOUT_S = 1.0
"""A mount whose files are open for longer than this is not unmounted, unless lazily."""
MOUNT_PROBE_TIMEOUT_S = 2.0
"""A mount that does not answer `statfs` within this time is alive, but stuck."""
CONTROL_FILES_MAX = 1024
"""Files of `.dieselfs/` that the kernel holds; with more, the oldest cannot be read any more."""
SHUFFLES_KEPT_MAX = 16
"""Lists of files that `.dieselfs/shuffle/` keeps for those who ask for the same again; 4 bytes a file."""
ERRORS_KEPT_MAX = 256
"""Lines of `.dieselfs/errors`."""

assert CHUNK_TARGET_BYTES <= CHUNK_PAYLOAD_BYTES_MAX
assert PATH_BYTES_MAX < CHUNK_PATH_BYTES_MAX < CHUNK_HEADER_BYTES_MAX
assert HANDSHAKE_FRAME_BYTES_MAX <= FRAME_BYTES_MAX
assert INLINE_FILE_BYTES_MAX < FRAME_BYTES_MAX
assert INLINE_FILE_BYTES_MAX <= CHUNK_PAYLOAD_BYTES_MAX
assert RANGES_PER_REQUEST_MAX * 8 < FRAME_BYTES_MAX
assert CHUNK_ENTRIES_MAX <= VERSIONS_PER_REQUEST_MAX
assert LISTING_ENTRIES_MAX * (NAME_BYTES_MAX + 128) < FRAME_BYTES_MAX
assert LISTING_ENTRIES_MAX * 128 + LISTING_BYTES_MAX + PATH_BYTES_MAX + NAME_BYTES_MAX < FRAME_BYTES_MAX
assert REPORT_LINES_MAX * (REPORT_LINE_BYTES_MAX + 128) < FRAME_BYTES_MAX
assert LISTING_ENTRIES_MAX <= REDIS_SCAN_ENTRIES
assert REDIS_PATIENCE_S + REDIS_REQUEST_TIMEOUT_S < REQUEST_TIMEOUT_S
assert REDIS_PATIENCE_S < SERVER_SILENCE_S  # a server that finds Redis silent answers before it is given up
assert REDIS_PATIENCE_S + REDIS_REQUEST_TIMEOUT_S < METADATA_AWAY_S
assert SERVER_SILENCE_S + max(SERVER_GONE_S, CONNECT_TIMEOUT_S) < READ_PATIENCE_S < READ_TIMEOUT_S
assert 2 * ETCD_TIMEOUT_S < SERVER_LEASE_S
assert JOB_NODES_MAX < NOTES_AT_ONCE_MAX <= REDIS_SCAN_ENTRIES
assert JOB_NAME_CHARACTERS_MAX + NODE_NAME_CHARACTERS_MAX < MEMBER_BYTES_MAX
assert JOB_LEASE_INTERVALS * JOB_INTERVAL_S_MIN < JOB_LEASE_S_MIN
assert 2 * JOB_ANSWER_TIMEOUT_S < JOB_LEASE_S_MIN
assert PEER_ANSWER_S < PEER_SILENCE_S / 2  # an answer that is only late is not taken for silence
assert FETCHES_AT_ONCE_MAX * PEER_ANSWER_S < PEER_AVOIDED_S  # what several callers want is fetched together
assert PEER_CONNECT_TIMEOUT_S + PEER_SILENCE_S < PEER_CALL_TIMEOUT_S < PEER_PATIENCE_S
assert PEER_PATIENCE_S + PEER_CALL_TIMEOUT_S < READ_TIMEOUT_S
assert JOB_MASTER_WAIT_S + 2 * NODE_HELLO_TIMEOUT_S < READ_TIMEOUT_S
assert JOB_LEASE_S_MIN + JOB_INTERVAL_S_MIN < MASTER_SILENCE_S
assert JOB_NODES_MAX <= PEER_CLIENTS_MAX
assert PEER_CHUNKS_MAX * 8 + RANGES_PER_REQUEST_MAX * 8 < FRAME_BYTES_MAX
