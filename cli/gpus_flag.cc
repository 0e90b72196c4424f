#include "cli/gpus_flag.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "cli/output.h"

namespace shardwright::cli {

void GpusFlag::declare(Options& flags) {
  flags.integer("--gpus", "N", 1, gpus_,
                "instead of a layout: the best one by `shardwright plan` for N GPUs of 80 GiB, 8 in a node, "
                "200 TFLOP/s each, with the batch and type of the checkpoint's training");
}

int GpusFlag::gpus() const {
  if (*gpus_ > reshard::kMaxRanks)
    throw Error(ErrorCode::usage, fmt::format("--gpus: is {}; at most {}", *gpus_, reshard::kMaxRanks));
  return static_cast<int>(*gpus_);
}

PlannedTarget planned_target(const trainer::PlanRequest& request) {
  std::vector<trainer::PlannedLayout> planned;
  try {
    planned = trainer::plan_layouts(request);
  } catch (const Error& e) {
    std::string why = e.what();
    for (char& c : why)
      if (c == '\n') c = ' ';
    throw Error(e.code(), fmt::format("--gpus {}: no layout is legal in training ({}); another number, or "
                                      "--layout, which need not suit the batch",
                                      request.gpus, why));
  }
  const trainer::PlannedLayout& best = planned.front();
  PlannedTarget target;
  target.layout = best.layout;
  target.text = fmt::format(
      "plan: {}, the best of {} legal layouts of {} GPUs with {}: {:.3g} s a step by estimate ({})",
      best.layout.string(), planned.size(), request.gpus,
      ckpt::size_text(static_cast<std::uint64_t>(request.machine.memory_bytes)), best.time.total(), best.why);
  const nlohmann::ordered_json json = {{"gpus", request.gpus},
                                       {"layout", best.layout.string()},
                                       {"legal", planned.size()},
                                       {"fits", best.fits},
                                       {"step_s", json_float(best.time.total())},
                                       {"memory_bytes", best.memory.total()},
                                       {"recompute", best.recompute},
                                       {"sequence_parallel", best.sequence_parallel},
                                       {"global_batch", request.shape.batch.global_batch},
                                       {"micro_batch", request.shape.batch.micro_batch},
                                       {"dtype", request.shape.dtype},
                                       {"why", best.why}};
  target.json = json.dump();
  if (!best.fits)
    target.warning = fmt::format("--gpus {}: no layout fits; {}, which needs least, {}", request.gpus,
                                 best.layout.string(), best.why);
  return target;
}

}  // namespace shardwright::cli
