// What a rank holds alike with others and another rank saves: data parallel copies, tensor parallel copies,
// tied embeddings, and the values that the passes read. A save compares them (ckpt::SaveRequest::replicas).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ckpt/source.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// The kind of a 16-bit value, which no checkpoint has: all its holders have it from a master.
inline constexpr const char* kValue = "value";

struct Replica {
  const Parameter* parameter = nullptr;
  std::string kind;
  ckpt::DType dtype = ckpt::DType::f32;
  ckpt::Box box;                // as its writer writes it
  std::span<std::byte> memory;  // empty where it is offloaded
};

/// All that this rank has to compare, equal in each bit on all that hold it between two optimizer steps:
/// masters and moments that it owns but does not write; with ZeRO 1 and 2 fp32 values that it has from other
/// ranks; values of 16 bits wherever another rank has the same. Box by box as written, so that a difference
/// is between two ranks. With ZeRO 3 nothing over the data axis, since nobody has a copy.
std::vector<Replica> replicas(Parameters& parameters);

/// For a save: sources point into the replicas' memory, or read the offload file of `parameters`.
std::vector<ckpt::SaveItem> save_items(std::span<const Replica> replicas, const Parameters& parameters);

}  // namespace shardwright::trainer
