// Plans without a checkpoint: what one of a model and a layout would consist of, and what a reshard of it
// would do.
#pragma once

#include "reshard/layout.h"
#include "reshard/model_spec.h"
#include "reshard/target_plan.h"

namespace shardwright::reshard {

/// The counts of plan_target() for a training checkpoint of `model` in the layout `from`: weights and two
/// moments in fp32, a file a rank. It has no `states`. Memory is for the boxes of one tensor, whatever the
/// ranks. Both layouts must be legal: Error(usage) else.
TargetPlan plan_imagined(const ModelSpec& model, const Layout& from, const Layout& to, bool weights_only);

}  // namespace shardwright::reshard
