#include "trainer/plan_memory.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "trainer/activations.h"
#include "trainer/copy_sum.h"
#include "trainer/data_parallel.h"
#include "trainer/offload_windows.h"
#include "trainer/parameter_memory.h"

namespace shardwright::trainer {
namespace {

using reshard::Axis;

constexpr std::uint64_t kFloat = 4;

std::int64_t rows_of(const TrainingShape& shape) { return shape.batch.micro_batch * shape.positions; }

// What passes need: activations of the micro-batches alive at once at a place of the pipeline, and the room
// that all work in.
class PassMemory {
 public:
  PassMemory(const reshard::ModelSpec& model, const reshard::Layout& layout, DecoderShape decoder,
             const TrainingShape& shape)
      : model_(model), layout_(layout), shape_(shape), decoder_(std::move(decoder)) {
    const int ranks = reshard::axis_size(layout, Axis::tp);
    const bool spread = shape.sequence_parallel && ranks > 1;
    decoder_.recompute = recompute_named(shape.recompute);
    decoder_.max_local_rows = TensorGroup::most_local_rows(rows_of(shape), spread ? ranks : 1);
    work_ = static_cast<std::uint64_t>(workspace_bytes(decoder_, spread));
  }

  std::uint64_t bytes(int rank) {
    const auto stages = reshard::virtual_stages(layout_, model_, rank);
    const PipelinePlace place{reshard::axis_size(layout_, Axis::pp),
                              reshard::axis_index(layout_, rank, Axis::pp), static_cast<int>(stages.size())};
    const std::vector<std::int64_t> alive =
        buffers_of_chunks(shape_.schedule, place, reshard::micro_batches(layout_, shape_.batch));
    std::uint64_t bytes = work_;
    for (std::size_t i = 0; i < stages.size(); ++i)
      bytes += static_cast<std::uint64_t>(alive[i]) * stage_bytes(stages[i]);
    return bytes;
  }

 private:
  // Most stages are alike.
  std::uint64_t stage_bytes(const reshard::StageLayers& stage) {
    const auto [known, fresh] = stages_.try_emplace({stage.layers, stage.first, stage.last});
    if (fresh) known->second = static_cast<std::uint64_t>(activation_bytes(decoder_, stage));
    return known->second;
  }

