// From local gradients to new parameters: reductions, global norm, clipping, AdamW. The pieces are
// placement's; nothing here computes a range.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "trainer/communicator.h"
#include "trainer/config.h"
#include "trainer/copy_sum.h"
#include "trainer/data_parallel.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

struct StepResult {
  double grad_norm = 0;  // of the whole model's gradient, before clipping
  bool finite = true;
  double loss_scale = 1;  // what the gradients were multiplied by
};

/// Told of each (kind, box) just before it changes.
using BeforeWrite = std::function<void(const Parameter&, const char* kind, const ckpt::Box&)>;

class Optimizer {
 public:
  Optimizer(Parameters& parameters, Communicators& comms, DataParallel& data, kernels::Stream& stream,
            const Config::Optim& hyper, bool sequence_parallel);

  /// First the sum over dp, then that of partial gradients over the ranks of a model's copy (copy_sum.h):
  /// after it grad_piece is the gradient of the whole batch. What several ranks hold alike is equal in each
  /// bit.
  void reduce_gradients();

  /// The norm over writer boxes only (each element once), summed over all ranks in float64. `words` are
  /// summed along in the same all-reduce: how outcomes, failures, busy flags and stop requests travel without
  /// a collective of their own. `loss_scale` is what the gradients are multiplied by; the norm is without it.
  StepResult norm(std::span<double> words, double loss_scale = 1);

  /// AdamW on what this rank owns, with the norm's clipping; then the values follow on all ranks.
  /// `before_write` is called for each (kind, box) about to change. `step` counts from 1.
  void update(const StepResult& norm, double lr, std::int64_t step, const BeforeWrite& before_write);

 private:
  void update_in_memory(const kernels::AdamW& hyper, const BeforeWrite& before_write);
  void update_offloaded(const kernels::AdamW& hyper, const BeforeWrite& before_write);

  Parameters& parameters_;
  Communicators& comms_;
  DataParallel& data_;
  kernels::Stream& stream_;
  Config::Optim hyper_;
  CopySum copy_sum_;
};

/// Learning rate of step `step` (from 1): a pure function. Linear warm-up over warmup_steps, then cosine or
/// linear to min_lr at `steps`, constant, or wsd (constant, then linear to min_lr over the last tenth).
double learning_rate(const Config::Optim& hyper, std::int64_t step, std::int64_t steps);

}  // namespace shardwright::trainer
