// One chunk between memory and file: byte shuffle -> one zstd frame with its content size, or one zlib stream
// -> Fletcher32 of that, as HDF5's filters 2, 32015 or 1, and 3 define them, so that stock tools read what we
// write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ckpt/codec.h"

namespace shardwright::ckpt {

inline constexpr std::uint64_t kMaxChunkBytes = 1u << 20;

/// What a chunk is between the shuffle and its checksum: of HDF5's filter 32015, or of filter 1. All chunks
/// of a dataset have the same.
enum class ChunkForm : std::uint8_t { zstd, zlib };
/// What a codec writes.
ChunkForm form_of(Codec codec);
/// What a stored chunk is, by its first byte, whatever else is wrong with it.
ChunkForm form_of(std::span<const std::byte> stored);

/// Encodes chunks; holds a zstd context and scratch, so keep one per thread.
class ChunkEncoder {
 public:
  explicit ChunkEncoder(Codec codec);
  ~ChunkEncoder();
  ChunkEncoder(ChunkEncoder&&) noexcept;
  /// Appends nothing: `stored` is replaced by the stored bytes of `raw` (frame, then 4 bytes of Fletcher32).
  /// A chunk that would not shrink becomes a frame of raw blocks, or a stream of stored ones.
  void encode(std::span<const std::byte> raw, std::size_t element_size, std::vector<std::byte>& stored);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Decodes chunks; keep one per thread.
class ChunkDecoder {
 public:
  ChunkDecoder();
  ~ChunkDecoder();
  ChunkDecoder(ChunkDecoder&&) noexcept;
  /// Fills `raw` exactly. Error(damaged) if the checksum, the frame or its size is wrong.
  void decode(std::span<const std::byte> stored, std::size_t element_size, std::span<std::byte> raw);
  /// Memory that it keeps between chunks: the largest one's bytes, shuffled.
  std::size_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// HDF5's Fletcher32: 16-bit big-endian words, an odd last byte counts as the high byte.
std::uint32_t fletcher32(std::span<const std::byte> data);

}  // namespace shardwright::ckpt
