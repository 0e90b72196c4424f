// The training state that is free of layout: what a run needs besides tensors to go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/manifest.h"

namespace shardwright::trainer {

struct TrainingState {
  std::int64_t step = 0;     // optimizer steps finished
  std::int64_t samples = 0;  // sequences consumed: the position in the data
  std::uint64_t seed = 0;
  double loss_scale = 1;              // of fp16's gradients
  std::int64_t loss_scale_steps = 0;  // finite steps since the scale changed
  std::int64_t skipped_steps = 0;
  std::string dtype = "fp32";
  std::optional<double> loss;  // of the last step; none at step 0
  // What decides which samples a position means; compared on resume. Empty or 0 in checkpoints of other
  // programs.
  std::int64_t global_batch = 0;
  std::string data;  // TokenData::digest()
  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

/// The JSON object kept in manifests as /training, and back. Error(damaged) for one that lacks step, samples
/// or seed.
std::string to_json(const TrainingState& state);
TrainingState parse_training_json(const std::string& json);

/// That of a checkpoint; Error(mismatch) naming `path` if it has none.
TrainingState training_state_of(const ckpt::Manifest& manifest, const std::string& path);

}  // namespace shardwright::trainer
