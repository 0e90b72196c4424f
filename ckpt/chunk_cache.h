// Decoded chunks of one checkpoint, kept for whoever needs them next: many sources, one bound on memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"

namespace shardwright::ckpt {

/// Thread-safe. Keeps the most recently used chunks, at most `capacity_bytes` of them decoded; a chunk in use
/// outlives its eviction, so each thread that reads adds one.
class ChunkCache {
 public:
  ChunkCache(std::shared_ptr<const Checkpoint> from, std::uint64_t capacity_bytes);

  const Checkpoint& checkpoint() const { return *from_; }

  /// Copies `region` of a state densely to `dst`. Error(damaged) names tensor and file; a checkpoint that was
  /// removed meanwhile is Error(missing).
  void read(std::uint32_t state, const Box& region, std::byte* dst);

  /// Source::read_stored() of a state. The chunk does not enter the cache: nobody else needs any of it.
  bool read_stored(std::uint32_t state, const Box& region, const Dims& chunk, StoredChunk& out);

  /// Stored bytes and chunks read from shards so far: a chunk that had to leave and was needed again counts
  /// again.
  std::uint64_t read_bytes() const { return read_bytes_; }
  std::uint64_t chunks_read() const { return chunks_read_; }

 private:
  // A chunk's own mutex makes the first reader decode and the others wait for it.
  struct Decoded {
    std::mutex mutex;
    bool ready = false;
    std::vector<std::byte> raw;
  };
  using Key = std::pair<std::size_t, std::uint64_t>;  // row of manifest.boxes, chunk of the box
  struct Cached {
    Key key;
    std::uint64_t bytes = 0;
    std::shared_ptr<Decoded> chunk;
  };

  std::shared_ptr<Decoded> decoded(std::size_t box, std::uint64_t index, std::uint64_t bytes);
  std::shared_ptr<Decoded> cached(const Key& key, std::uint64_t bytes);
  void evict();
  std::uint64_t fetch(const BoxEntry& entry, std::uint64_t index, std::vector<std::byte>& stored,
                      std::span<std::byte> raw);

  std::shared_ptr<const Checkpoint> from_;
  std::uint64_t capacity_bytes_;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> chunks_read_{0};
  std::mutex mutex_;
  std::list<Cached> recent_;  // newest first
  std::map<Key, std::list<Cached>::iterator> places_;
  std::uint64_t held_bytes_ = 0;
  std::vector<std::vector<std::byte>> spare_;  // memory of chunks that left, for those that come
};

/// A Source that reads its box of a state through a cache shared with other sources. Thread-safe.
std::shared_ptr<const Source> cached_source(std::shared_ptr<ChunkCache> cache, std::uint32_t state, Box box);

}  // namespace shardwright::ckpt
