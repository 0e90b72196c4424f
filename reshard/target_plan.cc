#include "reshard/target_plan.h"

#include <fmt/format.h>

#include <algorithm>
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

// Rows of the source's states from which each of the target's tensors is made, by tensor: of the same name,
// or, where that is new, of the embeddings that it was tied to.
std::vector<std::vector<std::uint32_t>> source_states(const ckpt::Manifest& source, const ModelSpec& from,
                                                      const ModelSpec& to, const Conversion& conversion) {
  std::unordered_map<std::string_view, std::vector<std::uint32_t>> of_name;
  for (std::uint32_t s = 0; s < source.states.size(); ++s) {
    if (conversion.weights_only && source.states[s].kind != kParam) continue;
    of_name[source.tensors[source.states[s].tensor].name].push_back(s);
  }
  std::vector<std::vector<std::uint32_t>> states(to.tensors.size());
  for (std::size_t t = 0; t < states.size(); ++t) {
    const TensorSpec& tensor = to.tensors[t];
    const bool is_new = from.find(tensor.name) < 0;
    const auto same = std::find_if(from.tensors.begin(), from.tensors.end(), [&](const TensorSpec& other) {
      return is_new ? other.role == Role::embed_tokens : other.name == tensor.name;
    });
    states[t] = of_name[same->name];
  }
  return states;
}

}  // namespace

TargetPlan plan_target(const ckpt::Manifest& source, const Layout& layout, const Conversion& conversion,
                       const std::string& path) {
  const ModelSpec from = model_of(source, path);
  check_casts(source, conversion, path);
  TargetPlan plan;
  plan.model = build_model(converted(from.config, conversion));
  plan.layout = layout;
  check_layout(layout, plan.model);
  check_tie(source, from, conversion, path);

  const std::vector<std::vector<std::uint32_t>> states_of =
      source_states(source, from, plan.model, conversion);
  const BoxesByState boxes(source);
  PlanCounter counter(plan);
  for (std::uint32_t t = 0; t < states_of.size(); ++t) {
    if (states_of[t].empty()) continue;
    ++plan.tensors;
    const ckpt::Dims& shape = plan.model.tensors[t].shape;
    const Pieces target = written_pieces(plan.model, layout, t);
    // States of one tensor nearly always lie alike; their overlap is found once.
    Pieces alike;
    ckpt::DType dtype{};
    bool cast = false;
    std::uint64_t states = 0;
    for (const std::uint32_t s : states_of[t]) {
      const ckpt::DType stored = source.states[s].dtype;
      const auto asked = conversion.casts.find(source.states[s].kind);
      const ckpt::DType type = asked == conversion.casts.end() ? stored : asked->second;
      const ckpt::Dims& source_shape = source.tensors[source.states[s].tensor].shape;
      KeptState kept{s, t, type, {}};
      if (type != stored || shape != source_shape)
        kept.converted = std::make_shared<ConvertedState>(
            source, s, type, shape,
            source.states[s].kind == kParam ? ConvertedState::NewRows::mean : ConvertedState::NewRows::zero);
      plan.states.push_back(std::move(kept));
      plan.raw_bytes += ckpt::element_count(shape) * ckpt::size_of(type);
      plan.source_raw_bytes += ckpt::element_count(source_shape) * ckpt::size_of(stored);
      Pieces pieces = boxes.of(s, plan.source_chunks);
      if (states > 0 && (type != dtype || (type != stored) != cast || pieces != alike)) {
        counter.add(target, alike, dtype, states, cast);
        states = 0;
      }
      alike = std::move(pieces);
      dtype = type;
      cast = type != stored;
      ++states;
    }
    counter.add(target, alike, dtype, states, cast);
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
    while (placed != held.end() && placed->tensor < kept.tensor) ++placed;
    if (placed == held.end()) break;
    if (placed->tensor != kept.tensor || placed->writes.empty())
      continue;  // another stage's, or another rank writes it
    const TensorSpec& tensor = plan.model.tensors[kept.tensor];
    items.push_back({tensor.name, source.states[kept.state].kind, kept.dtype, tensor.shape, placed->writes,
                     chunk_of(*placed, kept.dtype),
                     kept.converted ? converted_source(kept.converted, cache)
                                    : ckpt::cached_source(cache, kept.state, placed->writes)});
  }
  return items;
}

}  // namespace shardwright::reshard
