// The state of a save, frozen at the step boundary while training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/source.h"

namespace shardwright::ckpt {

/// Everything that changes saved state calls before_write() first; what the snapshot hands out is the
/// boundary's state.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  /// The saved items, whose sources stay valid and unchanged for the snapshot's life. Each chunk (of
  /// plan_shard's records) is to be read once.
  virtual std::span<const SaveItem> items() const = 0;
  /// `box` of (tensor, kind) is about to change. Returns when the old values are safe: at most as long as
  /// copying them takes. Called by the training thread.
  virtual void before_write(const std::string& tensor, const std::string& kind, const Box& box) = 0;
  /// Nothing is read from the items' memory once this has returned; to read what was not read by then is
  /// Error(peer). For an owner that cannot wait for the save any longer.
  virtual void let_go() = 0;
  /// Host memory for copies, the most at one time.
  virtual std::uint64_t host_bytes() const = 0;
  /// Bytes copied so far, each time they were.
  virtual std::uint64_t copied_bytes() const = 0;
};

/// Memory for copies that stays from snapshot to snapshot: new pages are dearer than copying into old ones.
struct CopyBuffer {
  std::unique_ptr<std::byte[]> memory;
  std::uint64_t bytes = 0;
};

/// Copies all items into `buffer`, which grows if need be, with so many threads before it returns. The buffer
/// outlives the snapshot and serves one at a time.
std::unique_ptr<Snapshot> copy_snapshot(std::span<const SaveItem> items, int threads, CopyBuffer& buffer);

/// Copies nothing that lies in host memory until before_write() says that it will change, and only what was
/// not read by then, and nothing of frozen sources; others are copied before it returns. The memory of the
/// items must outlive the snapshot. Error(usage) for items that cannot be written.
std::unique_ptr<Snapshot> lazy_snapshot(std::span<const SaveItem> items);

}  // namespace shardwright::ckpt
