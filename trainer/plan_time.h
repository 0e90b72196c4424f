// How long a training step takes on a given machine: arithmetic from a rate, communication from latencies and
// bandwidths (the alpha-beta model), the pipeline's bubble. Estimates, for comparing layouts: PLANNER.md says
// what is in them and what is not.
#pragma once

#include <cstdint>

#include "reshard/layout.h"
#include "reshard/placement.h"
#include "trainer/plan_memory.h"

namespace shardwright::trainer {

/// A link as one rank sees it, in one direction.
struct Link {
  double latency_s = 0;
  double gbps = 0;  // 10^9 bytes per second
};

struct Machine {
  double gflops = 200e3;  // 10^9 operations a second of a GPU in matrix products
  double memory_gbps = 1500;
  double memory_bytes = 80.0 * (1 << 30);  // of a GPU
  int gpus_per_node = 8;
  Link node{5e-6, 200};
  Link network{15e-6, 25};  // between nodes, of a GPU
};

/// Seconds of a step, by what they go to, on the pipeline's slowest rank. What overlaps with computation
/// counts only as far as it is longer.
struct StepTime {
  double compute = 0;
  double recompute = 0;
  double tensor = 0;    // sums over the tensor group
  double pipeline = 0;  // transfers between stages
  double bubble = 0;    // waiting for the pipeline to fill and drain
  double data = 0;      // gradients and parameters over the data parallel group
  double optimizer = 0;
  double total() const { return compute + recompute + tensor + pipeline + bubble + data + optimizer; }
};

/// Of a legal layout; `most` are the elements of the rank that holds most.
StepTime step_time(const reshard::ModelSpec& model, const reshard::Layout& layout, const TrainingShape& shape,
                   const Machine& machine, const reshard::RankSizes& most);

/// The pipeline's idle share of the time that it computes: (p - 1) / (micro-batches * interleaved parts).
double bubble_share(const reshard::ModelSpec& model, const reshard::Layout& layout,
                    const TrainingShape& shape);

/// Whether the group of ranks along an axis lies within one node.
bool within_node(const reshard::Layout& layout, reshard::Axis axis, int gpus_per_node);

}  // namespace shardwright::trainer
