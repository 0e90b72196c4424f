// Which stored boxes and chunks hold a region of a tensor: a sorted search along dimension 0, never a
// comparison of all with all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ckpt/manifest.h"

namespace shardwright::ckpt {

/// Over the boxes of a manifest, which must outlive it. Thread-safe once made.
class BoxIndex {
 public:
  explicit BoxIndex(const Manifest& manifest);

  /// Calls `visit(box_row, region)` for each box of `state` that shares elements with `wanted`, in the boxes'
  /// order; `region` is the common part. The regions of all calls make up `wanted` exactly, as check() has
  /// made sure.
  template <class Visit>
  void overlapping(std::uint32_t state, const Box& wanted, Visit visit) const {
    const auto [first, last] = candidates(state, wanted);
    for (std::size_t row = first; row < last; ++row)
      if (const auto region = intersect(manifest_->boxes[row].box, wanted)) visit(row, *region);
  }

  /// Rows of manifest.boxes that belong to `state`: [first, last).
  std::pair<std::size_t, std::size_t> rows(std::uint32_t state) const {
    return {begin_[state], begin_[state + 1]};
  }

 private:
  std::pair<std::size_t, std::size_t> candidates(std::uint32_t state, const Box& wanted) const;

  const Manifest* manifest_;
  std::vector<std::size_t> begin_;  // first box of each state, and one past the last
  std::vector<std::uint64_t>
      max_end_;  // per box: largest end along dimension 0 of its state's boxes up to it
};

/// One chunk of a stored box.
struct ChunkPlace {
  std::uint64_t index = 0;  // in the box; its row in the file's table is first_chunk + index
  Box stored;               // extents as stored: a full chunk, which may reach beyond the box at its end
  Box region;               // elements of the asked region in it
};

/// Calls `visit(ChunkPlace)` for each chunk of `box` that holds elements of `region` (contained in the box,
/// not empty), in row-major order of the chunk grid.
template <class Visit>
void for_each_chunk(const BoxEntry& box, const Box& region, Visit visit) {
  const std::size_t n = box.chunk.size();
  Dims low, high, grid, at;
  for (std::size_t d = 0; d < n; ++d) {
    low.push_back((region.offset[d] - box.box.offset[d]) / box.chunk[d]);
    high.push_back((region.end(d) - 1 - box.box.offset[d]) / box.chunk[d]);
    grid.push_back((box.box.shape[d] - 1) / box.chunk[d] + 1);
  }
  at = low;
  for (;;) {
    ChunkPlace place{0, {Dims::filled(n, 0), box.chunk}, {Dims::filled(n, 0), Dims::filled(n, 0)}};
    for (std::size_t d = 0; d < n; ++d) {
      place.index = place.index * grid[d] + at[d];
      place.stored.offset[d] = box.box.offset[d] + at[d] * box.chunk[d];
      const std::uint64_t begin = std::max(place.stored.offset[d], region.offset[d]);
      const std::uint64_t end = std::min(place.stored.offset[d] + box.chunk[d], region.end(d));
      place.region.offset[d] = begin;
      place.region.shape[d] = end - begin;
    }
    visit(place);
    std::size_t d = n;
    while (d > 0 && at[d - 1] == high[d - 1]) {
      at[d - 1] = low[d - 1];
      --d;
    }
    if (d == 0) return;
    ++at[d - 1];
  }
}

}  // namespace shardwright::ckpt
