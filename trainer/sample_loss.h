// Forward passes over samples by number, shared by training, its evaluation and `shardwright eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/data.h"
#include "trainer/model.h"

namespace shardwright::trainer {

/// Runs a model on samples of a data set. Keeps buffers between calls; not thread-safe.
class SampleRunner {
 public:
  SampleRunner(Model& model, const TokenData& data, std::int64_t positions)
      : model_(model), data_(data), positions_(positions) {}

  /// Sum of the tokens' losses of these samples, in one forward pass; backward() of the model may follow.
  double forward(const std::vector<std::int64_t>& samples);

 private:
  Model& model_;
  const TokenData& data_;
  std::int64_t positions_;
  std::vector<std::int32_t> inputs_;   // (samples, positions)
  std::vector<std::int32_t> targets_;  // (samples, positions)
};

/// Sum of losses over this share of all samples of `data`: batches of at most `batch` samples are dealt to
/// `shares` in turn. `advance` is called after each batch.
double loss_over_share(Model& model, const TokenData& data, std::int64_t positions, std::int64_t batch,
                       int share, int shares, const std::function<void()>& advance);

}  // namespace shardwright::trainer
