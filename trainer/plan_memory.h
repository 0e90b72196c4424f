// What a rank allocates while it trains, from placement and the sizes of the batch alone, before anything is
// allocated.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/layout.h"
#include "reshard/placement.h"
#include "trainer/activations.h"
#include "trainer/schedule.h"

namespace shardwright::trainer {

/// Bytes by kind, as kernels::MemoryUse counts them. param: what forward and backward read. optimizer:
/// moments, and with 16-bit types the fp32 master weights; none where they are offloaded. activation: what
/// passes keep and work in. buffers: communication, windows of offloaded state, and layers that ZeRO 2 and 3
/// have whole only while in work.
struct MemoryBytes {
  std::uint64_t param = 0;
  std::uint64_t grad = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t activation = 0;
  std::uint64_t buffers = 0;
  std::uint64_t total() const { return param + grad + optimizer + activation + buffers; }
};

/// How a model is trained, besides its layout.
struct TrainingShape {
  reshard::BatchShape batch;
  std::int64_t positions = 0;
  std::string dtype = "fp32";      // [train] dtype
  std::string recompute = "none";  // [parallel] recompute
  bool sequence_parallel = false;
  bool offload = false;  // [parallel] offload is "nvme"
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
};

/// Bytes of an element of the computation: 4 with fp32, else 2.
std::uint64_t element_bytes(const TrainingShape& shape);

/// Of a legal layout's rank.
MemoryBytes memory_of_rank(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                           const TrainingShape& shape);

struct SizedRank {
  int rank = 0;
  reshard::RankSizes sizes;
};
/// The ranks of which one needs the most memory, however the layout is trained: of those at one place in the
/// pipeline the ones that no other exceeds in both what it holds and what it owns. `sizes` is rank_sizes().
std::vector<SizedRank> largest_ranks(const reshard::Layout& layout,
                                     const std::vector<reshard::RankSizes>& sizes);

struct FullestRank {
  int rank = 0;
  MemoryBytes memory;
};

/// The rank of a layout that needs the most memory, for several ways to train in it. Not thread-safe.
class LayoutMemory {
 public:
  /// `largest` is largest_ranks(). All are kept by reference.
  LayoutMemory(const reshard::ModelSpec& model, const reshard::Layout& layout,
               const std::vector<SizedRank>& largest)
      : model_(model), layout_(layout), largest_(largest) {}

  /// Shapes of one dtype, all with or all without offload. Exact for the rank that it names; which one that
  /// is follows from elements and activations, so that another may need more by the padding of its tensors.
  FullestRank fullest(const TrainingShape& shape);

 private:
  const reshard::ModelSpec& model_;
  const reshard::Layout& layout_;
  const std::vector<SizedRank>& largest_;
  std::optional<DecoderShape> decoder_;
  std::map<int, MemoryBytes> fixed_;  // by rank: what is the same for all shapes
};

}  // namespace shardwright::trainer
