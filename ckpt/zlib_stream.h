// One zlib stream (RFC 1950) of byte planes, as HDF5's filter 1 takes it. Internal to the chunk codec.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace shardwright::ckpt {

/// Replaces `stream` by one of `planes`, which are byte planes of `plane_bytes` each and what is left over.
/// Never larger than `planes` by more than 6 bytes and 5 for each 64 KiB begun. Equal input makes equal
/// bytes.
void zlib_compress(std::span<const std::byte> planes, std::size_t plane_bytes,
                   std::vector<std::byte>& stream);

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
