#include <algorithm>
#include <cmath>
#include <numbers>

#include "trainer/optimizer.h"

namespace shardwright::trainer {

double learning_rate(const Config::Optim& hyper, std::int64_t step, std::int64_t steps) {
  if (step <= hyper.warmup_steps)
    return hyper.lr * static_cast<double>(step) / static_cast<double>(hyper.warmup_steps);
  // Fraction of the way from `first` to `last`, where the rate reaches min_lr.
  const auto fraction = [&](std::int64_t first) {
    const double length = static_cast<double>(std::max<std::int64_t>(1, steps - first));
    return std::clamp(static_cast<double>(step - first) / length, 0.0, 1.0);
  };
  const double span = hyper.lr - hyper.min_lr;
  if (hyper.schedule == "constant") return hyper.lr;
  if (hyper.schedule == "linear") return hyper.lr - span * fraction(hyper.warmup_steps);
  if (hyper.schedule == "wsd") {
    const std::int64_t decay = std::max<std::int64_t>(1, steps / 10);
    return hyper.lr - span * fraction(std::max(hyper.warmup_steps, steps - decay));
  }
  return hyper.min_lr + span * 0.5 * (1.0 + std::cos(std::numbers::pi * fraction(hyper.warmup_steps)));
}

}  // namespace shardwright::trainer
