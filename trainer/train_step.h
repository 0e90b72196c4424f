// Forward and backward of one optimizer step on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/layout.h"
#include "trainer/data.h"
#include "trainer/pipeline.h"
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
  TrainStep(Pipeline& pipeline, const TokenData& data, std::int64_t positions,
            const reshard::BatchShape& batch, int index, int size);

  /// Adds the gradients of this rank's micro-batches, seeded with loss_scale / (global_batch * positions).
  /// `samples` are those of the step, the first of them being sequence `first_sequence` of the run. Returns
  /// what this rank adds to the sum of losses over all ranks. Fault points step.forward and step.backward.
  double run(const std::vector<std::int64_t>& samples, std::int64_t first_sequence, int rank,
             std::int64_t step, Progress& progress, double loss_scale = 1);
  /// This rank's micro-batch of a number, of such a step.
  MicroBatch micro_batch(const std::vector<std::int64_t>& samples, std::int64_t first_sequence,
                         std::int64_t micro) const;

 private:
  Pipeline& pipeline_;
  const TokenData& data_;
  std::int64_t positions_;
  reshard::BatchShape batch_;
  int index_;
  int size_;
  double seed_;  // of backward, at a loss scale of 1
};

}  // namespace shardwright::trainer
