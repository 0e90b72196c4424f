// From what a user gives, a configuration or a preset, to what the planner is asked.
#pragma once

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

}  // namespace shardwright::trainer
