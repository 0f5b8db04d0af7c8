// The RPC of dieselfs, between clients and the chunk server. See docs/rpc.md.
//
// Transport: framed (4 bytes big-endian length, then one message), binary protocol, strict. A reply that has a field
// `bulk_length` is followed on the same connection by that many raw bytes; so is a call with such an argument. All
// integers in packed binaries are little-endian.
//
// The first two calls on a connection are `hello` and `prove`; nothing else is answered before them.

namespace py dieselfs

const i32 PROTOCOL_VERSION = 1

/** Every refusal. Codes: dieselfs/errors.py, CODE_BY_ERROR. The message is for people. */
exception Refusal {
  1: required i32 code
  2: required string message
}

/** `is_trusted`: the server knows the caller already (same user, on a Unix socket); `prove` is not needed. */
struct Challenge {
  1: required binary server_nonce
  2: required bool is_trusted
}

/** The server's own proof that it knows the user's key. */
struct Welcome {
  1: required binary proof
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

/** `bulk_length` is 0 if the caller has this digest already. */
struct SnapshotInfo {
  1: required i64 generation
  2: required i64 updated_ns
  3: required binary digest
  4: required i64 bulk_length
}

/** An interrupted upload. `version` 0: there is none. `pieces`: pairs of u64 place, u64 length. */
struct PendingInfo {
  1: required i64 version
  2: required i64 size
  3: required i64 mtime_ns
  4: required binary pieces
}

struct Bulk {
  1: required i64 bulk_length
}

/**
 * Where in the file that comes with this reply the payload is. Without `is_file` none comes, and this server will have
 * none for any chunk.
 */
struct PayloadFile {
  1: required bool is_file
  2: required i64 start
  3: required i64 length
}

/** Times in seconds since 1970; `expires_s` 0 means never. */
struct KeyInfo {
  1: required string key_id
  2: required i64 created_s
  3: required i64 expires_s
}

/** `grants`: dataset name, or "*" for all, to "read", "write" or "admin". */
struct UserInfo {
  1: required string name
  2: required list<KeyInfo> keys
  3: required map<string, string> grants
}

struct PurgeReport {
  1: required i64 chunks_rewritten
  2: required i64 chunks_removed
  3: required i64 chunks_waiting
  4: required i64 bytes_freed
}

/** `updated_ns`: when the generation came to be. */
struct TagInfo {
  1: required string name
  2: required i64 generation
  3: required i64 updated_ns
  4: required i64 files
  5: required i64 total_bytes
  6: required binary digest
}

struct RebuildReport {
  1: required i64 chunks
  2: required i64 entries
  3: required i64 files
  4: required i64 generation
  5: required list<string> damaged
}

/** `kind`: chunk, file, metadata, snapshot. */
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

struct StatusInfo {
  1: required string version
  2: required i64 started_s
  3: required i32 connections
  4: required i64 requests
  5: required i64 bulk_bytes_received
  6: required i64 bulk_bytes_sent
  7: required string store
  8: required string metadata
  9: required i64 payload_bytes_given
}

/**
 * The roll of a job. If its version is another one than the caller knows, all members follow, each with its length
 * before it (u16). The caller asks again after `interval_ms`.
 */
struct RollInfo {
  1: required i64 version
  2: required i32 interval_ms
  3: required i64 bulk_length
}

/**
 * Pieces of chunks, of those that `states` has 0 for: a byte for each chunk that was asked for. 1: not here yet, ask
 * again; 2: not to be had here, ask a server.
 */
struct Pieces {
  1: required binary states
  2: required i64 bulk_length
}

/** How much a node of a job has in memory for good, of what it can keep of its own chunks. */
struct WarmthInfo {
  1: required i64 kept_bytes
  2: required i64 wanted_bytes
  3: required i64 damaged_chunks
}

/** docs/rpc.md, "Who is calling". */
service Handshake {
  Challenge hello(1: i32 protocol_version, 2: string user, 3: string key_id, 4: binary client_nonce)
    throws (1: Refusal refusal)
  Welcome prove(1: binary proof) throws (1: Refusal refusal)
}

/** What the nodes of a job ask each other (docs/cache.md, "Transfer"). `digest`: of the snapshot that the job reads. */
service Peer extends Handshake {
  /** Answered by a node that is well, and reads the same. */
  void ping(1: binary digest) throws (1: Refusal refusal)
  /** `is_to_warm`: fetch what it can keep, in the background. */
  WarmthInfo get_warmth(1: binary digest, 2: bool is_to_warm) throws (1: Refusal refusal)
  /**
   * Followed by pieces, joined. `chunks`: u32 numbers of chunks in the snapshot; `counts`: for each a u32, how many of
   * `ranges` are its own, 0 for the whole payload; `ranges`: pairs of u32 offset, u32 length. `is_common`: others will
   * soon want the rest of these chunks.
   */
  Pieces get_pieces(1: binary digest, 2: binary chunks, 3: binary counts, 4: binary ranges, 5: bool is_common)
    throws (1: Refusal refusal)
}

service ChunkServer extends Handshake {
  // -- datasets --
  DatasetInfo create_dataset(1: string name) throws (1: Refusal refusal)
  DatasetInfo get_dataset(1: string name) throws (1: Refusal refusal)
  list<DatasetInfo> list_datasets() throws (1: Refusal refusal)
  void drop_dataset(1: string name) throws (1: Refusal refusal)

  // -- looking after datasets (docs/recovery.md) --
  PurgeReport purge(1: string dataset, 2: i64 grace_s, 3: bool is_dry_run) throws (1: Refusal refusal)
  /** Metadata from chunks: all of them, or those made at `since_s` or later; -1: all. */
  RebuildReport rebuild(1: string dataset, 2: i64 since_s) throws (1: Refusal refusal)
  FsckReport fsck(1: string dataset, 2: bool is_deep, 3: bool is_repair) throws (1: Refusal refusal)
  /** Keep a generation (0: the newest) under a name. */
  TagInfo put_tag(1: string dataset, 2: string tag, 3: i64 generation) throws (1: Refusal refusal)
  list<TagInfo> list_tags(1: string dataset) throws (1: Refusal refusal)
  void delete_tag(1: string dataset, 2: string tag) throws (1: Refusal refusal)
  /** Say that one reads a snapshot, for `lease_s` from now on; 0: no longer. */
  void pin(1: string dataset, 2: string holder, 3: i64 generation, 4: i64 updated_ns, 5: i64 lease_s)
    throws (1: Refusal refusal)

  // -- jobs (docs/cache.md) --
  /**
   * Become a member of a job (`known_version` 0), or stay one, and hear who else is. `member`: a proof and the member.
   * Followed by the members if they changed.
   */
  RollInfo join_job(1: string dataset, 2: string job, 3: binary fingerprint, 4: i64 generation, 5: binary digest,
    6: binary member, 7: i64 known_version) throws (1: Refusal refusal)
  void leave_job(1: string dataset, 2: string job, 3: binary fingerprint, 4: binary member)
    throws (1: Refusal refusal)

  // -- writing --
  /** The first of `count` consecutive versions for new entries. */
  i64 reserve_versions(1: string dataset, 2: i32 count) throws (1: Refusal refusal)
  /** Followed by the chunk. Returns the dataset's new generation, when the chunk is durable and its entries count. */
  i64 put_chunk(1: string dataset, 2: binary chunk_id, 3: i64 bulk_length) throws (1: Refusal refusal)

  /** What is stored of a file at `path` whose pieces are not all there yet (the newest, if several). */
  PendingInfo get_pending(1: string dataset, 2: binary path) throws (1: Refusal refusal)

  // -- reading --
  /** Followed by the snapshot file. `generation` 0: the newest. With a `tag`, what it names. */
  SnapshotInfo get_snapshot(1: string dataset, 2: i64 generation, 3: binary known_digest, 4: string tag)
    throws (1: Refusal refusal)
  /** Followed by the payload of the chunk. */
  Bulk get_payload(1: string dataset, 2: binary chunk_id) throws (1: Refusal refusal)
  /**
   * The same without the bytes: with the first byte of the reply comes a descriptor (SCM_RIGHTS) of a file that holds
   * them, open for reading. Only for callers who are trusted, on a Unix socket.
   */
  PayloadFile open_payload(1: string dataset, 2: binary chunk_id) throws (1: Refusal refusal)
  /** Followed by parts of the payload, joined. `ranges`: pairs of u32 offset, u32 length. */
  Bulk get_ranges(1: string dataset, 2: binary chunk_id, 3: binary ranges) throws (1: Refusal refusal)

  // -- without chunks and snapshots, for clients in other languages and for looking around --
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
  /** Adds a key to the user (creating the user). Returns the text of the key file; it is shown only now. */
  string add_key(1: string user, 2: i64 expires_s) throws (1: Refusal refusal)
  /** Removes one key, or with an empty `key_id` the user. */
  void remove_key(1: string user, 2: string key_id) throws (1: Refusal refusal)
  /** `right`: "read", "write", "admin", or "none" to take it away. */
  void grant(1: string user, 2: string dataset, 3: string right) throws (1: Refusal refusal)
  list<UserInfo> list_users() throws (1: Refusal refusal)

  StatusInfo status() throws (1: Refusal refusal)
}
