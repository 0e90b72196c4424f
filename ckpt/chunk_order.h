// The order in which chunks are made and written: that of each shard's boxes, several shards merged by
// tensor, kind, row and column. Internal to the shard writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/shard.h"
#include "ckpt/shard_plan.h"

namespace shardwright::ckpt {

/// One chunk to be made. What it points to outlives all who work on it.
struct ChunkTask {
  std::size_t shard = 0;
  const SaveItem* item = nullptr;
  const BoxRecord* box = nullptr;
  std::uint64_t index = 0;  // in the box's grid
  Box part;                 // its elements
};

/// A shard's items in the order of its file, and the plan made of them.
struct PlannedShard {
  std::vector<SaveItem> items;
  ShardPlan plan;
};

/// Sorts and plans. Equal boxes make equal files, whoever lists them (training, resharding) and in whatever
/// order. Errors of plan_shard().
PlannedShard planned_shard(std::span<const SaveItem> items);

/// Neighbours in a tensor come one after the other, whichever shards they belong to, so that whoever reads
/// them from elsewhere needs no more than a band of rows at a time. Not thread-safe.
class ChunkOrder {
 public:
  /// `shards` must outlive this object and stay as they are.
  explicit ChunkOrder(std::span<const PlannedShard> shards);

  std::uint64_t chunks() const { return chunks_; }  // of all shards
  /// The task that next() would give; null at the end.
  const ChunkTask* peek() const { return heap_.empty() ? nullptr : &heap_.front(); }
  /// Goes on behind it.
  void advance();

 private:
  bool settle(ChunkTask& task, std::size_t box) const;

  std::span<const PlannedShard> shards_;
  std::vector<ChunkTask> heap_;  // the next of each shard; the first of all in front
  std::uint64_t chunks_ = 0;
};

}  // namespace shardwright::ckpt
