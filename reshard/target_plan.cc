#include "reshard/target_plan.h"

#include <fmt/format.h>

#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/shard.h"
#include "reshard/placement.h"
#include "reshard/plan_counts.h"

namespace shardwright::reshard {
namespace {

// Placement counts tiles at 4 bytes an element; a wider type takes the library's own choice, which stays
// within its limit.
ckpt::Dims chunk_of(const Placed& placed, ckpt::DType dtype) {
  return ckpt::size_of(dtype) <= 4 ? placed.chunk : ckpt::Dims{};
}

// The boxes of each of the source's states: numbers of its boxes, by state.
class BoxesByState {
 public:
  explicit BoxesByState(const ckpt::Manifest& source)
      : source_(source), first_(source.states.size() + 1), boxes_(source.boxes.size()) {
    for (const ckpt::BoxEntry& box : source.boxes) ++first_[box.state + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
    for (std::uint32_t i = 0; i < boxes_.size(); ++i) boxes_[next[source.boxes[i].state]++] = i;
  }
  Pieces of(std::uint32_t state, std::uint64_t& chunks) const {
    Pieces pieces;
    for (std::size_t i = first_[state]; i < first_[state + 1]; ++i) {
      const ckpt::BoxEntry& box = source_.boxes[boxes_[i]];
      pieces.boxes.push_back(box.box);
      pieces.chunks.push_back(box.chunk);
      pieces.owners.push_back(box.file);
      chunks += box.chunks;
    }
    return pieces;
  }

 private:
  const ckpt::Manifest& source_;
  std::vector<std::size_t> first_;
  std::vector<std::uint32_t> boxes_;
};

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
  const BoxesByState boxes(source);
  PlanCounter counter(plan);
  for (std::uint32_t t = 0; t < states_of.size(); ++t) {
    if (states_of[t].empty()) continue;
    ++plan.tensors;
    const Pieces target = written_pieces(plan.model, layout, t);
    // States of one tensor nearly always lie alike; their overlap is found once.
    Pieces alike;
    ckpt::DType dtype{};
    std::uint64_t states = 0;
    for (const std::uint32_t s : states_of[t]) {
      const ckpt::DType type = source.states[s].dtype;
      plan.states.push_back({s, t});
      plan.raw_bytes += ckpt::element_count(plan.model.tensors[t].shape) * ckpt::size_of(type);
      Pieces pieces = boxes.of(s, plan.source_chunks);
      if (states > 0 && (type != dtype || pieces != alike)) {
        counter.add(target, alike, dtype, states);
        states = 0;
      }
      alike = std::move(pieces);
      dtype = type;
      ++states;
    }
    counter.add(target, alike, dtype, states);
  }
  counter.finish();
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
