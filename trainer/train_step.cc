#include "trainer/train_step.h"

#include "ckpt/fault.h"
#include "ckpt/trace.h"
#include "trainer/sample_loss.h"

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

TrainStep::TrainStep(Pipeline& pipeline, const TokenData& data, std::int64_t positions,
                     const reshard::BatchShape& batch, int index, int size)
    : pipeline_(pipeline),
      data_(data),
      positions_(positions),
      batch_(batch),
      index_(index),
      size_(size),
      seed_(1.0 / (static_cast<double>(batch.global_batch) * static_cast<double>(positions))) {}

MicroBatch TrainStep::micro_batch(const std::vector<std::int64_t>& samples, std::int64_t first_sequence,
                                  std::int64_t micro) const {
  const trace::Span span("data", "micro", micro);
  const std::vector<std::int64_t> places = micro_batch_places(micro, batch_.micro_batch, index_, size_);
  std::vector<std::int64_t> numbers;
  for (const std::int64_t place : places) numbers.push_back(samples[static_cast<std::size_t>(place)]);
  return read_micro_batch(data_, numbers, positions_,
                          static_cast<std::uint64_t>(first_sequence + places.front()));
}

double TrainStep::run(const std::vector<std::int64_t>& samples, std::int64_t first_sequence, int rank,
                      std::int64_t step, Progress& progress, double loss_scale) {
  const Pipeline::Source source = [&](std::int64_t micro) {
    return micro_batch(samples, first_sequence, micro);
  };
  // Each fault point once a step, whatever the number of micro-batches and stages.
  bool forward = false;
  bool backward = false;
  const Pipeline::Observer observer = [&](Action action) {
    bool& seen = action == Action::forward ? forward : backward;
    if (!seen) {
      const char* point = action == Action::forward ? "step.forward" : "step.backward";
      ckpt::fault_point(point, rank, static_cast<std::uint64_t>(step));
    }
    seen = true;
    progress.advance();
  };
  return pipeline_.train(source, static_cast<float>(loss_scale * seed_), observer);
}

}  // namespace shardwright::trainer
