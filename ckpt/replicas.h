// State that several ranks hold and one of them writes: whether the copies are equal, asked of their
// fingerprints before a commit, so that a fault of one rank's memory or processor is not saved as if it were
// the truth. Internal to the saver.
#pragma once

#include <atomic>
#include <span>
#include <vector>

#include "ckpt/shard.h"
#include "ckpt/source.h"

namespace shardwright::ckpt {

/// The fingerprint of each item's box, in their order, on up to `threads` threads. Each chunk of plan_shard's
/// records is read once. Error(peer) when `cancel` (may be null) becomes true.
std::vector<ReplicaRecord> fingerprint_replicas(std::span<const SaveItem> items, int threads,
                                                const std::atomic<bool>* cancel);

/// Compares each replica with what is written of its box; where nothing is (a state of which all holders have
/// copies only), with the first rank's replica of the same box. Error(damaged) names tensor, kind, box and
/// ranks of the first that differ; Error(usage) if a box is written in part.
void compare_replicas(std::span<const Part> parts);

}  // namespace shardwright::ckpt
