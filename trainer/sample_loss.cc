#include "trainer/sample_loss.h"

#include <algorithm>
#include <numeric>

namespace shardwright::trainer {

MicroBatch read_micro_batch(const TokenData& data, const std::vector<std::int64_t>& samples,
                            std::int64_t positions, std::uint64_t first_sequence) {
  MicroBatch m;
  m.batch = std::ssize(samples);
  m.positions = positions;
  m.first_sequence = first_sequence;
  m.tokens.resize(samples.size() * static_cast<std::size_t>(positions));
  m.targets.resize(m.tokens.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::size_t row = i * static_cast<std::size_t>(positions);
    data.read(samples[i], positions, m.tokens.data() + row, m.targets.data() + row);
  }
  return m;
}

double loss_over_share(Pipeline& pipeline, const TokenData& data, std::int64_t positions, std::int64_t batch,
                       int share, int shares, const std::function<void()>& advance) {
  const std::int64_t samples = data.samples(positions);
  const auto first_of = [&](std::int64_t number) { return batch * (number * shares + share); };
  std::int64_t batches = 0;
  while (first_of(batches) < samples) ++batches;
  const Pipeline::Source source = [&](std::int64_t number) {
    const std::int64_t first = first_of(number);
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(batch, samples - first)));
    std::iota(numbers.begin(), numbers.end(), first);
    return read_micro_batch(data, numbers, positions, 0);
  };
  return pipeline.evaluate(batches, source, [&](Action) { advance(); });
}

}  // namespace shardwright::trainer
