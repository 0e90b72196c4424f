// Forward and backward of one optimizer step on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/layout.h"
#include "trainer/data.h"
#include "trainer/model.h"
#include "trainer/progress.h"
#include "trainer/sample_loss.h"

namespace shardwright::trainer {

/// Samples of a step by place: positions [first, first + global_batch) of the run, in order.
std::vector<std::int64_t> samples_of_step(const SampleOrder& order, std::int64_t first,
                                          std::int64_t global_batch);

/// The places (0 .. global_batch) of micro-batch `micro` at place `index` of `size` along dp: which samples a
/// step has never depends on the layout.
std::vector<std::int64_t> micro_batch_places(std::int64_t micro, std::int64_t micro_batch, int index,
                                             int size);

class TrainStep {
 public:
  /// `index` and `size`: this rank's place along dp.
  TrainStep(Model& model, const TokenData& data, std::int64_t positions, const reshard::BatchShape& batch,
            int index, int size);

  /// Adds the gradients of this rank's micro-batches, seeded with 1 / (global_batch * positions), and returns
  /// the sum of their losses. Fault points step.forward and step.backward.
  double run(const std::vector<std::int64_t>& samples, int rank, std::int64_t step, Progress& progress);

 private:
  Model& model_;
  SampleRunner runner_;
  reshard::BatchShape batch_;
  int index_;
  int size_;
  float seed_;  // of backward
};

}  // namespace shardwright::trainer
