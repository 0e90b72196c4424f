// How a box is cut into chunks.
#include <algorithm>
#include <cassert>

#include "ckpt/shard.h"

namespace shardwright::ckpt {

Dims chunk_grid(const Box& box, const Dims& chunk) {
  assert(box.shape.size() == chunk.size());
  Dims grid;
  for (std::size_t d = 0; d < chunk.size(); ++d) {
    assert(chunk[d] > 0);
    grid.push_back(box.shape[d] / chunk[d] + (box.shape[d] % chunk[d] != 0));
  }
  return grid;
}

Box chunk_box(const Box& box, const Dims& chunk, std::uint64_t index) {
  const Dims grid = chunk_grid(box, chunk);
  assert(index < element_count(grid));
  Box part = box;
  for (std::size_t d = grid.size(); d-- > 0;) {
    const std::uint64_t start = index % grid[d] * chunk[d];
    index /= grid[d];
    part.offset[d] = box.offset[d] + start;
    part.shape[d] = std::min(chunk[d], box.shape[d] - start);
  }
  return part;
}

std::uint64_t equal_chunks(const Box& a, const Dims& a_chunk, const Box& b, const Dims& b_chunk) {
  if (!(a_chunk == b_chunk)) return 0;
  std::uint64_t count = 1;
  for (std::size_t d = 0; d < a_chunk.size(); ++d) {
    const std::uint64_t step = a_chunk[d];
    const std::uint64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::uint64_t end = std::min(a.end(d), b.end(d));
    if (begin >= end || (begin - a.offset[d]) % step != 0 || (begin - b.offset[d]) % step != 0) return 0;
    // Whole chunks along this dimension, and a shorter last one only where both boxes end.
    count *= (end - begin) / step + ((end - begin) % step != 0 && a.end(d) == b.end(d));
  }
  return count;
}

Dims default_chunk(const Dims& box_shape, std::size_t element_size) {
  Dims chunk = box_shape;
  std::uint64_t room = kMaxChunkBytes / element_size;
  for (std::size_t d = chunk.size(); d-- > 0;) {
    const std::uint64_t pieces = chunk[d] / room + (chunk[d] % room != 0);
    // Of equal size: what a last, smaller one is padded with would be compressed and stored as well.
    chunk[d] = pieces < 2 ? std::max<std::uint64_t>(chunk[d], 1) : (chunk[d] + pieces - 1) / pieces;
    room /= chunk[d];
  }
  return chunk;
}

}  // namespace shardwright::ckpt
