// The RPC of dieselfs, between clients and the chunk server. See docs/reference/rpc.md.
//
// Transport: framed (4 bytes big-endian length, then one message), binary protocol, strict. A reply that has a field
// `bulk_length` is followed on the same connection by that many raw bytes; so is a call with such an argument. All
// integers in packed binaries are little-endian.
//
// The first two calls on a connection are `hello` and `prove`; nothing else is answered before them.

namespace py dieselfs

const i32 PROTOCOL_VERSION = 2

/** An error of the server. Codes: dieselfs/errors.py, CODE_BY_ERROR. The message is for people. */
exception Refusal {
  1: required i32 code
  2: required string message
}

/** `is_trusted`: the caller runs as the server's user, on a Unix socket; `prove` is not needed. */
struct Challenge {
  1: required binary server_nonce
  2: required bool is_trusted
}

/** The server's proof that it knows the user's key. For a token: the user, and until when the new key counts. */
struct Welcome {
  1: required binary proof
  2: string user = ""
  3: i64 expires_s = 0
}

struct DatasetInfo {
  1: required string name
  2: required binary dataset_id
  3: required i64 generation
  4: required i64 updated_ns
  5: required i64 files
  6: required i64 total_bytes
  7: required i64 chunks
}

/** `op`: 1 file, 2 folder, 3 symbolic link. `name` is the last part of the path. */
struct EntryInfo {
  1: required binary name
  2: required i32 op
  3: required i32 mode
  4: required i64 mtime_ns
  5: required i64 size
  6: required binary target
}

/**
 * `bulk_length` is 0 if `digest` is the `known_digest` of the call. If `base_digest` is not empty, it is one of the
 * `bases` of the call, and the bulk bytes are the delta from that snapshot. `statement`: of freshness, if the newest
 * was asked for.
 */
struct SnapshotInfo {
  1: required i64 generation
  2: required i64 updated_ns
  3: required binary digest
  4: required i64 bulk_length
  5: optional binary base_digest
  6: optional binary statement
}

/** An interrupted upload. `version` 0: there is none. `extents`: pairs of u64 place, u64 length; `digests`: of each. */
struct PendingInfo {
  1: required i64 version
  2: required i64 size
  3: required i64 mtime_ns
  4: required binary extents
  5: optional binary digests
}

/** `table_length`: of the table of frames at the head of a compressed payload; 0 or missing for plain bytes. */
struct Bulk {
  1: required i64 bulk_length
  2: optional i64 table_length
}

/**
 * Where the payload is in the file whose descriptor comes with this reply. Without `is_file` there is no descriptor,
 * and this server passes none for any chunk. `checksums`: of the blocks, as those of `get_block_checksums`.
 */
struct PayloadFile {
  1: required bool is_file
  2: required i64 start
  3: required i64 length
  4: optional binary checksums
}

/** As many descriptors come with the reply, in this order. */
struct PayloadFiles {
  1: required list<PayloadFile> files
}

/**
 * A payload in sealed memory, whose descriptor comes with this reply. `place`: of its chunk in the request. `digest`: of
 * the payload; the server has verified it. `is_kept`: it stays in the memory of the server while that has readers of the
 * dataset.
 */
struct SharedPayload {
  1: required i32 place
  2: required i64 length
  3: required binary digest
  4: required bool is_kept
}

/** As many descriptors come with the reply, in this order. */
struct SharedPayloads {
  1: required list<SharedPayload> payloads
}

/** Times in seconds since 1970; `expires_s` 0 means never. */
struct KeyInfo {
  1: required string key_id
  2: required i64 created_s
  3: required i64 expires_s
  4: map<string, string> grants = {}
}

/** `grants`: dataset name, or "*" for all, to "read", "write" or "admin". */
struct UserInfo {
  1: required string name
  2: required list<KeyInfo> keys
  3: required map<string, string> grants
  4: bool is_barred = false
  5: list<string> groups = []
}

/** `members`: names of users; of the group "everyone" none, as it has all. `grants`: as of a user. */
struct GroupInfo {
  1: required string name
  2: required list<string> members
  3: required map<string, string> grants
}

/**
 * What a dataset takes, or all datasets of their owner. `kind`: "dataset" or "user"; `owner`: of a dataset, or
 * empty, also to a caller who may only read. `total_bytes`: of the files; `stored_bytes`: of all chunks, also of what
 * was replaced or deleted. Quotas: -1 for none.
 * `read_bytes`, `written_bytes`: sent and received by servers, for the dataset; of a user, for all datasets.
 */
