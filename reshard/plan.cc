#include "reshard/plan.h"

#include <algorithm>

namespace shardwright::reshard {
namespace {

using ckpt::Box;

// Intervals along one dimension, sorted by begin. `furthest_end[i]` is the greatest end among the first i +
// 1, so that both ends of the run that can meet a given interval are found by bisection even where intervals
// overlap.
struct Intervals {
  std::vector<std::uint32_t> ids;  // what each interval stands for
  std::vector<std::uint64_t> begin;
  std::vector<std::uint64_t> furthest_end;

  void add(std::uint32_t id, std::uint64_t first, std::uint64_t end) {
    ids.push_back(id);
    begin.push_back(first);
    furthest_end.push_back(furthest_end.empty() ? end : std::max(furthest_end.back(), end));
  }
  // Positions [first, second) that may meet [low, high).
  std::pair<std::size_t, std::size_t> candidates(std::uint64_t low, std::uint64_t high) const {
    const auto from = std::upper_bound(furthest_end.begin(), furthest_end.end(), low) - furthest_end.begin();
    const auto to = std::lower_bound(begin.begin(), begin.end(), high) - begin.begin();
    return {static_cast<std::size_t>(from), static_cast<std::size_t>(std::max(from, to))};
  }
};

// Order in which boxes that share all but their rows (one TP cut's column of pieces) stand together.
bool column_less(const Box& a, const Box& b) {
  for (std::size_t d = 1; d < a.offset.size(); ++d) {
    if (a.offset[d] != b.offset[d]) return a.offset[d] < b.offset[d];
    if (a.shape[d] != b.shape[d]) return a.shape[d] < b.shape[d];
  }
  return false;
}

}  // namespace

std::vector<Copy> overlap(std::span<const Box> targets, std::span<const Box> sources) {
  std::vector<Copy> copies;
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].empty()) order.push_back(i);
  }
  if (order.empty()) return copies;

  const std::size_t dims = sources[order.front()].offset.size();
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (column_less(sources[a], sources[b])) return true;
    if (column_less(sources[b], sources[a])) return false;
    return dims > 0 && sources[a].offset[0] < sources[b].offset[0];
  });

  // Two levels: columns by their extent in dimension 1, in each column its pieces by rows. A cut along both
  // dimensions then costs a search for each column that the target really meets, not for all.
  std::vector<Intervals> columns;
  Intervals by_column;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Box& box = sources[order[i]];
    if (i == 0 || column_less(sources[order[i - 1]], box)) {
      by_column.add(static_cast<std::uint32_t>(columns.size()), dims > 1 ? box.offset[1] : 0,
                    dims > 1 ? box.end(1) : 1);
      columns.emplace_back();
    }
    columns.back().add(order[i], dims > 0 ? box.offset[0] : 0, dims > 0 ? box.end(0) : 1);
  }

  for (std::uint32_t t = 0; t < targets.size(); ++t) {
    const Box& target = targets[t];
    if (target.empty()) continue;
    const std::size_t first_copy = copies.size();
    const auto [c0, c1] = by_column.candidates(dims > 1 ? target.offset[1] : 0, dims > 1 ? target.end(1) : 1);
    for (std::size_t c = c0; c < c1; ++c) {
      const Intervals& column = columns[by_column.ids[c]];
      const auto [r0, r1] = column.candidates(dims > 0 ? target.offset[0] : 0, dims > 0 ? target.end(0) : 1);
      for (std::size_t r = r0; r < r1; ++r) {
        if (auto region = ckpt::intersect(target, sources[column.ids[r]])) {
          copies.push_back({column.ids[r], t, *region});
        }
      }
    }
    std::sort(copies.begin() + static_cast<std::ptrdiff_t>(first_copy), copies.end(),
              [](const Copy& a, const Copy& b) { return a.from < b.from; });
  }
  return copies;
}

}  // namespace shardwright::reshard
