#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "trainer/doctor.h"
#include "trainer/memory_need.h"
#include "trainer/plan_request.h"

namespace shardwright::trainer {
namespace {

Finding memory_need(const Config& config, const reshard::ModelSpec& model, const reshard::Layout& layout) {
  const TrainingShape shape = training_shape(config);
  const double needed = least_memory(model, layout, shape);
  Finding finding{"memory of the run",
                  fmt::format("{} for {} parameters in layout {}",
                              ckpt::size_text(static_cast<std::uint64_t>(std::min(needed, 0x1p63))),
                              model.parameters(), layout.string()),
                  {},
                  {}};
  try {
    check_memory(model, layout, shape, machine_memory());
  } catch (const Error& error) {
    finding.concern = Concern::error;
    finding.advice = error.what();
  }
  return finding;
}

Finding disk_need(const Config& config, const reshard::ModelSpec& model) {
  const std::uint64_t one = kCheckpointBytes * model.parameters();
  // One more than are kept: the oldest goes when the newest is whole.
  const std::uint64_t kept =
      config.checkpoint.keep > 0 ? static_cast<std::uint64_t>(config.checkpoint.keep) + 1 : 1;
  Finding finding{"disk of the run",
                  fmt::format("{} for each checkpoint before compression, {}", ckpt::size_text(one),
                              config.checkpoint.keep > 0 ? fmt::format("{} at once", kept) : "all are kept"),
                  {},
                  {}};
  const std::string there = nearest_directory(config.checkpoints_dir);
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  if (!error && space.available < one * kept) {
    finding.concern = Concern::warning;
    finding.advice =
        fmt::format("{} has {} free; free some, keep fewer (checkpoint.keep), or give another checkpoint.dir",
                    there, ckpt::size_text(space.available));
  }
  return finding;
}

}  // namespace

std::vector<Finding> examine_run(const Config& config, const reshard::ModelSpec& model,
                                 const reshard::Layout& layout) {
  return {memory_need(config, model, layout), disk_need(config, model)};
}

}  // namespace shardwright::trainer
