#include "ckpt/box_index.h"

#include <algorithm>

namespace shardwright::ckpt {

BoxIndex::BoxIndex(const Manifest& manifest) : manifest_(&manifest) {
  begin_.assign(manifest.states.size() + 1, 0);
  max_end_.resize(manifest.boxes.size());
  for (const BoxEntry& b : manifest.boxes) ++begin_[b.state + 1];
  for (std::size_t s = 0; s + 1 < begin_.size(); ++s) begin_[s + 1] += begin_[s];
  for (std::size_t i = 0; i < manifest.boxes.size(); ++i) {
    const BoxEntry& b = manifest.boxes[i];
    if (b.box.shape.empty()) continue;
    max_end_[i] = b.box.end(0);
    if (i > begin_[b.state]) max_end_[i] = std::max(max_end_[i], max_end_[i - 1]);
  }
}

std::pair<std::size_t, std::size_t> BoxIndex::candidates(std::uint32_t state, const Box& wanted) const {
  const auto [first, last] = rows(state);
  if (wanted.shape.empty() || first == last) return {first, last};
  // Boxes are sorted by their first row, so those that begin before the region's end are a prefix; of these,
  // those before the first one that reaches the region cannot matter.
  const auto& boxes = manifest_->boxes;
  const auto end = std::partition_point(boxes.begin() + static_cast<std::ptrdiff_t>(first),
                                        boxes.begin() + static_cast<std::ptrdiff_t>(last),
                                        [&](const BoxEntry& b) { return b.box.offset[0] < wanted.end(0); });
  const auto stop = static_cast<std::size_t>(end - boxes.begin());
  const auto begin = std::partition_point(max_end_.begin() + static_cast<std::ptrdiff_t>(first),
                                          max_end_.begin() + static_cast<std::ptrdiff_t>(stop),
                                          [&](std::uint64_t reach) { return reach <= wanted.offset[0]; });
  return {static_cast<std::size_t>(begin - max_end_.begin()), stop};
}

}  // namespace shardwright::ckpt
