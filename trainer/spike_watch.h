// Tells when a run's loss or gradient norm leaps: a sign of bad data or of a rate that is too high, long
// before anything is not finite.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

namespace shardwright::trainer {

/// Compares each value with the median of those before it. Not part of the training state: after a resume it
/// begins anew. Not thread-safe.
class SpikeWatch {
 public:
  /// A spike is a value above `factor` times the median of the last `kWindow`; 0: none is.
  explicit SpikeWatch(double factor) : factor_(factor) {}

  /// Adds a finite value. The median that it left behind, if it is a spike; nothing before `kWarmUp` values.
  std::optional<double> add(double value);

  static constexpr std::size_t kWindow = 32;
  static constexpr std::size_t kWarmUp = 8;

 private:
  double factor_;
  std::deque<double> last_;
};

}  // namespace shardwright::trainer
