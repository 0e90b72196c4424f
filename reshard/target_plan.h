// What a reshard has to do, from manifest and layout alone: which states, which boxes of each target rank,
// how many copies.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ckpt/chunk_cache.h"
#include "ckpt/contents.h"
#include "reshard/conversion.h"
#include "reshard/converted_state.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"
#include "reshard/reshard.h"

namespace shardwright::reshard {

/// A state that the target keeps.
struct KeptState {
  std::uint32_t state = 0;                               // row of the source's states
  std::uint32_t tensor = 0;                              // row of the target model's tensors
  ckpt::DType dtype = ckpt::DType::f32;                  // in the target
  std::shared_ptr<const ConvertedState> converted = {};  // null where all values are the source's
};

struct TargetPlan {
  ModelSpec model;  // of the target
  Layout layout;
  std::vector<KeptState> states;  // in the model's order
  std::uint64_t tensors = 0;
  std::uint64_t raw_bytes = 0;         // of all kept states, as the target has them
  std::uint64_t source_raw_bytes = 0;  // the same, as the source has them
  std::uint64_t source_chunks = 0;     // stored chunks of the kept states
  std::uint64_t target_chunks = 0;
  std::uint64_t kept_chunks = 0;  // of these, stored by the source exactly so
  std::uint64_t copies = 0;       // intersections of target boxes with source boxes
  std::uint64_t files = 0;        // target ranks with anything to write
  std::uint64_t files_read = 0;   // of the source
  std::vector<RankShare> ranks;
};

/// Error(mismatch) if nothing is kept; errors of `conversion` else.
TargetPlan plan_target(const ckpt::Manifest& source, const Layout& layout, const Conversion& conversion = {},
                       const std::string& path = "checkpoint");

/// What target rank `rank` writes. Sources read through `cache`.
std::vector<ckpt::SaveItem> target_items(const TargetPlan& plan, std::shared_ptr<ckpt::ChunkCache> cache,
                                         int rank);

}  // namespace shardwright::reshard
