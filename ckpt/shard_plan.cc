#include "ckpt/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/limits.h"
#include "ckpt/names.h"

namespace shardwright::ckpt {
namespace {

[[noreturn]] void refuse(const SaveItem& item, const std::string& what) {
  throw Error(ErrorCode::usage, fmt::format("tensor '{}' kind '{}': {}", item.tensor, item.kind, what));
}

void check_box(const SaveItem& item) {
  const std::size_t dims = item.global_shape.size();
  if (item.box.offset.size() != dims || item.box.shape.size() != dims)
    refuse(item, fmt::format("box with {} dimensions for shape {}", item.box.shape.size(),
                             to_string(item.global_shape)));
  const std::optional<std::uint64_t> elements = checked_element_count(item.global_shape);
  std::uint64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, size_of(item.dtype), &bytes))
    refuse(item, fmt::format("shape {} has more bytes than 64 bits count", to_string(item.global_shape)));
  for (std::size_t d = 0; d < dims; ++d)
    if (item.box.offset[d] > item.global_shape[d] ||
        item.box.shape[d] > item.global_shape[d] - item.box.offset[d])
      refuse(item,
             fmt::format("box {} is not inside shape {}", to_string(item.box), to_string(item.global_shape)));
  if (!item.box.empty() && item.source == nullptr) refuse(item, "a box with elements needs a source");
}

Dims chunk_of(const SaveItem& item) {
  const std::size_t size = size_of(item.dtype);
  if (item.chunk.empty()) return default_chunk(item.box.shape, size);
  if (item.chunk.size() != item.box.shape.size())
    refuse(item, fmt::format("chunk {} for box {}", to_string(item.chunk), to_string(item.box)));
  Dims chunk = item.chunk;
  for (std::size_t d = 0; d < chunk.size(); ++d) {
    if (chunk[d] == 0)
      refuse(item, fmt::format("chunk {}; extents of at least 1 are right", to_string(chunk)));
    chunk[d] = std::min(chunk[d], item.box.shape[d]);
  }
  return default_chunk(chunk, size);
}

}  // namespace

ShardPlan plan_shard(std::span<const SaveItem> items) {
  struct Seen {
    const SaveItem* first;
    std::uint64_t datasets = 0;
  };
  std::map<std::pair<std::string, std::string>, Seen> states;
  ShardPlan plan;
  for (const SaveItem& item : items) {
    check_names(item.tensor, item.kind);
    check_box(item);
    Seen& seen = states.try_emplace({item.tensor, item.kind}, Seen{&item}).first->second;
    if (seen.first->dtype != item.dtype || !(seen.first->global_shape == item.global_shape))
      refuse(item, "given twice with different types or shapes");

    BoxRecord record;
    record.tensor = item.tensor;
    record.kind = item.kind;
    record.dtype = item.dtype;
    record.global_shape = item.global_shape;
    record.box = item.box;
    record.chunk = chunk_of(item);
    record.first_chunk = plan.chunks;
    record.chunks = item.box.empty() ? 0 : element_count(chunk_grid(item.box, record.chunk));
    if (__builtin_add_overflow(plan.chunks, record.chunks, &plan.chunks) || plan.chunks > kMaxChunksOfShard)
      refuse(item, fmt::format("with it the shard has more than {} chunks; larger chunks are right",
                               kMaxChunksOfShard));
    if (!item.box.empty() || element_count(item.global_shape) == 0) {
      record.dataset = fmt::format("/{}/{}", item.kind, item.tensor);
      if (seen.datasets > 0) record.dataset += fmt::format("@{}", seen.datasets);
      ++seen.datasets;
      plan.has_file = true;
    }
    plan.boxes.push_back(std::move(record));
  }
  return plan;
}

}  // namespace shardwright::ckpt
