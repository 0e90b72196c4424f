// How chunks are compressed: a choice of the writer that no reader of ours needs to know.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardwright::ckpt {

/// How hard to compress, and in which of the format's two ways. Decoding needs no telling.
enum class Codec : std::uint8_t {
  fast,   // Huffman-coded literals, hardly any matches (level -50, minMatch 7): best for weights and moments
  small,  // zstd level 3
  none,   // a frame of raw blocks
  deflate,  // a zlib stream (libdeflate level 1), which any HDF5 reads without a plugin
};
std::string_view name(Codec codec);
/// "auto" is fast. Error(usage) names the known ones.
Codec parse_codec(std::string_view text);

}  // namespace shardwright::ckpt
