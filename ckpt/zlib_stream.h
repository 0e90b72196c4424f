// One zlib stream (RFC 1950) of byte planes, as HDF5's filter 1 takes it. Internal to the chunk codec.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace shardwright::ckpt {

/// Holds a compressor, so keep one per thread.
class ZlibEncoder {
 public:
  ZlibEncoder();
  ~ZlibEncoder();
  /// Replaces `stream` by one of `planes`. Equal input makes equal bytes.
  void encode(std::span<const std::byte> planes, std::vector<std::byte>& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// True if `frame` begins as the streams do that the format knows: deflate with a window of 32 KiB.
bool begins_as_zlib(std::span<const std::byte> frame);

/// Holds a decoder, so keep one per thread.
class ZlibDecoder {
 public:
  ZlibDecoder();
  ~ZlibDecoder();
  /// Fills `raw` exactly, from one stream that ends where `stream` does. Otherwise Error(damaged).
  void decode(std::span<const std::byte> stream, std::span<std::byte> raw);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::ckpt
