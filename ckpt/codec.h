// How chunks are compressed: a choice of the writer that no reader needs to know.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardwright::ckpt {

/// How hard to compress. Decoding is the same for all.
enum class Codec : std::uint8_t {
  fast,   // Huffman-coded literals, hardly any matches (level -50, minMatch 7): best for weights and moments
  small,  // zstd level 3
  none,   // a frame of raw blocks
};
std::string_view name(Codec codec);
/// "auto" is fast. Error(usage) names the known ones; "deflate" is said to be not built yet.
Codec parse_codec(std::string_view text);

}  // namespace shardwright::ckpt
