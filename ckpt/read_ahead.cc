#include "ckpt/read_ahead.h"

#include <utility>

#include "ckpt/error.h"

namespace shardwright::ckpt {

ReadAhead::ReadAhead(std::vector<std::uint64_t> bytes, std::function<void(std::size_t)> ask,
                     std::uint64_t window_bytes)
    : bytes_(std::move(bytes)), ask_(std::move(ask)), window_bytes_(window_bytes) {}

void ReadAhead::reading(std::size_t i) {
  const std::lock_guard lock(mutex_);
  for (; reached_ < i; ++reached_) {
    if (reached_ < next_)
      ahead_bytes_ -= bytes_[reached_];
    else
      ++next_;
  }
  while (next_ < bytes_.size() && ahead_bytes_ < window_bytes_) {
    ahead_bytes_ += bytes_[next_];
    // What is read at once needs no asking.
    if (const std::size_t chunk = next_++; chunk > i) {
      try {
        ask_(chunk);
      } catch (const Error&) {
        // Its shard is missing or damaged: said by the read of the chunk, which knows for whom.
      }
    }
  }
}

}  // namespace shardwright::ckpt
