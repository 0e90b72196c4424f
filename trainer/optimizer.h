// From local gradients to new parameters: data-parallel reduction, global norm, clipping, AdamW, and the gather that ZeRO 1
// needs. The pieces are placement's; nothing here computes a range.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "trainer/communicator.h"
#include "trainer/config.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

struct StepResult {
  double grad_norm = 0;  // of the whole model's gradient, before clipping
  bool finite = true;
};

class Optimizer {
 public:
  Optimizer(Parameters& parameters, Communicators& comms, kernels::Stream& stream, const Config::Optim& hyper);

  /// ZeRO 0: all-reduce of gradients over dp. ZeRO 1: reduce-scatter, each rank its pieces (uneven). Uses one packed buffer.
  void reduce_gradients();

  /// The norm over writer boxes only (each element once), summed over all ranks in float64. `words` are summed along in the same
  /// all-reduce: how outcomes, failures, busy flags and stop requests travel without a collective of their own.
  StepResult norm(std::span<double> words);

  /// AdamW on the optimizer boxes with the norm's clipping, then (ZeRO 1) all-gather of parameters. `before_write` is called for
  /// each (kind, box) about to change. `step` counts from 1.
  void update(const StepResult& norm, double lr, std::int64_t step,
              const std::function<void(const Parameter&, const char* kind, const ckpt::Box&)>& before_write);

 private:
  Parameters& parameters_;
  Communicators& comms_;
  kernels::Stream& stream_;
  Config::Optim hyper_;
  std::vector<float> packed_;
  std::vector<std::int64_t> counts_;
};

/// Learning rate of step `step` (from 1): a pure function. Linear warm-up over warmup_steps, then cosine or linear to min_lr at `steps`,
/// constant, or wsd (constant, then linear to min_lr over the last tenth).
double learning_rate(const Config::Optim& hyper, std::int64_t step, std::int64_t steps);

}  // namespace shardwright::trainer
