// What a shard will hold, worked out before anything is written. Internal to the shard writer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/shard.h"

namespace shardwright::ckpt {

struct ShardPlan {
  /// One record per item, in the items' order; fingerprints still empty. `dataset` is empty where nothing is
  /// written: an empty box of a tensor that has elements elsewhere. A tensor of no elements at all gets an
  /// empty dataset, so that readers find it.
  std::vector<BoxRecord> boxes;
  std::uint64_t chunks = 0;  // of all boxes
  bool has_file = false;
};

/// Checks the items and plans them. Error(usage) names the tensor: a name with '/', '@', control characters
/// or broken UTF-8; a box outside its shape; other type or shape for the same state; more than 8 dimensions'
/// worth of elements. A chunk larger than the box or kMaxChunkBytes is cut to fit.
ShardPlan plan_shard(std::span<const SaveItem> items);

}  // namespace shardwright::ckpt
