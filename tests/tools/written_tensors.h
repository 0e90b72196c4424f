// Tensors with values that tell where they belong, cut into boxes and written as shards: what storage tests
// share.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/shard.h"

namespace shardwright::ckpt {

/// Values of any box of a tensor, computed: element i (global, row-major) has the low bytes of a hash of seed
/// + i; booleans its lowest bit. With `smooth`, floats of 2 and 4 bytes are finite, of one magnitude, and
/// compress a little, as weights do.
class LabelSource : public Source {
 public:
  LabelSource(DType dtype, Dims global_shape, std::uint64_t seed, bool smooth = false)
      : dtype_(dtype), shape_(global_shape), seed_(seed), smooth_(smooth) {}

  std::uint64_t bits(std::uint64_t index) const {
    std::uint64_t v = (seed_ + index + 1) * 0x9e3779b97f4a7c15ull;
    v ^= v >> 29;
    v *= 0xbf58476d1ce4e5b9ull;
    v ^= v >> 32;
    if (dtype_ == DType::boolean) return v & 1;
    if (!smooth_) return v;
    return size_of(dtype_) == 2 ? (v & 0x80ffu) | 0x3c00u : (v & 0x80ffffffu) | 0x3c000000u;
  }

  void read(const Box& region, std::byte* dst) const override {
    const std::uint64_t count = region.elements();
    for (std::uint64_t k = 0; k < count; ++k) {
      std::uint64_t rest = k, index = 0, scale = 1;
      for (std::size_t d = shape_.size(); d-- > 0;) {
        index += (region.offset[d] + rest % region.shape[d]) * scale;
        rest /= region.shape[d];
        scale *= shape_[d];
      }
      const std::uint64_t v = bits(index);
      std::memcpy(dst + k * size_of(dtype_), &v, size_of(dtype_));
    }
  }

 private:
  DType dtype_;
  Dims shape_;
  std::uint64_t seed_;
  bool smooth_;
};

inline SaveItem label_item(const std::string& tensor, const std::string& kind, DType dtype,
                           const Dims& global_shape, const Box& box, const Dims& chunk = {},
                           bool smooth = false) {
  std::uint64_t seed = 0;
  for (const char c : tensor + "/" + kind) seed = seed * 131 + static_cast<unsigned char>(c);
  return {tensor,
          kind,
          dtype,
          global_shape,
          box,
          chunk,
          std::make_shared<LabelSource>(dtype, global_shape, seed << 20, smooth)};
}

/// The rows [i*n/parts, (i+1)*n/parts) of a tensor; empty for some i if there are fewer rows than parts.
inline Box row_piece(const Dims& shape, std::uint64_t i, std::uint64_t parts) {
  Box box = Box::whole(shape);
  const std::uint64_t begin = shape[0] * i / parts, end = shape[0] * (i + 1) / parts;
  box.offset[0] = begin;
  box.shape[0] = end - begin;
  return box;
}

/// Reads a record's box back, by pread and decoder alone.
inline std::vector<std::byte> read_box(const ShardReader& shard, const BoxRecord& record) {
  const std::size_t size = size_of(record.dtype);
  std::vector<std::byte> values(record.box.elements() * size), stored, raw;
  ChunkDecoder decoder;
  for (std::uint64_t i = 0; i < record.chunks; ++i) {
    const Box part = chunk_box(record.box, record.chunk, i);
    shard.read_stored(record.first_chunk + i, stored);
    raw.resize(shard.table().at(record.first_chunk + i).raw_bytes);
    decoder.decode(stored, size, raw);
    copy_region(raw.data(), Box{part.offset, record.chunk}, values.data(), record.box, part, size);
  }
  return values;
}

/// What read_box must give.
inline std::vector<std::byte> expected_box(const SaveItem& item) {
  std::vector<std::byte> values(item.box.elements() * size_of(item.dtype));
  if (!values.empty()) item.source->read(item.box, values.data());
  return values;
}

}  // namespace shardwright::ckpt
