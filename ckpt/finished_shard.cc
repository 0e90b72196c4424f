// What an interrupted writer had finished, told from what it had not.
#include <algorithm>

#include "ckpt/chunk_order.h"
#include "ckpt/error.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {
namespace {

bool same_box(const BoxRecord& a, const BoxRecord& b) {
  return a.tensor == b.tensor && a.kind == b.kind && a.dtype == b.dtype && a.global_shape == b.global_shape &&
         a.box == b.box && a.chunk == b.chunk && a.dataset == b.dataset && a.first_chunk == b.first_chunk &&
         a.chunks == b.chunks;
}

}  // namespace

std::optional<Part> finished_shard(Env& env, const std::string& directory, const std::string& attempt,
                                   int rank, std::uint64_t step, std::span<const SaveItem> items) {
  try {
    Part part = read_part(env, directory + "/" + part_name(rank));
    if (part.attempt != attempt || part.rank != rank || part.step != step || !part.error.empty()) return {};
    const ShardPlan plan = planned_shard(items).plan;
    if (part.has_file != plan.has_file || !std::ranges::equal(part.boxes, plan.boxes, same_box)) return {};
    if (!part.has_file) return part;
    if (part.file.name != shard_name(rank)) return {};
    OpenFiles files(env, 1);
    const ShardReader shard(files, directory, part.file);
    if (shard.table().size() != plan.chunks || shard.read_rest() != part.file.rest) return {};
    return part;
  } catch (const Error& e) {
    // Absent or not what it says: then it is written anew. Anything else would go wrong again.
    if (e.code() == ErrorCode::missing || e.code() == ErrorCode::damaged) return {};
    throw;
  }
}

}  // namespace shardwright::ckpt
