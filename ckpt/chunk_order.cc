#include "ckpt/chunk_order.h"

#include <algorithm>
#include <tuple>

namespace shardwright::ckpt {
namespace {

/// Heaps keep the greatest in front, so this says who comes later.
bool later(const ChunkTask& a, const ChunkTask& b) {
  if (a.box->tensor != b.box->tensor) return a.box->tensor > b.box->tensor;
  if (a.box->kind != b.box->kind) return a.box->kind > b.box->kind;
  if (!(a.part.offset == b.part.offset))
    return std::ranges::lexicographical_compare(b.part.offset, a.part.offset);
  return a.shard > b.shard;
}

}  // namespace

PlannedShard planned_shard(std::span<const SaveItem> items) {
  PlannedShard shard;
  shard.items.assign(items.begin(), items.end());
  std::stable_sort(shard.items.begin(), shard.items.end(), [](const SaveItem& a, const SaveItem& b) {
    return std::tie(a.tensor, a.kind) < std::tie(b.tensor, b.kind);
  });
  shard.plan = plan_shard(shard.items);
  return shard;
}

ChunkOrder::ChunkOrder(std::span<const PlannedShard> shards) : shards_(shards) {
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    chunks_ += shards_[s].plan.chunks;
    ChunkTask first;
    first.shard = s;
    if (settle(first, 0)) heap_.push_back(first);
  }
  std::ranges::make_heap(heap_, later);
}

/// Points `task` to the first chunk of the first box from `box` on that has any; false if there is none.
bool ChunkOrder::settle(ChunkTask& task, std::size_t box) const {
  const PlannedShard& shard = shards_[task.shard];
  while (box < shard.plan.boxes.size() && shard.plan.boxes[box].chunks == 0) ++box;
  if (box == shard.plan.boxes.size()) return false;
  task.item = &shard.items[box];
  task.box = &shard.plan.boxes[box];
  task.index = 0;
  task.part = chunk_box(task.box->box, task.box->chunk, 0);
  return true;
}

void ChunkOrder::advance() {
  std::ranges::pop_heap(heap_, later);
  ChunkTask& task = heap_.back();
  if (++task.index < task.box->chunks) {
    task.part = chunk_box(task.box->box, task.box->chunk, task.index);
  } else {
    const std::vector<BoxRecord>& boxes = shards_[task.shard].plan.boxes;
    if (!settle(task, static_cast<std::size_t>(task.box - boxes.data()) + 1)) {
      heap_.pop_back();
      return;
    }
  }
  std::ranges::push_heap(heap_, later);
}

}  // namespace shardwright::ckpt
