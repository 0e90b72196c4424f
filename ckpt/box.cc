#include "ckpt/box.h"

#include <algorithm>
#include <cstring>

namespace shardwright::ckpt {

std::uint64_t element_count(const Dims& shape) {
  std::uint64_t count = 1;
  for (std::uint64_t extent : shape) count *= extent;
  return count;
}

std::optional<std::uint64_t> checked_element_count(const Dims& shape) {
  // A zero extent makes the tensor empty, however large the others are.
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  std::uint64_t count = 1;
  for (std::uint64_t extent : shape)
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  return count;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (std::size_t d = 0; d < dims.size(); ++d) text += (d ? ", " : "") + std::to_string(dims[d]);
  return text + "]";
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.shape.size(); ++d)
    text += (d ? ", " : "") + std::to_string(box.offset[d]) + ":" + std::to_string(box.end(d));
  return text + "]";
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  assert(a.shape.size() == b.shape.size());
  Box common;
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    const std::uint64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::uint64_t end = std::min(a.end(d), b.end(d));
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

bool contains(const Box& outer, const Box& inner) {
  assert(outer.shape.size() == inner.shape.size());
  if (inner.empty()) return true;
  for (std::size_t d = 0; d < outer.shape.size(); ++d)
    if (inner.offset[d] < outer.offset[d] || inner.end(d) > outer.end(d)) return false;
  return true;
}

std::optional<std::uint64_t> dense_start(const Box& outer, const Box& inner) {
  assert(contains(outer, inner));
  std::uint64_t start = 0;
  bool begun = false;  // a dimension outside this one has more than one coordinate
  for (std::size_t d = 0; d < inner.shape.size(); ++d) {
    if (begun && inner.shape[d] != outer.shape[d]) return std::nullopt;
    begun = begun || inner.shape[d] != 1;
    start = start * outer.shape[d] + (inner.offset[d] - outer.offset[d]);
  }
  return start;
}

void copy_region(const std::byte* src, const Box& src_box, std::byte* dst, const Box& dst_box,
                 const Box& region, std::size_t element_size) {
  assert(contains(src_box, region) && contains(dst_box, region));
  if (region.empty()) return;

  // Strides in bytes, and the place of the region's first element in both memories.
  std::array<std::size_t, kMaxDims> src_stride{}, dst_stride{};
  const std::size_t dims = region.shape.size();
  std::size_t src_step = element_size, dst_step = element_size;
  for (std::size_t d = dims; d-- > 0;) {
    src_stride[d] = src_step;
    dst_stride[d] = dst_step;
    src += (region.offset[d] - src_box.offset[d]) * src_step;
    dst += (region.offset[d] - dst_box.offset[d]) * dst_step;
    src_step *= src_box.shape[d];
    dst_step *= dst_box.shape[d];
  }

  // Trailing dimensions that are whole in both memories join into one contiguous run.
  std::size_t outer = dims;
  std::size_t run = element_size;
  while (outer > 0) {
    --outer;
    run *= region.shape[outer];
    if (region.shape[outer] != src_box.shape[outer] || region.shape[outer] != dst_box.shape[outer]) break;
  }

  Dims at = Dims::filled(outer, 0);
  while (true) {
    std::memcpy(dst, src, run);
    std::size_t d = outer;
    while (d > 0) {
      --d;
      src += src_stride[d];
      dst += dst_stride[d];
      if (++at[d] < region.shape[d]) break;
      src -= at[d] * src_stride[d];
      dst -= at[d] * dst_stride[d];
      at[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

}  // namespace shardwright::ckpt
