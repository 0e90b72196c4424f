// `train --plan auto`: the layout for this machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/config.h"
#include "trainer/planner.h"

namespace shardwright::trainer {

/// plan_request() for `ranks` ranks that share this machine: `gflops` is the rate of all its cores together.
PlanRequest local_request(const Config& config, const ValueSources& sources, int ranks, double gflops,
                          double memory_bytes);

struct AutoPlan {
  std::vector<Override> overrides;  // that make the configuration train as planned
  std::string text;                 // what was chosen, and why
};

/// Measures this machine (a fraction of a second) and chooses for `nproc` ranks, or as many as the
/// configuration's layout has. Error(usage) for a bad configuration, no legal layout, or none that fits.
AutoPlan choose_layout(const std::string& config_file, const std::vector<Override>& overrides,
                       const std::optional<int>& nproc);

}  // namespace shardwright::trainer
