// Where a rank's part of the model lies in its memory: a pure function, which Parameters allocates by and
// memory_of() counts by.
//
// A *unit* is what a rank computes in one go: what comes before the first layer, each layer, what comes after
// the last. Values and gradients of a unit lie together. What ZeRO shards is whole only while its unit is in
// work, in a slot that units share: one slot for layers, one for what comes before and after them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elements.h"
#include "reshard/placement.h"

namespace shardwright::trainer {

/// Places of one tensor. Values in bytes, all else in elements of fp32.
struct TensorMemory {
  reshard::Placed placed;
  ckpt::Box optimizer_box;
  std::size_t unit = 0;
  /// Of the value: the type of the run for matrices, fp32 for vectors (norms, biases), where 16 bits would
  /// save nothing.
  kernels::ElementType type = kernels::ElementType::f32;
  std::uint64_t value = 0;        // in the values; with ZeRO 3 in their slots
  std::uint64_t value_piece = 0;  // ZeRO 3: in the values' pieces
  std::uint64_t grad = 0;         // in the gradients; with ZeRO 2 and 3 in their slots
  std::uint64_t piece = 0;        // in each array of what the optimizer owns
  std::uint64_t master = 0;       // of a value of 16 bits: in the masters
};

/// A unit's part of values and gradients.
struct UnitMemory {
  std::uint64_t grad = 0;
  std::uint64_t grad_elements = 0;
  // Of its tensors, without the padding between them.
  std::uint64_t held = 0;         // elements
  std::uint64_t owned = 0;        // of those, what this rank's optimizer owns
  std::uint64_t value_bytes = 0;  // of those held
  bool layer = false;             // has the layers' slot
};

struct ParameterMemory {
  int zero =
      0;  // ZeRO stage in effect: alone along the data axis a rank owns all it holds, and that is at most 1
  std::vector<TensorMemory> tensors;  // as placement() gives them
  std::vector<UnitMemory> units;      // in the order of their computation
  std::uint64_t value_bytes = 0;      // all values; with ZeRO 3 the slots
  std::uint64_t value_piece_bytes = 0;
  std::uint64_t grad_elements = 0;  // all gradients; with ZeRO 2 and 3 the slots
  std::uint64_t piece_elements = 0;
  std::uint64_t master_elements = 0;
};

/// Bytes that Parameters allocates, by what they are for. Slots are buffers.
struct StateMemory {
  std::uint64_t param = 0;
  std::uint64_t grad = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t buffers = 0;
};
StateMemory state_memory(const ParameterMemory& memory);

/// Thread-safe; takes no longer for more ranks.
ParameterMemory parameter_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                                 kernels::ElementType type);

}  // namespace shardwright::trainer
