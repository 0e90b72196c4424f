// Whether a model can fit this machine at all, asked before anything is allocated: a mistyped size shall cost
// a second, not the machine.
#pragma once

#include <cstdint>

#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::trainer {

/// Bytes that the ranks of a layout together allocate at the least: values and gradients of each copy,
/// moments, the copy that a save takes of all three, logits. A floating-point number, because nonsense
/// overflows every other.
double least_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, std::int64_t micro_batch);

/// Memory and swap of this machine, or what its control group allows if that is less, in bytes.
double machine_memory();

/// Error(usage) if all ranks, on this machine, need more than `available` bytes.
void check_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, std::int64_t micro_batch,
                  double available);

}  // namespace shardwright::trainer
