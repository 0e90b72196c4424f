// Whether a model can fit this machine at all, asked before anything is allocated: a mistyped size shall cost
// a second, not the machine.
#pragma once

#include "trainer/plan_memory.h"

namespace shardwright::trainer {

/// Bytes that the ranks of a legal layout together ask for: what the planner counts of each (memory_of_rank).
/// What a save copies is left out, because it depends on how fast the disk is. What 64 bits cannot count is
/// given by a lower bound: a floating-point number, because nonsense overflows every other.
double least_memory(const reshard::ModelSpec& model, const reshard::Layout& layout,
                    const TrainingShape& shape);

/// Memory and swap of this machine, or what its control group allows if that is less, in bytes.
double machine_memory();

/// Error(usage) if all ranks, on this machine, need more than `available` bytes.
void check_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, const TrainingShape& shape,
                  double available);

}  // namespace shardwright::trainer
