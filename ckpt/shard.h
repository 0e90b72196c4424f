// A shard: the boxes that one writer contributes to a checkpoint, as chunked datasets of one HDF5 file,
// closed by the contiguous table /chunks (FORMAT.md, "Shards"). Written through libhdf5, read without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/chunk_codec.h"
#include "ckpt/contents.h"
#include "ckpt/digest.h"
#include "ckpt/env.h"
#include "ckpt/fingerprint.h"
#include "ckpt/open_files.h"
#include "ckpt/shard_options.h"
#include "ckpt/source.h"

namespace shardwright::ckpt {

/// A row of /chunks, packed little-endian as stored (24 bytes).
struct ChunkRow {
  std::uint64_t address = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t raw_bytes = 0;
  std::uint64_t xxh3_64 = 0;  // of the stored bytes
};

/// What is recorded about one box of a shard.
struct BoxRecord {
  std::string tensor;
  std::string kind;
  DType dtype = DType::f32;
  Dims global_shape;
  Box box;
  Dims chunk;
  std::string dataset;  // "/param/model.norm.weight", "...@1" for a further box of the same
  std::uint64_t first_chunk =
      0;  // row in /chunks of the box's first chunk; chunks in row-major order of the grid
  std::uint64_t chunks = 0;
  Fingerprint fingerprint;
};

/// What one writer says of a copy that another one writes, or that nobody does (replicas.h).
struct ReplicaRecord {
  std::string tensor;
  std::string kind;
  Box box;
  Fingerprint fingerprint;
};

/// The part record: what one writer vouches for. `error` non-empty means that it failed and the rest is
/// empty.
struct Part {
  std::string attempt;  // "<generation>-<save number>", or "r-<hash>" for a reshard
  int rank = 0;
  std::uint64_t step = 0;
  std::string error;
  bool has_file = false;  // false for a writer with nothing to write
  FileRecord file;
  std::vector<BoxRecord> boxes;
  std::vector<ReplicaRecord> replicas = {};
};

/// What is said to a save in work, from other threads.
struct SaveSignals {
  std::atomic<bool> cancel{false};  // nobody needs it any more
  std::atomic<bool> hurry{false};   // somebody waits for it: the thread that writes compresses too
};

/// Writes `directory`/rank-NNNNN.h5 with all items (none: no file), fsyncs it and the directory, and returns
/// the part to publish. Fault points shard.open, shard.mid, shard.close, shard.fsync. On any error the file
/// is abandoned and the Error thrown; nothing is retried. Error(exists) if the file is there already: another
/// process writes as the same rank; Error(peer) once `signals` (may be null) cancels it.
Part write_shard(Env& env, const std::string& directory, const std::string& attempt, int rank,
                 std::uint64_t step, std::span<const SaveItem> items, const ShardOptions& options,
                 ShardStats* stats, const SaveSignals* signals = nullptr);

/// What one of several writers in this process writes.
struct ShardJob {
  int rank = 0;
  std::vector<SaveItem> items;
};

/// What an open shard needs of memory, measured: libhdf5's buffers and tables, and for each item its records.
inline constexpr std::uint64_t kOpenShardBytes = 3u << 19;
inline constexpr std::uint64_t kShardItemBytes = 1u << 10;

/// Writes the shards of all `jobs` as write_shard() would each, at once: chunk by chunk in the order of
/// tensor, kind, row and column over all of them, so that a source that reads from elsewhere needs no more
/// than a band of rows in memory. Each is open only from its first chunk to its last. `done` is told of each
/// part, from any thread but never from two at a time, when its shard is durable; the directory is fsynced at
/// the end. Errors as of write_shard(), and what `done` throws.
void write_shards(Env& env, const std::string& directory, const std::string& attempt, std::uint64_t step,
                  std::span<const ShardJob> jobs, const ShardOptions& options, ShardStats* stats,
                  const std::function<void(const Part&)>& done, const SaveSignals* signals = nullptr);

/// Publishes `directory`/rank-NNNNN.part: temporary name, fsync, rename (fault point part.rename).
void publish_part(Env& env, const std::string& directory, const Part& part);
/// Name of the part record and of the shard of a rank.
std::string part_name(int rank);
std::string shard_name(int rank);
/// Error(missing) if it is not there, Error(damaged) if torn.
Part read_part(Env& env, const std::string& path);

/// The part that a writer of these items published before it was interrupted, if it is whole: it agrees with
/// the items, and the shard with its size, its table's digest and that of all bytes outside the chunks.
/// Errors but missing and damaged are thrown.
std::optional<Part> finished_shard(Env& env, const std::string& directory, const std::string& attempt,
                                   int rank, std::uint64_t step, std::span<const SaveItem> items);

/// Chunks of a box in row-major order of the chunk grid: grid extents, and the clipped box of chunk `index`.
Dims chunk_grid(const Box& box, const Dims& chunk);
Box chunk_box(const Box& box, const Dims& chunk, std::uint64_t index);
/// How many chunks are the same in both boxes (of one tensor): elements and full extents.
std::uint64_t equal_chunks(const Box& a, const Dims& a_chunk, const Box& b, const Dims& b_chunk);
/// Whole rows up to kMaxChunkBytes, cutting along further dimensions only where one row exceeds it; into the
/// fewest chunks of equal extents.
Dims default_chunk(const Dims& box_shape, std::size_t element_size);

/// A shard for reading, its table verified. Thread-safe.
class ShardReader {
 public:
  /// Checks size and table digest against `record`; Error(missing | damaged) names the file. Its file is open
  /// only while `files`, which must outlive it, keeps it so.
  ShardReader(OpenFiles& files, const std::string& directory, FileRecord record);
  const FileRecord& record() const { return record_; }
  const std::vector<ChunkRow>& table() const { return table_; }
  /// Stored bytes of a chunk, checked against its XXH3-64; Error(damaged) names file and chunk.
  void read_stored(std::uint64_t chunk, std::vector<std::byte>& stored) const;
  /// Asks the system to fetch a chunk that will be read soon (ReadableFile::will_need); one that is not there
  /// is left to read_stored().
  void will_need(std::uint64_t chunk) const;
  /// Digest of all bytes outside the stored chunks, to compare with record().rest.
  Digest128 read_rest() const;

 private:
  std::string path_;
  FileRecord record_;
  OpenFiles& files_;
  std::vector<ChunkRow> table_;
};

}  // namespace shardwright::ckpt
