// Prefix codes of limited length, as deflate writes them. Internal to the zlib encoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardwright::ckpt {

inline constexpr std::size_t kMaxHuffmanSymbols = 286;
inline constexpr unsigned kMaxHuffmanLength = 15;

/// A symbol's code: its bits in the order in which they are written, lowest first.
struct HuffmanCode {
  std::uint16_t bits = 0;
  std::uint8_t length = 0;  // 0: the symbol does not occur
};

/// Codes of at most `limit` bits for symbols that occur `counts` times (their sum below 2^32; at most
/// kMaxHuffmanSymbols). Where fewer than two symbols occur, others get a code too, so that the set is
/// complete. Best without the limit, near it with.
void huffman_codes(std::span<const std::uint32_t> counts, unsigned limit, std::span<HuffmanCode> codes);

}  // namespace shardwright::ckpt