struct UsageInfo {
  1: required string kind
  2: required string name
  3: required string owner
  4: required i64 files
  5: required i64 total_bytes
  6: required i64 stored_bytes
  7: required i64 quota_bytes
  8: required i64 quota_files
  9: required i64 read_bytes
  10: required i64 written_bytes
}

/** `account`: "user:NAME", "user:*" or "dataset:NAME". -1: no limit. */
struct QuotaInfo {
  1: required string account
  2: required i64 stored_bytes
  3: required i64 files
}

/** The most that each server moves for a user ("*": for each one without a rate). -1: no limit. */
struct RateInfo {
  1: required string user
  2: required i64 bytes_per_s
  3: required i64 requests_per_s
  4: required i64 job_bytes_per_s
}

struct PurgeReport {
  1: required i64 chunks_rewritten
  2: required i64 chunks_removed
  3: required i64 chunks_waiting
  4: required i64 bytes_freed
  5: required list<string> held_by
}

/** `needed_bytes`: what it takes beside the old chunks, until a purge. */
struct RepackReport {
  1: required i64 chunks
  2: required i64 chunks_kept
  3: required i64 chunks_written
  4: required i64 files
  5: required i64 needed_bytes
  6: required i64 generation
}

/** `skipped` entries exist already, or are kept. `paths`: the first new paths, in a dry run. */
struct CopyReport {
  1: required i64 copied
  2: required i64 copied_bytes
  3: required i64 skipped
  4: required i64 deleted
  5: required i64 generation
  6: required list<binary> paths
}

/** A source of attached chunks. `trouble`: why it cannot be read now, or empty. */
struct AttachedInfo {
  1: required binary location
  2: required i64 size_bytes
  3: required string mark
  4: required i64 chunks
  5: required i64 files
  6: required i64 total_bytes
  7: required string trouble
}

struct DetachReport {
  1: required i64 entries
  2: required i64 sources
  3: required i64 generation
}

/** `updated_ns`: when the generation was made. */
struct TagInfo {
  1: required string name
  2: required i64 generation
  3: required i64 updated_ns
  4: required i64 files
  5: required i64 total_bytes
  6: required binary digest
}

/** docs/guide/sites.md. `newest`: generation of the origin when it was last seen; `current_s`: when it was shown last. */
struct MirrorInfo {
  1: required string dataset
  2: required string origin
  3: required i64 generation
  4: required i64 updated_ns
  5: required i64 newest
  6: required i64 current_s
  7: required binary digest
  8: required binary signer
  9: required binary signature
}

struct RebuildReport {
  1: required i64 chunks
  2: required i64 entries
  3: required i64 files
  4: required i64 generation
  5: required list<string> damaged
}

/** `kind`: chunk, file, metadata, snapshot, name, clock. */
struct Problem {
  1: required string kind
  2: required string what
  3: required bool is_mended
}

struct FsckReport {
  1: required i64 chunks
  2: required i64 entries
  3: required i64 total_bytes
  4: required i64 problem_count
  5: required i64 unmended_count
  6: required list<Problem> problems
}

/** `state`: ok, warning or failure. `fix`: what to change, or empty. */
struct CheckInfo {
  1: required string name
  2: required string state
  3: required string text
  4: required string fix
}

struct ServerCheck {
  1: required i64 time_ns
  2: required list<CheckInfo> checks
}

struct StatusInfo {
  1: required string version
  2: required i64 started_s
  3: required string store
  4: required string metadata
  5: required map<string, i64> metrics
  /** Calls, times and processors of the server, as JSON of `dieselfs.telemetry.registry.Report`. */
  6: optional binary report
}

/**
 * The membership list of a job. If its version is not `known_version`, all members follow, each with its length before
 * it (u16). The caller calls again after `interval_ms`.
 */
struct MembershipInfo {
  1: required i64 version
  2: required i32 interval_ms
  3: required i64 bulk_length
}

/**
 * `states` has a byte for each requested chunk. 0: its extents follow; 1: in flight, request it again; 2: this node does
 * not fetch it, request it from a server.
 */
struct Extents {
  1: required binary states
  2: required i64 bulk_length
}

/** `pinned_bytes` of the `wanted_bytes` that a node of a job can pin of its own chunks are in memory. */
struct WarmthInfo {
  1: required i64 pinned_bytes
  2: required i64 wanted_bytes
  3: required i64 damaged_chunks
}

