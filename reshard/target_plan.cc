#include "reshard/target_plan.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_map>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/shard.h"
#include "reshard/placement.h"
#include "reshard/plan.h"

namespace shardwright::reshard {
namespace {

// Placement counts tiles at 4 bytes an element; a wider type takes the library's own choice, which stays
// within its limit.
ckpt::Dims chunk_of(const Placed& placed, ckpt::DType dtype) {
  return ckpt::size_of(dtype) <= 4 ? placed.chunk : ckpt::Dims{};
}

// What the shard writer makes of that for a box with elements.
ckpt::Dims stored_extents(const ckpt::Box& box, const ckpt::Dims& chunk, ckpt::DType dtype) {
  return ckpt::size_of(dtype) <= 4 ? chunk : ckpt::default_chunk(box.shape, ckpt::size_of(dtype));
}

}  // namespace

TargetPlan plan_target(const ckpt::Manifest& source, const Layout& layout, bool weights_only,
                       const std::string& path) {
  TargetPlan plan;
  plan.model = model_of(source, path);
  plan.layout = layout;
  check_layout(layout, plan.model);

  std::unordered_map<std::string_view, std::size_t> row_of;
  for (std::size_t t = 0; t < plan.model.tensors.size(); ++t) row_of[plan.model.tensors[t].name] = t;
  // States grouped by the model's tensors.
  std::vector<std::vector<std::uint32_t>> states_of(plan.model.tensors.size());
  for (std::uint32_t s = 0; s < source.states.size(); ++s) {
    if (weights_only && source.states[s].kind != kParam) continue;
    states_of[row_of.at(source.tensors[source.states[s].tensor].name)].push_back(s);
  }
  std::vector<std::vector<ckpt::Box>> source_boxes(source.states.size());
  std::vector<std::vector<ckpt::Dims>> source_extents(source.states.size());  // of the boxes' chunks
  std::vector<std::uint64_t> source_chunks(source.states.size());
  for (const ckpt::BoxEntry& box : source.boxes) {
    source_boxes[box.state].push_back(box.box);
    source_extents[box.state].push_back(box.chunk);
    source_chunks[box.state] += box.chunks;
  }
  std::vector<std::vector<ckpt::Box>> target_boxes(plan.model.tensors.size());
  std::vector<std::vector<ckpt::Dims>> target_extents(plan.model.tensors.size());
  plan.ranks.resize(static_cast<std::size_t>(layout.ranks()));
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    RankShare& share = plan.ranks[static_cast<std::size_t>(rank)];
    for (const Placed& p : placement(plan.model, layout, rank)) {
      if (p.writes.empty() || states_of[p.tensor].empty()) continue;
      share.boxes += states_of[p.tensor].size();
      for (const std::uint32_t s : states_of[p.tensor])
        share.bytes += p.writes.elements() * ckpt::size_of(source.states[s].dtype);
      target_boxes[p.tensor].push_back(p.writes);
      target_extents[p.tensor].push_back(p.chunk);
    }
    plan.files += share.boxes > 0 ? 1 : 0;
  }

  for (std::size_t t = 0; t < states_of.size(); ++t) {
    plan.tensors += states_of[t].empty() ? 0 : 1;
    for (const std::uint32_t s : states_of[t]) {
      plan.states.push_back({s, static_cast<std::uint32_t>(t)});
      plan.raw_bytes +=
          ckpt::element_count(plan.model.tensors[t].shape) * ckpt::size_of(source.states[s].dtype);
      plan.source_chunks += source_chunks[s];
      const auto extents = [&](std::size_t i) {
        return stored_extents(target_boxes[t][i], target_extents[t][i], source.states[s].dtype);
      };
      for (std::size_t i = 0; i < target_boxes[t].size(); ++i)
        plan.target_chunks += ckpt::element_count(ckpt::chunk_grid(target_boxes[t][i], extents(i)));
      const std::vector<Copy> copies = overlap(target_boxes[t], source_boxes[s]);
      plan.copies += copies.size();
      for (const Copy& copy : copies) {
        plan.kept_chunks += ckpt::equal_chunks(target_boxes[t][copy.to], extents(copy.to),
                                               source_boxes[s][copy.from], source_extents[s][copy.from]);
      }
    }
  }
  if (plan.states.empty()) {
    throw Error(ErrorCode::mismatch,
                fmt::format("{}: has no state of kind '{}'; one with weights", path, kParam), path);
  }
  return plan;
}

std::vector<ckpt::SaveItem> target_items(const TargetPlan& plan, std::shared_ptr<ckpt::ChunkCache> cache,
                                         int rank) {
  const ckpt::Manifest& source = cache->checkpoint().manifest();
  std::vector<ckpt::SaveItem> items;
  const std::vector<Placed> held = placement(plan.model, plan.layout, rank);
  auto placed = held.begin();  // both in the model's order
  for (const KeptState& kept : plan.states) {
    const ckpt::StateEntry& state = source.states[kept.state];
    const ckpt::TensorEntry& tensor = source.tensors[state.tensor];
    while (placed != held.end() && placed->tensor < kept.tensor) ++placed;
    if (placed == held.end()) break;
    if (placed->tensor != kept.tensor || placed->writes.empty())
      continue;  // another stage's, or another rank writes it
    items.push_back({tensor.name, state.kind, state.dtype, tensor.shape, placed->writes,
                     chunk_of(*placed, state.dtype), ckpt::cached_source(cache, kept.state, placed->writes)});
  }
  return items;
}

}  // namespace shardwright::reshard
