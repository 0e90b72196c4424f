// From what a user gives, a configuration or a preset, to what the planner is asked.
#pragma once

#include <string>

#include "reshard/presets.h"
#include "trainer/config.h"
#include "trainer/planner.h"

namespace shardwright::trainer {

/// How a configuration trains, besides its layout: what memory and time of a run are counted by.
TrainingShape training_shape(const Config& config);

/// As many ranks as the configuration's layout has at the least, on the planner's machine. Recompute modes
/// and sequence parallelism are open where the configuration does not say them (`sources` of load_config).
PlanRequest plan_request(const Config& config, const ValueSources& sources);

/// The preset's published batch, a sequence at a time in bf16.
PlanRequest plan_request(const reshard::Preset& preset);

/// To go on with a checkpoint's model on `gpus` of the planner's machines: batch and type as in
/// `training_config`, the JSON of the configuration that is stored with it. What that does not say is a batch
/// that any layout divides, a sequence at a time, in fp32. How activations are kept is open.
PlanRequest plan_request(const reshard::ModelSpec& model, const std::string& training_config, int gpus);

}  // namespace shardwright::trainer
