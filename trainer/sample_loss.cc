#include "trainer/sample_loss.h"

#include <algorithm>
#include <numeric>

namespace shardwright::trainer {

double SampleRunner::forward(const std::vector<std::int64_t>& samples) {
  const std::size_t tokens = samples.size() * static_cast<std::size_t>(positions_);
  inputs_.resize(tokens);
  targets_.resize(tokens);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::size_t row = i * static_cast<std::size_t>(positions_);
    data_.read(samples[i], positions_, inputs_.data() + row, targets_.data() + row);
  }
  return model_.forward(inputs_, targets_, static_cast<std::int64_t>(samples.size()), positions_);
}

double loss_over_share(Model& model, const TokenData& data, std::int64_t positions, std::int64_t batch,
                       int share, int shares, const std::function<void()>& advance) {
  SampleRunner runner(model, data, positions);
  const std::int64_t samples = data.samples(positions);
  double sum = 0;
  for (std::int64_t first = batch * share; first < samples; first += batch * shares) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(batch, samples - first)));
    std::iota(numbers.begin(), numbers.end(), first);
    sum += runner.forward(numbers);
    advance();
  }
  return sum;
}

}  // namespace shardwright::trainer
