#include <fmt/format.h>

#include <cassert>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

/// A decoded chunk; its own mutex makes the first reader decode and the others wait for it.
struct Decoded {
  std::mutex mutex;
  bool ready = false;
  std::vector<std::byte> raw;
};

using ChunkKey = std::pair<std::size_t, std::uint64_t>;  // row of manifest.boxes, chunk of the box

class CheckpointSource : public Source {
 public:
  CheckpointSource(std::shared_ptr<const Checkpoint> from, std::uint32_t state, Box box,
                   std::uint64_t cache_bytes)
      : from_(std::move(from)),
        state_(state),
        box_(box),
        cache_bytes_(cache_bytes),
        element_size_(size_of(from_->manifest().states.at(state).dtype)) {}

  void read(const Box& region, std::byte* dst) const override {
    assert(contains(box_, region));
    if (region.empty()) return;
    const Manifest& m = from_->manifest();
    from_->index().overlapping(state_, region, [&](std::size_t row, const Box& part) {
      for_each_chunk(m.boxes[row], part, [&](const ChunkPlace& chunk) {
        const std::shared_ptr<Decoded> decoded = decoded_chunk(row, chunk);
        copy_region(decoded->raw.data(), chunk.stored, dst, region, chunk.region, element_size_);
      });
    });
  }

 private:
  struct Cached {
    ChunkKey key;
    std::uint64_t bytes = 0;
    std::shared_ptr<Decoded> chunk;
  };

  std::shared_ptr<Decoded> decoded_chunk(std::size_t row, const ChunkPlace& place) const {
    const std::uint64_t bytes = place.stored.elements() * element_size_;
    std::shared_ptr<Decoded> chunk = cached({row, place.index}, bytes);
    const std::lock_guard lock(chunk->mutex);
    if (!chunk->ready) {
      decode(from_->manifest().boxes[row], place.index, bytes, chunk->raw);
      chunk->ready = true;
    }
    return chunk;
  }

  /// The most recently used chunks, evicted by bytes; one that is in use outlives its eviction.
  std::shared_ptr<Decoded> cached(const ChunkKey& key, std::uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    if (const auto at = places_.find(key); at != places_.end()) {
      recent_.splice(recent_.begin(), recent_, at->second);
      return recent_.front().chunk;
    }
    recent_.push_front({key, bytes, std::make_shared<Decoded>()});
    places_[key] = recent_.begin();
    held_ += bytes;
    std::shared_ptr<Decoded> chunk = recent_.front().chunk;
    while (held_ > cache_bytes_ && !recent_.empty()) {
      held_ -= recent_.back().bytes;
      places_.erase(recent_.back().key);
      recent_.pop_back();
    }
    return chunk;
  }

  void decode(const BoxEntry& entry, std::uint64_t index, std::uint64_t bytes,
              std::vector<std::byte>& raw) const {
    try {
      const ShardReader& shard = from_->shard(entry.file);
      const std::uint64_t row = entry.first_chunk + index;
      std::vector<std::byte> stored;
      shard.read_stored(row, stored);
      const std::string path = from_->path() + "/" + shard.record().name;
      if (shard.table()[row].raw_bytes != bytes)
        throw Error(ErrorCode::damaged,
                    fmt::format("{}: chunk {} has {} bytes; its box needs {}", path, row,
                                shard.table()[row].raw_bytes, bytes),
                    path);
      raw.resize(bytes);
      ChunkDecoder().decode(stored, element_size_, raw);
    } catch (const Error& e) {
      const Error why = from_->explain(e);
      throw Error(why.code(), fmt::format("{}: {}", entry.dataset, why.what()), why.path());
    }
  }

  std::shared_ptr<const Checkpoint> from_;
  std::uint32_t state_;
  Box box_;
  std::uint64_t cache_bytes_;
  std::size_t element_size_;
  mutable std::mutex mutex_;
  mutable std::list<Cached> recent_;  // newest first
  mutable std::map<ChunkKey, std::list<Cached>::iterator> places_;
  mutable std::uint64_t held_ = 0;
};

}  // namespace

std::shared_ptr<const Source> checkpoint_source(std::shared_ptr<const Checkpoint> from, std::uint32_t state,
                                                Box box, std::uint64_t cache_bytes) {
  return std::make_shared<CheckpointSource>(std::move(from), state, box, cache_bytes);
}

}  // namespace shardwright::ckpt