  const reshard::ModelSpec& model_;
  const reshard::Layout& layout_;
  const TrainingShape& shape_;
  DecoderShape decoder_;
  std::uint64_t work_ = 0;
  // By layers, and whether it is the first and the last.
  std::map<std::tuple<std::int64_t, bool, bool>, std::uint64_t> stages_;
};

// Parameters, gradients and optimizer state of a rank that holds and owns so many elements, but for padding
// and what vectors differ in: enough to tell which rank needs the most.
MemoryBytes state_bytes(const reshard::Layout& layout, const reshard::RankSizes& sizes,
                        const TrainingShape& shape) {
  const std::uint64_t element = element_bytes(shape);
  const std::uint64_t state = shape.offload ? 0 : 2 * kFloat + (element < kFloat ? kFloat : 0);
  MemoryBytes bytes;
  bytes.param = element * (layout.zero >= 3 ? sizes.piece : sizes.holds);
  bytes.grad = kFloat * (layout.zero >= 2 ? sizes.piece : sizes.holds);
  bytes.optimizer = state * (layout.zero >= 1 ? sizes.piece : sizes.holds);
  return bytes;
}

// What does not depend on how passes are made: all but activations and the room for passes.
MemoryBytes fixed_bytes(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                        const TrainingShape& shape) {
  const ParameterMemory memory = parameter_memory(model, layout, rank, element_type_named(shape.dtype));
  const bool value_slots = memory.zero >= 3;
  const bool grad_slots = memory.zero >= 2;
  MemoryBytes bytes;
  bytes.param = value_slots ? memory.value_piece_bytes : memory.value_bytes;
  bytes.grad = kFloat * (grad_slots ? memory.piece_elements : memory.grad_elements);
  bytes.optimizer = shape.offload ? 0 : kFloat * (2 * memory.piece_elements + memory.master_elements);
  bytes.buffers = CopySum::bytes(memory) + (shape.offload ? offload_buffer_bytes(memory) : 0) +
                  passage_memory(memory, reshard::axis_size(layout, Axis::dp)).bytes() +
                  (value_slots ? memory.value_bytes : 0) + (grad_slots ? kFloat * memory.grad_elements : 0);
  return bytes;
}

DecoderShape shape_of_rank(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                           const TrainingShape& shape) {
  return decoder_shape(model, layout, rank, false, rows_of(shape), element_type_named(shape.dtype),
                       Recompute::none);
}

}  // namespace

std::uint64_t element_bytes(const TrainingShape& shape) { return shape.dtype == "fp32" ? 4 : 2; }

MemoryBytes memory_of_rank(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                           const TrainingShape& shape) {
  MemoryBytes bytes = fixed_bytes(model, layout, rank, shape);
  bytes.activation = PassMemory(model, layout, shape_of_rank(model, layout, rank, shape), shape).bytes(rank);
  return bytes;
}

std::vector<SizedRank> largest_ranks(const reshard::Layout& layout,
                                     const std::vector<reshard::RankSizes>& sizes) {
  // By place in the pipeline.
  std::vector<std::vector<SizedRank>> places(static_cast<std::size_t>(reshard::axis_size(layout, Axis::pp)));
  const auto covers = [](const reshard::RankSizes& a, const reshard::RankSizes& b) {
    return a.holds >= b.holds && a.piece >= b.piece;
  };
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const int at = reshard::axis_index(layout, static_cast<int>(rank), Axis::pp);
    std::vector<SizedRank>& here = places[static_cast<std::size_t>(at)];
    const reshard::RankSizes& own = sizes[rank];
    if (std::ranges::any_of(here, [&](const SizedRank& other) { return covers(other.sizes, own); })) continue;
    std::erase_if(here, [&](const SizedRank& other) { return covers(own, other.sizes); });
    here.push_back({static_cast<int>(rank), own});
  }
  std::vector<SizedRank> largest;
  for (const std::vector<SizedRank>& here : places) largest.insert(largest.end(), here.begin(), here.end());
  return largest;
}

FullestRank LayoutMemory::fullest(const TrainingShape& shape) {
  // The first of the ranks with the head, which no tensor parallel rank exceeds in any size.
  if (!decoder_)
    decoder_ = shape_of_rank(model_, layout_, reshard::axis_group(layout_, 0, Axis::pp).back(), shape);
  PassMemory passes(model_, layout_, *decoder_, shape);
  // The ends of the pipeline hold what others do not, and have buffers for it; of those between, the largest.
  struct Candidate {
    std::uint64_t bytes = 0;
    std::uint64_t activation = 0;
    int rank = 0;
  };
  std::array<Candidate, 3> candidates;
  const int last = reshard::axis_size(layout_, Axis::pp) - 1;
  for (const SizedRank& ranked : largest_) {
    const int place = reshard::axis_index(layout_, ranked.rank, Axis::pp);
    const std::uint64_t activation = passes.bytes(ranked.rank);
    const std::uint64_t bytes = state_bytes(layout_, ranked.sizes, shape).total() + activation;
    Candidate& candidate = candidates[place == 0 ? 0 : place == last ? 2 : 1];
    if (bytes > candidate.bytes) candidate = {bytes, activation, ranked.rank};
  }
  FullestRank fullest;
  for (const Candidate& candidate : candidates) {
    if (candidate.bytes == 0) continue;
    const int rank = candidate.rank;
    if (!fixed_.contains(rank)) fixed_[rank] = fixed_bytes(model_, layout_, rank, shape);
    MemoryBytes memory = fixed_[rank];
    memory.activation = candidate.activation;
    if (memory.total() > fullest.memory.total()) fullest = {rank, memory};
  }
  return fullest;
}

}  // namespace shardwright::trainer
