#include "trainer/auto_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "ckpt/error.h"
#include "kernels/peak.h"
#include "trainer/memory_need.h"
#include "trainer/plan_request.h"

namespace shardwright::trainer {
namespace {

// Of the whole machine, shared by its ranks. They say which layout is better, not how long a step takes.
constexpr double kMemoryGbps = 10;         // that the optimizer's passes over memory reach
constexpr double kMessageGbps = 4;         // of messages through shared memory
constexpr double kMessageLatency = 20e-6;  // seconds

double measured_gflops() {
  constexpr std::int64_t kSize = 1024;
  constexpr double kSeconds = 0.1;
  kernels::set_threads(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  kernels::Stream stream(kernels::DeviceKind::cpu);
  return kernels::peak_matmul_gflops(stream, kSize, kSeconds);
}

}  // namespace

PlanRequest local_request(const Config& config, const ValueSources& sources, int ranks, double gflops,
                          double memory_bytes) {
  PlanRequest request = plan_request(config, sources);
  request.gpus = ranks;
  request.machine.gpus_per_node = ranks;
  request.machine.gflops = gflops / ranks;
  request.machine.memory_bytes = memory_bytes / ranks;
  request.machine.memory_gbps = kMemoryGbps / ranks;
  request.machine.node = {kMessageLatency, kMessageGbps / ranks};
  request.machine.network = request.machine.node;
  return request;
}

AutoPlan choose_layout(const std::string& config_file, const std::vector<Override>& overrides,
                       const std::optional<int>& nproc) {
  ValueSources sources;
  const Config config = load_config(config_file, overrides, &sources);
  const int ranks = nproc.value_or(config.parallel.layout.least_ranks());
  const PlanRequest request = local_request(config, sources, ranks, measured_gflops(), machine_memory());
  const std::vector<PlannedLayout> planned = plan_layouts(request);
  const PlannedLayout& best = planned.front();
  if (!best.fits)
    throw Error(ErrorCode::usage,
                fmt::format("--plan: no layout of {} ranks fits this machine, and {} {}; a smaller model, "
                            "micro_batch or seq_len",
                            ranks, best.layout.string(), best.why));
  AutoPlan plan;
  plan.overrides = layout_overrides(best.layout);
  plan.overrides.push_back({"parallel.recompute", best.recompute});
  plan.overrides.push_back({"parallel.sequence_parallel", best.sequence_parallel ? "true" : "false"});
  plan.text = fmt::format(
      "plan: {}{}{}, the best of {} legal layouts of {} ranks: {:.3g} s a step by estimate ({})",
      best.layout.string(), best.recompute == "none" ? "" : fmt::format(", recompute {}", best.recompute),
      best.sequence_parallel ? ", sequence parallel" : "", planned.size(), ranks, best.time.total(),
      best.why);
  return plan;
}

}  // namespace shardwright::trainer
