// Known models by name: the sizes that were published, so that nobody has to look them up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/model_spec.h"

namespace shardwright::reshard {

struct Preset {
  std::string name;
  ModelConfig model;
  std::int64_t global_batch = 0;  // sequences of a step: the published one, or a usual one
};

/// By family, small to large. The tables have exactly the published number of parameters; what a table does
/// not say (rotary base, epsilon of the norms) is this program's own.
const std::vector<Preset>& presets();

/// Null if no preset has the name.
const Preset* find_preset(std::string_view name);

/// The known name that was most likely meant.
std::string nearest_preset(std::string_view name);

}  // namespace shardwright::reshard