/** A lease of a reader on a generation. `holder`: user, node, process and mount point. */
struct PinInfo {
  1: required string holder
  2: required i64 generation
  3: required i64 expires_ns
}

/** The web page of a server. `token`: a browser logs in with it, once. `fingerprint`: of the page's certificate. */
struct PageLink {
  1: required string address
  2: required string token
  3: required binary fingerprint
  4: required i32 expires_s
}

/** docs/reference/rpc.md, "Authentication". */
service Handshake {
  Challenge hello(1: i32 protocol_version, 2: string user, 3: string key_id, 4: binary client_nonce)
    throws (1: Refusal refusal)
  /** With a `token` of an identity provider, the caller gets the key that `verifier` and `server_key` check. */
  Welcome prove(1: binary proof, 2: binary token = "", 3: binary verifier = "", 4: binary server_key = "")
    throws (1: Refusal refusal)
}

/** Calls between the nodes of a job (docs/internals/cache.md, "Transfer"). `digest`: of the snapshot that the job reads. */
service Peer extends Handshake {
  /** Succeeds on a healthy node that reads the same snapshot. */
  void ping(1: binary digest) throws (1: Refusal refusal)
  /** `is_to_warm`: start to fetch what the node can pin, in the background. */
  WarmthInfo get_warmth(1: binary digest, 2: bool is_to_warm) throws (1: Refusal refusal)
  /** Followed by a bit for each chunk of the snapshot, the first in the lowest of a byte: whether it is in memory. */
  Bulk get_held(1: binary digest) throws (1: Refusal refusal)
  /** Followed by the metrics of the node as JSON, or with `is_history` by what they were in a window. */
  Bulk get_report(1: binary digest, 2: bool is_history, 3: i64 first_s, 4: i64 last_s) throws (1: Refusal refusal)
  /**
   * Followed by extents, joined. `chunks`: u32 numbers of chunks in the snapshot; `counts`: for each chunk a u32, the
   * number of its `ranges`, 0 for the whole payload; `ranges`: pairs of u32 offset, u32 length. `is_shared_plan`: other
   * readers will soon request the rest of these chunks.
   */
  Extents get_extents(1: binary digest, 2: binary chunks, 3: binary counts, 4: binary ranges, 5: bool is_shared_plan)
    throws (1: Refusal refusal)
  /**
   * Followed by the files that this node keeps in `store` for the ranks or mounts of its job, joined. `files`: u32
   * numbers in the snapshot; `states` has a byte for each: 0, it follows; 1, it is not here, and would be kept; 2, it is
   * not here.
   */
  Extents get_samples(1: binary digest, 2: string store, 3: binary files) throws (1: Refusal refusal)
  /** Keep in `store` the files whose bytes follow, joined, as far as there is space, if the node has such a store. */
  void put_samples(1: binary digest, 2: string store, 3: binary files, 4: i64 bulk_length) throws (1: Refusal refusal)
  /**
   * Followed by u32 numbers of files and as many u32 scores, which count for all mounts of the job. `losses`: how many
   * there were; `loss_sum`: a float64; `accuracy`: a float64 or nothing, the last one on validation data.
   */
  void put_scores(1: binary digest, 2: binary loss_sum, 3: i64 losses, 4: i64 bulk_length,
    5: binary accuracy = "") throws (1: Refusal refusal)
  /**
   * Followed by the order of an epoch by these scores: u32 numbers of files. `seed`, `epoch`: decimal numbers. With
   * `has_scores` the u32 scores of all files below `folder` may follow, by number of the file.
   */
  Bulk get_order(1: binary digest, 2: binary folder, 3: string seed, 4: string epoch, 5: bool has_scores = false)
    throws (1: Refusal refusal)
}

