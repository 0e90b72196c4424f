#include "ckpt/chunk_cache.h"

#include <fmt/format.h>

#include <cassert>
#include <string>

#include "ckpt/box_index.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/error.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {
namespace {

class CachedSource : public Source {
 public:
  CachedSource(std::shared_ptr<ChunkCache> cache, std::uint32_t state, Box box)
      : cache_(std::move(cache)), state_(state), box_(box) {}
  void read(const Box& region, std::byte* dst) const override {
    assert(contains(box_, region));
    cache_->read(state_, region, dst);
  }
  bool read_stored(const Box& region, const Dims& chunk, StoredChunk& out) const override {
    return cache_->read_stored(state_, region, chunk, out);
  }

 private:
  std::shared_ptr<ChunkCache> cache_;
  std::uint32_t state_;
  Box box_;
};

}  // namespace

ChunkCache::ChunkCache(std::shared_ptr<const Checkpoint> from, std::uint64_t capacity_bytes)
    : from_(std::move(from)), capacity_bytes_(capacity_bytes) {}

void ChunkCache::read(std::uint32_t state, const Box& region, std::byte* dst) {
  if (region.empty()) return;
  const Manifest& m = from_->manifest();
  const std::size_t element_size = size_of(m.states.at(state).dtype);
  from_->index().overlapping(state, region, [&](std::size_t row, const Box& part) {
    for_each_chunk(m.boxes[row], part, [&](const ChunkPlace& place) {
      const auto chunk = decoded(row, place.index, place.stored.elements() * element_size);
      copy_region(chunk->raw.data(), place.stored, dst, region, place.region, element_size);
    });
  });
}

bool ChunkCache::read_stored(std::uint32_t state, const Box& region, const Dims& chunk, StoredChunk& out) {
  if (region.empty()) return false;
  const Manifest& m = from_->manifest();
  const BoxEntry* entry = nullptr;
  std::uint64_t index = 0;
  from_->index().overlapping(state, region, [&](std::size_t row, const Box& part) {
    // A region that is spread over several boxes is a part of each.
    if (!(part == region) || !(m.boxes[row].chunk == chunk)) return;
    for_each_chunk(m.boxes[row], part, [&](const ChunkPlace& place) {
      if (place.stored.offset == region.offset && intersect(place.stored, m.boxes[row].box) == region) {
        entry = &m.boxes[row];
        index = place.index;
      }
    });
  });
  if (entry == nullptr) return false;
  out.raw.resize(element_count(chunk) * size_of(m.states[state].dtype));
  out.xxh3_64 = fetch(*entry, index, out.stored, out.raw);
  return true;
}

std::shared_ptr<ChunkCache::Decoded> ChunkCache::decoded(std::size_t box, std::uint64_t index,
                                                         std::uint64_t bytes) {
  std::shared_ptr<Decoded> chunk = cached({box, index}, bytes);
  const std::lock_guard lock(chunk->mutex);
  if (!chunk->ready) {
    chunk->raw.resize(bytes);
    thread_local std::vector<std::byte> stored;
    fetch(from_->manifest().boxes[box], index, stored, chunk->raw);
    chunk->ready = true;
  }
  return chunk;
}

std::shared_ptr<ChunkCache::Decoded> ChunkCache::cached(const Key& key, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto at = places_.find(key); at != places_.end()) {
    recent_.splice(recent_.begin(), recent_, at->second);
    return recent_.front().chunk;
  }
  // Room first, so that what leaves gives its memory to what comes.
  while (held_bytes_ + bytes > capacity_bytes_ && !recent_.empty()) evict();
  std::shared_ptr<Decoded> chunk = std::make_shared<Decoded>();
  if (!spare_.empty()) {
    chunk->raw = std::move(spare_.back());
    spare_.pop_back();
  }
  if (bytes > capacity_bytes_) return chunk;
  recent_.push_front({key, bytes, chunk});
  places_[key] = recent_.begin();
  held_bytes_ += bytes;
  return chunk;
}

void ChunkCache::evict() {
  Cached& oldest = recent_.back();
  held_bytes_ -= oldest.bytes;
  places_.erase(oldest.key);
  // Returned to the system and taken again, memory costs as much as the decoding. Who else holds the chunk
  // reads it now; nobody can begin to.
  if (oldest.chunk.use_count() == 1 && spare_.empty()) spare_.push_back(std::move(oldest.chunk->raw));
  recent_.pop_back();
}

/// Reads, checks, counts and decodes a chunk; returns the digest of its stored bytes.
std::uint64_t ChunkCache::fetch(const BoxEntry& entry, std::uint64_t index, std::vector<std::byte>& stored,
                                std::span<std::byte> raw) {
  try {
    const ShardReader& shard = from_->shard(entry.file);
    const std::uint64_t row = entry.first_chunk + index;
    shard.read_stored(row, stored);
    const std::string path = from_->path() + "/" + shard.record().name;
    if (shard.table()[row].raw_bytes != raw.size())
      throw Error(ErrorCode::damaged,
                  fmt::format("{}: chunk {} has {} bytes; its box needs {}", path, row,
                              shard.table()[row].raw_bytes, raw.size()),
                  path);
    thread_local ChunkDecoder decoder;
    decoder.decode(stored, size_of(from_->manifest().states[entry.state].dtype), raw);
    read_bytes_ += stored.size();
    ++chunks_read_;
    return shard.table()[row].xxh3_64;
  } catch (const Error& e) {
    const Error why = from_->explain(e);
    throw Error(why.code(), fmt::format("{}: {}", entry.dataset, why.what()), why.path());
  }
}

std::shared_ptr<const Source> cached_source(std::shared_ptr<ChunkCache> cache, std::uint32_t state, Box box) {
  return std::make_shared<CachedSource>(std::move(cache), state, box);
}

std::shared_ptr<const Source> checkpoint_source(std::shared_ptr<const Checkpoint> from, std::uint32_t state,
                                                Box box, std::uint64_t cache_bytes) {
  return cached_source(std::make_shared<ChunkCache>(std::move(from), cache_bytes), state, box);
}

}  // namespace shardwright::ckpt
