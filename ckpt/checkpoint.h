// A committed checkpoint open for reading: any box of any tensor, whatever layout wrote it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/contents.h"
#include "ckpt/env.h"
#include "ckpt/error.h"
#include "ckpt/source.h"

namespace shardwright::ckpt {

class BoxIndex;
class LoadBuffersPool;
class ShardReader;

struct LoadOptions {
  int threads = 1;
  int rank = 0;  // for fault points load.plan and load.mid
};

struct LoadStats {
  std::uint64_t read_bytes = 0;    // stored bytes read from shards
  std::uint64_t needed_bytes = 0;  // stored bytes of the distinct chunks that the items touch
  std::uint64_t chunks = 0;
  std::uint64_t peak_host_bytes = 0;  // of stored and decoded chunks in flight, beside the destinations
};

/// What a thread of load() needs at most: a stored chunk, it decoded, and it shuffled.
inline constexpr std::uint64_t kLoadBytesPerThread = 4u << 20;

/// Thread-safe once open. Nothing is parsed before its digest was checked.
class Checkpoint {
 public:
  /// Reads COMMIT and manifest of a checkpoint directory. With `expected`, the COMMIT must carry that
  /// manifest digest (ranks open what rank 0 selected). Error(busy) for `.tmp-` paths, Error(incomplete |
  /// damaged | future_version | missing); Error(usage) for a run, naming its newest valid checkpoint
  /// (resolve_checkpoint() in scan.h takes either).
  static Checkpoint open(Env& env, const std::string& path,
                         const std::optional<ManifestDigest>& expected = {});
  Checkpoint(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::string& path() const;
  const Commit& commit() const;
  const Manifest& manifest() const;
  Env& env() const;

  /// `error` as met while reading a shard: where COMMIT is gone by now, the Error(missing) "removed while
  /// being read".
  Error explain(const Error& error) const;

  /// Row of a state in manifest().states, if it is there.
  std::optional<std::uint32_t> find_state(const std::string& tensor, const std::string& kind) const;

  /// Global shape of a tensor; Error(mismatch) if the checkpoint has none of that name.
  const Dims& shape(const std::string& tensor) const;

  /// Fills all items: each stored chunk that is needed is read once (pread, hash, decode; in parallel) and
  /// scattered to all that need it; the system is asked for what comes next. At most kLoadBytesPerThread a
  /// thread of host memory are in flight, and kept for the next load. Every element of every item is filled,
  /// or an Error names the tensor, kind and file at fault: mismatch (absent, other shape or type), damaged. A
  /// file gone while being read is "removed while being read".
  LoadStats load(std::span<const LoadItem> items, const LoadOptions& options) const;

  /// Search over the boxes of manifest().
  const BoxIndex& index() const;

  /// The shard behind a row of manifest().files, opened and its table verified on first use. Error(damaged),
  /// or Error(missing) "removed while being read".
  const ShardReader& shard(std::uint32_t file) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  LoadBuffersPool& load_buffers() const;
  std::unique_ptr<State> state_;
};

/// A Source that reads its box from a checkpoint, chunk by chunk, keeping at most `cache_bytes` of decoded
/// chunks: what offline resharding saves from. Thread-safe.
std::shared_ptr<const Source> checkpoint_source(std::shared_ptr<const Checkpoint> from, std::uint32_t state,
                                                Box box, std::uint64_t cache_bytes);

}  // namespace shardwright::ckpt
