// Which layout to train in: every legal one, with what it costs in memory and time, best first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/plan_memory.h"
#include "trainer/plan_time.h"

namespace shardwright::trainer {

struct PlanRequest {
  reshard::ModelSpec model;
  TrainingShape shape;
  int gpus = 1;
  Machine machine;
  int max_zero = 3;
  /// What each layout may choose from: of those that fit the fastest counts, in this order among equals.
  std::vector<std::string> recompute{"none", "selective", "full"};
  std::vector<bool> sequence_parallel{false, true};
};

struct PlannedLayout {
  reshard::Layout layout;
  std::string recompute;
  bool sequence_parallel = false;
  bool fits = false;
  StepTime time;
  double bubble = 0;     // idle share of the computing time
  int fullest_rank = 0;  // whose memory this is
  MemoryBytes memory;
  std::uint64_t checkpoint_bytes = 0;  // raw, of the rank that writes most
  std::string why;                     // one line
};

/// Bytes of a checkpoint for each parameter: fp32 master and two moments.
inline constexpr std::uint64_t kCheckpointBytes = 12;

/// All legal layouts of exactly `gpus` ranks: those that fit by time, then the others by memory. Error(usage)
/// if there is none.
std::vector<PlannedLayout> plan_layouts(const PlanRequest& request);

/// One layout (its ranks, not request.gpus). Error(usage) if it is illegal.
PlannedLayout plan_layout(const PlanRequest& request, const reshard::Layout& layout);

}  // namespace shardwright::trainer
