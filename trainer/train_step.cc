#include "trainer/train_step.h"

#include "ckpt/fault.h"

namespace shardwright::trainer {

std::vector<std::int64_t> samples_of_step(const SampleOrder& order, std::int64_t first,
                                          std::int64_t global_batch) {
  std::vector<std::int64_t> samples;
  for (std::int64_t place = 0; place < global_batch; ++place) samples.push_back(order.sample(first + place));
  return samples;
}

std::vector<std::int64_t> micro_batch_places(std::int64_t micro, std::int64_t micro_batch, int index,
                                             int size) {
  std::vector<std::int64_t> places;
  const std::int64_t first = (micro * size + index) * micro_batch;
  for (std::int64_t i = 0; i < micro_batch; ++i) places.push_back(first + i);
  return places;
}

TrainStep::TrainStep(Model& model, const TokenData& data, std::int64_t positions,
                     const reshard::BatchShape& batch, int index, int size)
    : model_(model),
      runner_(model, data, positions),
      batch_(batch),
      index_(index),
      size_(size),
      seed_(static_cast<float>(1.0 /
                               (static_cast<double>(batch.global_batch) * static_cast<double>(positions)))) {}

double TrainStep::run(const std::vector<std::int64_t>& samples, int rank, std::int64_t step,
                      Progress& progress) {
  const std::uint64_t at = static_cast<std::uint64_t>(step);
  const std::int64_t micros = batch_.global_batch / (batch_.micro_batch * size_);
  double loss = 0;
  std::vector<std::int64_t> numbers;
  for (std::int64_t micro = 0; micro < micros; ++micro) {
    numbers.clear();
    for (std::int64_t place : micro_batch_places(micro, batch_.micro_batch, index_, size_))
      numbers.push_back(samples[static_cast<std::size_t>(place)]);
    // Once a step, whatever the number of micro-batches.
    if (micro == 0) ckpt::fault_point("step.forward", rank, at);
    loss += runner_.forward(numbers);
    if (micro == 0) ckpt::fault_point("step.backward", rank, at);
    model_.backward(seed_);
    progress.advance();
  }
  return loss;
}

}  // namespace shardwright::trainer
