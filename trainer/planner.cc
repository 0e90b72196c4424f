#include "trainer/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/size_text.h"

namespace shardwright::trainer {
namespace {

using reshard::Axis;

// What dominates the step's time.
std::string why_this_long(const PlanRequest& request, const PlannedLayout& p) {
  const auto place = [&](Axis axis) {
    return within_node(p.layout, axis, request.machine.gpus_per_node) ? "" : " between nodes";
  };
  std::array<std::pair<double, std::string>, 7> parts{{
      {p.time.compute, "computing"},
      {p.time.recompute, fmt::format("recomputing ({})", p.recompute)},
      {p.time.tensor, fmt::format("tensor sums{}", place(Axis::tp))},
      {p.time.pipeline, fmt::format("transfers between stages{}", place(Axis::pp))},
      {p.time.bubble, "pipeline bubble"},
      {p.time.data, fmt::format("gradients and weights{}", place(Axis::dp))},
      {p.time.optimizer, "optimizer"},
  }};
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> texts;
  constexpr double kShown = 0.02;
  for (const auto& [seconds, text] : parts) {
    const double share = seconds / p.time.total();
    if (texts.size() < 3 && share >= kShown) texts.push_back(fmt::format("{:.0f} % {}", 100 * share, text));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Why it does not fit, and what would help.
std::string why_not(const PlanRequest& request, const PlannedLayout& p) {
  const std::array<std::pair<std::uint64_t, const char*>, 5> parts{{{p.memory.param, "parameters"},
                                                                    {p.memory.grad, "gradients"},
                                                                    {p.memory.optimizer, "optimizer state"},
                                                                    {p.memory.activation, "activations"},
                                                                    {p.memory.buffers, "buffers"}}};
  const auto& most = *std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; });
  return fmt::format("does not fit: {} of {}, most of it {} ({})", ckpt::size_text(p.memory.total()),
                     ckpt::size_text(static_cast<std::uint64_t>(request.machine.memory_bytes)), most.second,
                     ckpt::size_text(most.first));
}

// Sizes of all ranks are the same at every ZeRO stage.
struct Sized {
  std::vector<SizedRank> largest;
  reshard::RankSizes most;  // of each kind
};
Sized sized(const reshard::ModelSpec& model, const reshard::Layout& layout) {
  const std::vector<reshard::RankSizes> sizes = reshard::rank_sizes(model, layout);
  Sized s{largest_ranks(layout, sizes), {}};
  for (const reshard::RankSizes& r : sizes)
    s.most = {std::max(s.most.holds, r.holds), std::max(s.most.piece, r.piece),
              std::max(s.most.writes, r.writes)};
  return s;
}

// Fitting comes before not fitting; then the faster, or of those that do not fit the smaller.
bool better(const PlannedLayout& a, const PlannedLayout& b) {
  if (a.fits != b.fits) return a.fits;
  if (a.fits && a.time.total() != b.time.total()) return a.time.total() < b.time.total();
  return a.memory.total() < b.memory.total();
}

PlannedLayout evaluate(const PlanRequest& request, const reshard::Layout& layout, const Sized& sizes) {
  std::optional<PlannedLayout> best;
  LayoutMemory memory(request.model, layout, sizes.largest);
  const bool alone = reshard::axis_size(layout, Axis::tp) == 1;
  for (const std::string& recompute : request.recompute) {
    for (const bool spread : request.sequence_parallel) {
      if (alone && spread && request.sequence_parallel.size() > 1) continue;
      TrainingShape shape = request.shape;
      shape.recompute = recompute;
      shape.sequence_parallel = spread;
      const FullestRank fullest = memory.fullest(shape);
      PlannedLayout p;
      p.layout = layout;
      p.recompute = recompute;
      p.sequence_parallel = spread;
      p.memory = fullest.memory;
      p.fullest_rank = fullest.rank;
      p.fits = static_cast<double>(p.memory.total()) <= request.machine.memory_bytes;
      p.time = step_time(request.model, layout, shape, request.machine, sizes.most);
      p.bubble = bubble_share(request.model, layout, shape);
      p.checkpoint_bytes = kCheckpointBytes * sizes.most.writes;
      if (!best || better(p, *best)) best = p;
    }
  }
  best->why = best->fits ? why_this_long(request, *best) : why_not(request, *best);
  return *best;
}

}  // namespace

PlannedLayout plan_layout(const PlanRequest& request, const reshard::Layout& layout) {
  reshard::check_layout(layout, request.model, request.shape.batch);
  return evaluate(request, layout, sized(request.model, layout));
}

std::vector<PlannedLayout> plan_layouts(const PlanRequest& request) {
  std::vector<reshard::Layout> layouts =
      reshard::legal_layouts(request.model, request.shape.batch, request.gpus, request.max_zero);
  if (layouts.empty()) {
    // The rules that such a layout breaks, and the nearest that does not.
    reshard::Layout wanted = reshard::parse_layout(fmt::format("d{}", request.gpus));
    reshard::check_layout(wanted, request.model, request.shape.batch);
  }
  std::vector<PlannedLayout> planned;
  std::optional<reshard::Layout> known;
  Sized sizes;
  for (const reshard::Layout& layout : layouts) {
    reshard::Layout plain = layout;
    plain.zero = 0;
    if (known != plain) {
      sizes = sized(request.model, layout);
      known = plain;
    }
    planned.push_back(evaluate(request, layout, sizes));
  }
  std::ranges::stable_sort(planned, better);
  return planned;
}

}  // namespace shardwright::trainer
