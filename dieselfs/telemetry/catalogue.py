"""The metrics that more than their owner needs, each declared once: kind, name, help, labels. No I/O.

The owner declares such a metric in the registry of its process (`Registry.declare`) and counts. Tools find it in a
report under the same object, so a wrong name is an error of types. Metrics that only people read, in statistics and in
Prometheus, are declared where they are counted (`Registry.counter` and the like).
"""

from dieselfs.telemetry.registry import LATENCY_BOUNDS_S, Family

# Processes.

UPTIME_S = Family("gauge", "uptime_s", "Age of the process.")
PROCESS_CPU_S = Family("counter", "process.cpu_s", "Processor time of the process.")
PROCESS_RUN_DELAY_S = Family(
    "counter", "process.run_delay_s", "Time for which the main thread was ready and waited for a processor."
)
MEMORY_ALLOTTED_BYTES = Family("gauge", "memory.allotted_bytes", "Limit of each part.", ("part",))
MEMORY_GRANTED_BYTES = Family("gauge", "memory.granted_bytes", "Memory that the daemon may use.")
MEMORY_USED_BYTES = Family("gauge", "memory.used_bytes", "Memory that each part uses.", ("part",))

# Reads of a mount.

READS_AT_ONCE = Family("counter", "reads.at_once", "Reads answered from memory.")
READS_FAILED = Family("counter", "reads.failed", "Reads that failed or were interrupted.")
READS_IN_PROGRESS = Family("gauge", "reads.in_progress", "Reads that wait now.")
READS_WAITED_S = Family(
    "histogram", "reads.waited_s", "Time that reads waited.", bounds=(0.001, 0.01, 0.1, 1.0, 10.0)
)
PAGE_CACHE_HITS = Family("counter", "page_cache.hits", "Planned files found in the page cache.")
PAGE_CACHE_PLANNED_FILES = Family(
    "counter", "page_cache.planned_files", "Planned files read: hits and misses."
)
PREFETCH_PUSHED_BYTES = Family("counter", "prefetch.pushed_bytes", "Bytes put into the page cache.")
PREFETCH_RECLAIMED_CHUNKS = Family(
    "counter", "prefetch.reclaimed_chunks", "Chunks of which stored files were found reclaimed by the kernel."
)
HIT_RATE_BEST_POSSIBLE = Family("gauge", "hit_rate.best_possible", "Share of the dataset that can be pinned.")
WORK_SPENT_S = Family("gauge", "work.spent_s", "Time of all threads for each cause of stalls.", ("cause",))
PLANS = Family("info", "plans", "Each plan that is read: its window and its readers.")

IMPORTANCE_READS = Family("gauge", "importance.reads", "Files of orders by importance that were read.")
IMPORTANCE_HITS = Family("gauge", "importance.hits", "Of them, those that were kept in memory.")
IMPORTANCE_FROM_PEERS = Family(
    "gauge", "importance.from_peers", "Of the hits, those that other nodes of the job kept."
)

# Where bytes come from.

DISK_FAILURES = Family("counter", "disk.failures", "Failures and timeouts of the disk.")
DISK_HIT_BYTES = Family("counter", "disk.hit_bytes", "Bytes that the disk of the node delivered.")
FETCHES_BLOCK_BYTES = Family("counter", "fetches.block_bytes", "Bytes of blocks that were fetched.")
FETCHES_CHUNK_BYTES = Family("counter", "fetches.chunk_bytes", "Bytes of chunks that were fetched whole.")
FETCHES_RANGE_BYTES = Family("counter", "fetches.range_bytes", "Bytes of extents that were fetched.")
NODE_CACHE_FETCHED_BYTES = Family(
    "counter", "node_cache.fetched_bytes", "Bytes of chunks from servers or the disk."
)
REQUESTED_NODE_BYTES = Family("counter", "requested.node_bytes", "Bytes from the own node.")
REQUESTED_PEER_BYTES = Family("counter", "requested.peer_bytes", "Bytes from other nodes.")
REQUESTED_SERVER_BYTES = Family("counter", "requested.server_bytes", "Bytes from servers.")

# The nodes of a job.

JOB_MEMBERS = Family("info", "job.members", "Nodes of the job.")
JOB_NAME = Family("info", "job.name", "Name of the job.")
JOB_SLOWEST = Family(
    "info", "job.slowest", "The node whose answers take longest, and their mean time in seconds."
)
JOB_SUSPECTED = Family("info", "job.suspected", "Suspected nodes.")
MEMBERSHIP_OUT = Family("info", "membership.out", "Why this node is out of its job, or empty.")
PEERS_FAILURES = Family("counter", "peers.failures", "Requests that brought nothing, or wrong bytes.")

# Servers.

CALLS_BEYOND_COST_S = Family(
    "counter",
    "calls.beyond_cost_s",
    "Processor time of threads for calls, beyond what the model of costs says.",
    ("method",),
)
PAYLOADS_SENT_BYTES = Family("counter", "payloads.sent_bytes", "Bytes of chunks sent.")
RATES_WAITED_S = Family("counter", "rates.waited_s", "Time that calls of users waited for their rates.")
READING_REQUESTS = Family("counter", "reading.requests", "Requests for ranges of chunk objects.")
READING_SHARED_REQUESTS = Family(
    "counter", "reading.shared_requests", "Requests served by the read of another."
)
READING_STORE_BYTES = Family("counter", "reading.store_bytes", "Bytes read from the object store.")
READING_WAITING = Family("gauge", "reading.waiting", "Reads of the object store that wait for others.")
RPC_ANSWERED_S = Family(
    "histogram", "rpc.answered_s", "Time until the reply of a call.", ("method",), LATENCY_BOUNDS_S
)
RPC_CONNECTIONS = Family("gauge", "rpc.connections", "Connections of clients.")
RPC_FAILURES = Family("counter", "rpc.failures", "Calls that failed or were refused.", ("outcome",))
RPC_RECEIVED_BYTES = Family("counter", "rpc.received_bytes", "Bulk bytes received over closed connections.")
RPC_REFUSED_LOGINS = Family("counter", "rpc.refused_logins", "Clients that proved no key.")
RPC_REQUESTS = Family("counter", "rpc.requests", "Calls of clients.")
RPC_SENT_BYTES = Family("counter", "rpc.sent_bytes", "Bulk bytes sent over closed connections.")
STORE_ANSWERED_S = Family(
    "histogram", "store.answered_s", "Time of calls of the object store.", ("operation",), LATENCY_BOUNDS_S
)
USERS_RECEIVED_BYTES = Family(
    "counter", "users.received_bytes", "Bulk bytes received from a user.", ("user",)
)
USERS_SENT_BYTES = Family("counter", "users.sent_bytes", "Bulk bytes sent to a user.", ("user",))
