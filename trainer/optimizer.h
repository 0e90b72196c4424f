// From local gradients to new parameters: data-parallel reduction, global norm, clipping, AdamW, and the
// gather that ZeRO 1 needs. The pieces are placement's; nothing here computes a range.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "trainer/bucket.h"
#include "trainer/communicator.h"
#include "trainer/config.h"
#include "trainer/copy_sum.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

struct StepResult {
  double grad_norm = 0;  // of the whole model's gradient, before clipping
  bool finite = true;
};

/// Told of each (kind, box) just before it changes.
using BeforeWrite = std::function<void(const Parameter&, const char* kind, const ckpt::Box&)>;

class Optimizer {
 public:
  Optimizer(Parameters& parameters, Communicators& comms, kernels::Stream& stream, const Config::Optim& hyper,
            bool sequence_parallel);

  /// First the sum of partial gradients over the ranks of a model's copy (copy_sum.h), then over dp. ZeRO 0:
  /// all-reduce of gradients over dp, in place. ZeRO 1: reduce-scatter, each rank its pieces (uneven, some
  /// empty); gradients outside them are then stale. What several ranks hold alike stays equal in each bit.
  void reduce_gradients();

  /// The norm over writer boxes only (each element once), summed over all ranks in float64. `words` are
  /// summed along in the same all-reduce: how outcomes, failures, busy flags and stop requests travel without
  /// a collective of their own.
  StepResult norm(std::span<double> words);

  /// AdamW on the optimizer boxes with the norm's clipping, then (ZeRO 1) all-gather of parameters.
  /// `before_write` is called for each (kind, box) about to change. `step` counts from 1.
  void update(const StepResult& norm, double lr, std::int64_t step, const BeforeWrite& before_write);

 private:
  Parameters& parameters_;
  Communicators& comms_;
  kernels::Stream& stream_;
  Config::Optim hyper_;
  CopySum copy_sum_;
  std::vector<Bucket> copies_;  // none in a group of one
  std::optional<Bucket> own_;   // with ZeRO >= 1 only
};

/// Learning rate of step `step` (from 1): a pure function. Linear warm-up over warmup_steps, then cosine or
/// linear to min_lr at `steps`, constant, or wsd (constant, then linear to min_lr over the last tenth).
double learning_rate(const Config::Optim& hyper, std::int64_t step, std::int64_t steps);

}  // namespace shardwright::trainer
