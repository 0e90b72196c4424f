#include "ckpt/nearest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace shardwright::ckpt {
namespace {

/// Optimal string alignment, three rows at a time; `limit` for all words that differ by at least that much,
/// which is seen early. A file of mistyped keys compares each with all known ones: hence plain arrays.
std::size_t distance(std::string_view first, std::string_view second, std::size_t limit) {
  const std::size_t width = second.size() + 1;
  std::vector<std::size_t> rows(3 * width);
  std::size_t *before = rows.data(), *last = before + width, *row = last + width;
  const char *a = first.data(), *b = second.data();
  for (std::size_t j = 0; j < width; ++j) last[j] = j;
  std::size_t least_of_last = 0;
  for (std::size_t i = 1; i <= first.size(); ++i) {
    std::size_t least = row[0] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min(replaced, std::min(last[j], row[j - 1]) + 1);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
      least = std::min(least, row[j]);
    }
    // No later row goes below the least of the two that it is made of.
    if (std::min(least, least_of_last) >= limit) return limit;
    least_of_last = least;
    before = std::exchange(last, std::exchange(row, before));
  }
  return std::min(last[second.size()], limit);
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> known) {
  std::string best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : known) {
    // Words differ by at least what one is longer; a word from a file may be long.
    const std::size_t longer =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (longer >= best_distance) continue;
    const std::size_t d = distance(word, candidate, best_distance);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace shardwright::ckpt
