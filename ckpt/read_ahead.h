// Stored chunks asked for before they are read, so that a disk, above all one behind a network, works while
// earlier ones are decoded. Internal to loading and verifying.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace shardwright::ckpt {

/// Thread-safe. Advice to the system and nothing else: no memory of this process is taken, and an error is
/// left to the read that will meet it.
class ReadAhead {
 public:
  /// So many stored bytes are on their way: what a disk of 2 GB/s gives in 16 ms.
  static constexpr std::uint64_t kWindowBytes = 32u << 20;

  /// `bytes` of each chunk in the order in which they will be read; `ask(i)` advises of chunk i.
  ReadAhead(std::vector<std::uint64_t> bytes, std::function<void(std::size_t)> ask,
            std::uint64_t window_bytes = kWindowBytes);

  /// Chunk i is read next: asks for those behind it that the window has room for. Each is asked for once.
  void reading(std::size_t i);

 private:
  const std::vector<std::uint64_t> bytes_;
  const std::function<void(std::size_t)> ask_;
  const std::uint64_t window_bytes_;
  std::mutex mutex_;
  std::size_t next_ = 0;           // the first chunk that was not asked for
  std::size_t reached_ = 0;        // no chunk before it is still to be read, or is only just
  std::uint64_t ahead_bytes_ = 0;  // of [reached_, next_)
};

}  // namespace shardwright::ckpt
