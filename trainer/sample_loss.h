// Samples of a data set as micro-batches, and the loss over all of them, shared by training, its evaluation
// and `shardwright eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/data.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {

/// These samples, in this order; `first_sequence` is the number in the run of the first.
MicroBatch read_micro_batch(const TokenData& data, const std::vector<std::int64_t>& samples,
                            std::int64_t positions, std::uint64_t first_sequence);

/// Sum of losses over this share of all samples of `data`: batches of at most `batch` samples are dealt to
/// `shares` in turn. Counts as Pipeline::evaluate(). `advance` is called before each batch.
double loss_over_share(Pipeline& pipeline, const TokenData& data, std::int64_t positions, std::int64_t batch,
                       int share, int shares, const std::function<void()>& advance);

}  // namespace shardwright::trainer
