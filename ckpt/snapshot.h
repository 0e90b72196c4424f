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
  /// Host memory for copies, the most at one time.
  virtual std::uint64_t host_bytes() const = 0;
  /// Bytes copied so far, each time they were.
  virtual std::uint64_t copied_bytes() const = 0;
};

/// Copies all items into private host memory before it returns.
std::unique_ptr<Snapshot> copy_snapshot(std::span<const SaveItem> items);

/// Copies nothing that lies in host memory until before_write() says that it will change, and only what was
/// not read by then; other sources are copied before it returns. The memory of the items must outlive the
/// snapshot. Error(usage) for items that cannot be written.
std::unique_ptr<Snapshot> lazy_snapshot(std::span<const SaveItem> items);

}  // namespace shardwright::ckpt
