// `reshard --gpus N`: the target layout is the planner's best one for so many GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/options.h"
#include "trainer/planner.h"

namespace shardwright::cli {

/// The layout taken, and what is said of it.
struct PlannedTarget {
  reshard::Layout layout;
  std::string text;     // one line
  std::string json;     // an object
  std::string warning;  // one line; empty if it fits
};

class GpusFlag {
 public:
  void declare(Options& flags);
  bool given() const { return gpus_.has_value(); }
  /// Error(usage) above the most ranks that there can be. Of a flag that was given.
  int gpus() const;

 private:
  std::optional<std::int64_t> gpus_;
};

/// The best of all legal layouts of `request.gpus` GPUs. Error(usage), in one line, if there is none.
PlannedTarget planned_target(const trainer::PlanRequest& request);

}  // namespace shardwright::cli
