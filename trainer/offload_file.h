// A file without a name, in which a rank's optimizer state waits for the next step (`offload = nvme`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "ckpt/error.h"

namespace shardwright::trainer {

/// Thread-safe for ranges that do not overlap. The first error is kept: every later call throws it again, so
/// that nobody goes on with what a disk has lost.
class OffloadFile {
 public:
  /// Creates it in `directory`, which must be there, and takes all its space at once: zeros. It has no name,
  /// so nothing is left of it however the process ends. Error(no_space) if there is no room, Error(io |
  /// missing). Fault point offload.create.
  OffloadFile(const std::string& directory, int rank, std::uint64_t bytes);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// Error(io). Fault points offload.read, offload.write.
  void read(std::uint64_t offset, std::span<std::byte> data) const;
  /// Begins to bring to the disk what it wrote.
  void write(std::uint64_t offset, std::span<const std::byte> data);
  /// Returns when a range that was written is on its way out of memory: what the disk refused is an Error
  /// here, and the system need not keep the pages.
  void let_go(std::uint64_t offset, std::uint64_t bytes);

 private:
  template <class Call>
  void guarded(const Call& call) const;

  std::string path_;  // in messages
  int rank_;
  int fd_ = -1;
  mutable std::mutex mutex_;
  mutable std::optional<Error> failure_;
};

}  // namespace shardwright::trainer