service ChunkServer extends Handshake {
  // -- datasets --
  /** `dataset_id`: for a mirror, that of its origin; empty: a new one. */
  DatasetInfo create_dataset(1: string name, 2: binary dataset_id = "") throws (1: Refusal refusal)
  DatasetInfo get_dataset(1: string name) throws (1: Refusal refusal)
  list<DatasetInfo> list_datasets() throws (1: Refusal refusal)
  /** Names of datasets that have chunks, but no metadata. */
  list<string> list_lost_datasets() throws (1: Refusal refusal)
  /** `dataset_id`: refuse to drop another dataset, which has been made under the name since; empty: any. */
  void drop_dataset(1: string name, 2: binary dataset_id = "") throws (1: Refusal refusal)

  // -- maintenance (docs/guide/recovery.md) --
  /** `with_progress`, here and below: progress before the reply, in chunks, as of copy_entries. */
  PurgeReport purge(1: string dataset, 2: i64 grace_s, 3: bool is_dry_run, 4: bool with_progress = 0)
    throws (1: Refusal refusal)
  /** Sources of attached chunks that sort behind `after`, 100 of them. */
  list<AttachedInfo> list_attached(1: string dataset, 2: binary after) throws (1: Refusal refusal)
  /** Delete the entries that come from the sources at or below a location. */
  DetachReport detach(1: string dataset, 2: binary location) throws (1: Refusal refusal)
  /** Copy the bytes of attached chunks into ordinary ones, as purge does with live entries. Returns their number. */
  i64 copy_attached(1: string dataset, 2: bool is_dry_run, 3: bool with_progress = 0) throws (1: Refusal refusal)
  /**
   * Followed by the stratum of each extent of the files of `generation`, in the order of chunks and offsets: 2 bytes,
   * the lowest first. Copy the files of chunks that do not have the strata in proportion into chunks that do.
   * `chunk_bytes`: of the new chunks; 0: the default.
   */
  RepackReport repack(1: string dataset, 2: i64 generation, 3: i64 seed, 4: bool is_dry_run, 5: i64 bulk_length,
    6: bool with_progress = 0, 7: i64 chunk_bytes = 0) throws (1: Refusal refusal)
  /** Metadata from chunks: all of them, or those made at `since_s` or later; -1: all. */
  RebuildReport rebuild(1: string dataset, 2: i64 since_s, 3: bool with_progress = 0, 4: bool is_forced = 0)
      throws (1: Refusal refusal)
  FsckReport fsck(1: string dataset, 2: bool is_deep, 3: bool is_repair, 4: bool with_progress = 0)
    throws (1: Refusal refusal)
  /** What all chunks of a dataset take in the object store, in bytes: one look-up for each. */
  i64 object_bytes(1: string dataset) throws (1: Refusal refusal)
  /** Keep a generation (0: the newest) under a name. */
  TagInfo put_tag(1: string dataset, 2: string tag, 3: i64 generation) throws (1: Refusal refusal)
  /** `with_kept`: also, with empty names, the generations whose snapshots this server has. */
  list<TagInfo> list_tags(1: string dataset, 2: bool with_kept) throws (1: Refusal refusal)
  void delete_tag(1: string dataset, 2: string tag) throws (1: Refusal refusal)
  /**
   * Make a dataset without chunks a mirror of `origin`, or note that it is one, and the newest generation that the origin
   * has.
   */
  MirrorInfo keep_mirror(1: string dataset, 2: string origin, 3: i64 generation) throws (1: Refusal refusal)
  /**
   * Followed by a part of a snapshot of the origin, all of whose chunks are stored: 0 to `parts` - 1, in order. With the
   * last one, the mirror shows it from now on.
   */
  MirrorInfo put_mirror(1: string dataset, 2: i64 bulk_length, 3: i32 part = 0, 4: i32 parts = 1)
    throws (1: Refusal refusal)
  /** Make a mirror a dataset of its own, with the files of the generation that it shows; returns what it was. */
  MirrorInfo promote_mirror(1: string dataset) throws (1: Refusal refusal)
  /** The mirrors that the caller may read. */
  list<MirrorInfo> list_mirrors() throws (1: Refusal refusal)
  /** Protect the chunks of a snapshot from purges for `lease_s`; 0: end the pin. */
  void pin(1: string dataset, 2: string holder, 3: i64 generation, 4: i64 updated_ns, 5: i64 lease_s)
    throws (1: Refusal refusal)
  /** The pins that have not expired; to a caller who may only read, its own. */
  list<PinInfo> list_pins(1: string dataset) throws (1: Refusal refusal)

  /** The record of the keys of an encrypted dataset, else empty. */
  binary get_keys(1: string dataset) throws (1: Refusal refusal)
  /** Create that record (`known` is empty), or replace the `known` one. */
  void put_keys(1: string dataset, 2: binary content, 3: binary known) throws (1: Refusal refusal)

  // -- jobs (docs/internals/cache.md) --
  /**
   * Join a job (`known_version` 0) or renew the lease. `member`: a proof and the member. Followed by the members if they
   * changed. `progress`: for people who look at the job (`cluster/node_progress.py`), at most 2 KiB; now and then.
   */
  MembershipInfo join_job(1: string dataset, 2: string job, 3: binary fingerprint, 4: i64 generation, 5: binary digest,
    6: binary member, 7: i64 known_version, 8: binary progress = "") throws (1: Refusal refusal)
  void leave_job(1: string dataset, 2: string job, 3: binary fingerprint, 4: binary member)
    throws (1: Refusal refusal)

  // -- writing --
  /** The first of `count` consecutive versions for new entries. */
  i64 reserve_versions(1: string dataset, 2: i32 count) throws (1: Refusal refusal)
  /**
   * Followed by the chunk. Returns the dataset's new generation, when the chunk is durable and applied. `key_id`: of the
   * key with which an encrypted dataset's chunk was encrypted.
   */
  i64 put_chunk(1: string dataset, 2: binary chunk_id, 3: i64 bulk_length, 4: binary key_id = "")
    throws (1: Refusal refusal)

  /**
   * Copy a file, a link, or a folder with its content; with `is_move`, delete it then. `tag`: of the source, or empty.
   * `existing`: what to do with files of other content at the new paths; 0 refuse, 1 keep, 2 replace. `is_merged`: the
   * new path may be a folder that exists. `selection`: a bit for each node of the source's snapshot, of `generation` or
   * of the tag, lowest bits first; empty: copy all. Messages with progress come before the reply.
   */
  CopyReport copy_entries(1: string dataset, 2: string tag, 3: binary path, 4: string target_dataset,
    5: binary target_path, 6: i32 existing, 7: bool is_move, 8: bool is_merged, 9: bool is_dry_run,
    10: i64 generation, 11: binary selection) throws (1: Refusal refusal)

  /** What is stored of a file at `path` of which extents are missing (the newest, if there are several). */
  PendingInfo get_pending(1: string dataset, 2: binary path) throws (1: Refusal refusal)

  // -- reading --
  /**
   * Followed by the snapshot file, or by a delta. `generation` 0: the newest. With a `tag`, the generation that it names.
   * `bases`: digests of snapshots that the caller has, 32 bytes each, at most 64: the server may send a delta.
   */
  SnapshotInfo get_snapshot(1: string dataset, 2: i64 generation, 3: binary known_digest, 4: string tag,
    5: binary bases) throws (1: Refusal refusal)
  /**
   * Followed by the payload of the chunk; for a caller that `takes_frames`, by the table of frames and the stored payload
   * if the chunk is compressed. The table is a map with the fields of the header.
   */
  Bulk get_payload(1: string dataset, 2: binary chunk_id, 3: bool takes_frames = false) throws (1: Refusal refusal)
  /**
   * The same without the bytes: the first byte of the reply carries a descriptor (SCM_RIGHTS) of the file with the
   * payload, open for reading. Only for trusted callers, on a Unix socket. `with_checksums`: the reply has also the
   * checksums of the blocks, if the server has kept them.
   */
  PayloadFile open_payload(1: string dataset, 2: binary chunk_id, 3: bool with_checksums = false)
    throws (1: Refusal refusal)
  /**
   * The same for chunks that the caller needs next, of which this one call opens the first ones: those before the first
   * that has no file in this store, or cannot be opened. `chunk_ids`: 16 bytes each, at most 64. `with_checksums`: as for
   * `open_payload`; those of the first chunks, up to 1 MiB in all.
   */
  PayloadFiles open_payloads(1: string dataset, 2: binary chunk_ids, 3: bool with_checksums = false)
    throws (1: Refusal refusal)
  /**
   * Payloads in memory that is shared with the caller: the first byte of the reply carries their descriptors
   * (SCM_RIGHTS). `chunk_ids`: 16 bytes each, at most 64. The first one is shared if it is in memory, or worth it for a
   * caller who needs `wanted_bytes` of it; each of the others if it is in memory and kept. Only for trusted callers, on
   * a Unix socket.
   */
  SharedPayloads share_payloads(1: string dataset, 2: binary chunk_ids, 3: i64 wanted_bytes)
    throws (1: Refusal refusal)
  /** Followed by ranges of the payload, joined. `ranges`: pairs of u32 offset, u32 length. */
  Bulk get_ranges(1: string dataset, 2: binary chunk_id, 3: binary ranges) throws (1: Refusal refusal)
  /** Followed by the xxh3-64 (u64) of each block of 16 KiB of the payload, which the server has verified. */
  Bulk get_block_checksums(1: string dataset, 2: binary chunk_id) throws (1: Refusal refusal)

  // -- without chunks and snapshots, for clients in other languages and for listings --
  EntryInfo stat(1: string dataset, 2: binary path) throws (1: Refusal refusal)
  /** Entries of a folder whose names sort behind `after`, at most `limit`. */
  list<EntryInfo> list_folder(1: string dataset, 2: binary path, 3: binary after, 4: i32 limit)
    throws (1: Refusal refusal)
  /** Content of a file of at most 1 MiB. */
  binary read_file(1: string dataset, 2: binary path) throws (1: Refusal refusal)
  /** Store a file of at most 1 MiB. Returns the dataset's new generation. */
  i64 write_file(1: string dataset, 2: binary path, 3: binary content, 4: i32 mode, 5: i64 mtime_ns)
    throws (1: Refusal refusal)

  // -- users --
  /** The pin of the servers of this store, for key files: SHA-256 of their public key. */
  binary server_pin(1: bool with_next = 0) throws (1: Refusal refusal)
  /**
   * Adds a key to the user (creating the user). The caller has made it; the server gets what checks its proofs. May be
   * repeated.
   */
  void add_key(1: string user, 2: string key_id, 3: binary verifier, 4: binary server_key, 5: i64 expires_s)
    throws (1: Refusal refusal)
  /**
   * As `add_key`, for the caller, and for a key that has `right` ("read" or "write") on these datasets, as far as the
   * caller has it, no other rights, and an end. It adds and changes no keys. Servers before 0.2 refuse the call.
   */
  void add_token(1: string key_id, 2: binary verifier, 3: binary server_key, 4: i64 expires_s,
    5: list<string> datasets, 6: string right) throws (1: Refusal refusal)
  /** Limits the life of a key of the caller: it expires at `expires_s`, unless it already expires earlier. */
  void expire_key(1: string key_id, 2: i64 expires_s) throws (1: Refusal refusal)
  /** Removes one key, or with an empty `key_id` the user. A user may remove own keys. */
  void remove_key(1: string user, 2: string key_id) throws (1: Refusal refusal)
  /** Refuses all keys of a user, or accepts them again. */
  void bar_user(1: string user, 2: bool is_barred) throws (1: Refusal refusal)
  /** `right`: "read", "write", "admin", or "none" to take it away. `user`: also "group:NAME". */
  void grant(1: string user, 2: string dataset, 3: string right) throws (1: Refusal refusal)
  /** Of callers who are no administrators, only themselves. */
  list<UserInfo> list_users() throws (1: Refusal refusal)
  /** Adds users, at most 50, to a group, which is created if it is missing. */
  void add_members(1: string group, 2: list<string> users) throws (1: Refusal refusal)
  /** Removes users, at most 50, from a group; an empty list removes the group. */
  void remove_members(1: string group, 2: list<string> users) throws (1: Refusal refusal)
  list<GroupInfo> list_groups() throws (1: Refusal refusal)

  // -- quotas --
  /** Of one dataset or, if it is empty, of all that the caller may read; then also of users. */
  list<UsageInfo> usage(1: string dataset) throws (1: Refusal refusal)
  /** `account` as in QuotaInfo; -1: no limit. Without limits, the quota is removed. */
  void set_quota(1: string account, 2: i64 stored_bytes, 3: i64 files) throws (1: Refusal refusal)
  list<QuotaInfo> list_quotas() throws (1: Refusal refusal)
  /** As in RateInfo; without limits, the rate is removed. */
  void set_rate(1: string user, 2: i64 bytes_per_s, 3: i64 requests_per_s, 4: i64 job_bytes_per_s)
    throws (1: Refusal refusal)
  list<RateInfo> list_rates() throws (1: Refusal refusal)
  /** Makes a dataset count towards the quota of a user; of none if `user` is empty. */
  void set_owner(1: string dataset, 2: string user) throws (1: Refusal refusal)

  StatusInfo status() throws (1: Refusal refusal)
  /** The server's clock; with `is_whole`, which needs an administrator, also what it finds in what it depends on. */
  ServerCheck check_server(1: bool is_whole) throws (1: Refusal refusal)

  // -- the web page --
  /** A link to the page, as the caller. An embedded server serves the page for `lease_s` from now. */
  PageLink open_page(1: i32 lease_s) throws (1: Refusal refusal)
  /** An embedded server serves the page for `lease_s` from now, 0: no longer. */
  void keep_page(1: i32 lease_s) throws (1: Refusal refusal)
}
