// Memory that threads need to load chunks, kept from load to load: taken from the system anew, its pages cost
// as much time as the decoding. Internal to the checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ckpt/chunk_codec.h"

namespace shardwright::ckpt {

/// Of one thread, for one chunk at a time.
struct LoadBuffers {
  ChunkDecoder decoder;
  std::vector<std::byte> stored;
  std::vector<std::byte> raw;

  /// Buffers only grow, so this is the most that there was.
  std::uint64_t host_bytes() const { return decoder.scratch_bytes() + stored.capacity() + raw.capacity(); }
};

/// Has as many as were ever in use at once. Thread-safe.
class LoadBuffersPool {
 public:
  std::unique_ptr<LoadBuffers> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<LoadBuffers>();
    std::unique_ptr<LoadBuffers> buffers = std::move(idle_.back());
    idle_.pop_back();
    return buffers;
  }
  void give_back(std::unique_ptr<LoadBuffers> buffers) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(buffers));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<LoadBuffers>> idle_;
};

}  // namespace shardwright::ckpt
