#include "ckpt/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/value_text.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kBandBytes = 8u << 20;  // of each side in memory at a time

using StateKey = std::pair<std::string, std::string>;  // tensor, kind

std::map<StateKey, std::uint32_t> states_of(const Checkpoint& checkpoint) {
  const Manifest& m = checkpoint.manifest();
  std::map<StateKey, std::uint32_t> states;
  for (std::uint32_t s = 0; s < m.states.size(); ++s)
    states[{m.tensors[m.states[s].tensor].name, m.states[s].kind}] = s;
  return states;
}

/// Calls `visit` for boxes of at most kBandBytes that make up `box`, in row-major order of their elements:
/// whole rows where one fits, pieces of a row otherwise.
template <class Visit>
void for_each_band(const Box& box, std::size_t element_size, std::size_t dimension, const Visit& visit) {
  const std::uint64_t bytes = box.elements() * element_size;
  if (bytes == 0) return;
  if (bytes <= kBandBytes || dimension == box.shape.size()) return visit(box);
  const std::uint64_t row_bytes = bytes / box.shape[dimension];
  const std::uint64_t rows = std::max<std::uint64_t>(1, kBandBytes / row_bytes);
  for (std::uint64_t at = 0; at < box.shape[dimension]; at += rows) {
    Box band = box;
    band.offset[dimension] += at;
    band.shape[dimension] = std::min(rows, box.shape[dimension] - at);
    for_each_band(band, element_size, dimension + 1, visit);
  }
}

/// Coordinates of element `index` of a dense box.
Dims coordinates(const Box& box, std::uint64_t index) {
  Dims at = box.offset;
  for (std::size_t d = box.shape.size(); d-- > 0;) {
    at[d] += index % box.shape[d];
    index /= box.shape[d];
  }
  return at;
}

/// The larger of two differences, where NaN (one side is no number) is larger than all.
double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(a, b);
}

class Comparison {
 public:
  Comparison(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  /// The difference in value of two states of equal shape and type, or nothing.
  std::optional<Difference> values(const StateKey& key, const Dims& shape, DType type) {
    Difference difference{key.first, key.second, "value", {}, "", "", 0, 0, 0};
    for_each_band(Box::whole(shape), size_of(type), 0, [&](const Box& band) {
      read(a_, key, shape, type, band, left_);
      read(b_, key, shape, type, band, right_);
      compare(band, type, difference);
    });
    if (difference.count == 0) return std::nullopt;
    return difference;
  }

 private:
  void read(const Checkpoint& from, const StateKey& key, const Dims& shape, DType type, const Box& band,
            std::vector<std::byte>& to) const {
    to.resize(band.elements() * size_of(type));
    const LoadItem item{key.first, key.second, type, shape, band, to.data()};
    LoadOptions options;
    options.threads = options_.threads;
    from.load({&item, 1}, options);
  }

  void compare(const Box& band, DType type, Difference& difference) const {
    if (std::memcmp(left_.data(), right_.data(), left_.size()) == 0) return;
    const std::size_t size = size_of(type);
    for (std::uint64_t i = 0; i < band.elements(); ++i) {
      const std::byte* x = left_.data() + i * size;
      const std::byte* y = right_.data() + i * size;
      if (std::memcmp(x, y, size) == 0) continue;
      const long double a = value_of(type, x), b = value_of(type, y);
      if (close(a, b)) continue;
      if (difference.count++ == 0) {
        difference.index = coordinates(band, i);
        difference.a = value_text(type, x);
        difference.b = value_text(type, y);
      }
      const long double distance =
          a == b ? 0 : std::fabs(a - b);  // two infinities of one sign are at distance 0
      const long double relative = distance == 0 ? 0 : distance / std::fabs(b);
      difference.max_abs = larger(difference.max_abs, static_cast<double>(distance));
      difference.max_rel = larger(difference.max_rel, static_cast<double>(relative));
    }
  }

  /// Whether values of different bits count as equal.
  bool close(long double a, long double b) const {
    if (options_.atol == 0 && options_.rtol == 0) return false;
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    if (std::isinf(a) || std::isinf(b)) return a == b;
    return std::fabs(a - b) <= options_.atol + options_.rtol * std::fabs(b);
  }

  const Checkpoint& a_;
  const Checkpoint& b_;
  const DiffOptions& options_;
  std::vector<std::byte> left_, right_;
};

Difference structural(const StateKey& key, const std::string& what, std::string a, std::string b) {
  return {key.first, key.second, what, {}, std::move(a), std::move(b), 0, 0, 0};
}

}  // namespace

DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options) {
  const auto left = states_of(a), right = states_of(b);
  std::map<StateKey, bool> all;  // whether in both
  for (const auto& [key, state] : left) all[key] = right.contains(key);
  for (const auto& [key, state] : right) all.try_emplace(key, false);

  DiffReport report;
  Comparison comparison(a, b, options);
  for (const auto& [key, both] : all) {
    const auto shape_in = [&](const Checkpoint& c, std::uint32_t s) -> const Dims& {
      return c.manifest().tensors[c.manifest().states[s].tensor].shape;
    };
    if (!both) {
      const bool in_a = left.contains(key);
      const std::string shape = to_string(in_a ? shape_in(a, left.at(key)) : shape_in(b, right.at(key)));
      report.differences.push_back(structural(key, "missing", in_a ? shape : "", in_a ? "" : shape));
      continue;
    }
    ++report.compared;
    const StateEntry& x = a.manifest().states[left.at(key)];
    const StateEntry& y = b.manifest().states[right.at(key)];
    const Dims& shape = shape_in(a, left.at(key));
    const Dims& other = shape_in(b, right.at(key));
    if (shape != other) {
      report.differences.push_back(structural(key, "shape", to_string(shape), to_string(other)));
    } else if (x.dtype != y.dtype) {
      report.differences.push_back(
          structural(key, "dtype", std::string(name(x.dtype)), std::string(name(y.dtype))));
    } else if (x.fingerprint != y.fingerprint) {
      report.content_read = true;
      if (auto difference = comparison.values(key, shape, x.dtype))
        report.differences.push_back(*std::move(difference));
    }
  }
  return report;
}

}  // namespace shardwright::ckpt
