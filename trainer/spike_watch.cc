#include "trainer/spike_watch.h"

#include <algorithm>
#include <vector>

namespace shardwright::trainer {

std::optional<double> SpikeWatch::add(double value) {
  std::optional<double> usual;
  if (factor_ > 0 && last_.size() >= kWarmUp) {
    std::vector<double> sorted(last_.begin(), last_.end());
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    if (value > factor_ * *middle) usual = *middle;
  }
  last_.push_back(value);
  if (last_.size() > kWindow) last_.pop_front();
  return usual;
}

}  // namespace shardwright::trainer
