#include "ckpt/huffman_code.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace shardwright::ckpt {
namespace {

struct Leaf {
  std::uint32_t count;
  std::uint16_t symbol;
};

using Lengths = std::array<std::uint32_t, kMaxHuffmanSymbols + 1>;  // how many codes there are of each length

/// Huffman's tree over leaves in ascending order: how many lie how deep. Inner nodes are made in ascending
/// order too, so the two smallest are always at the front of the leaves or of the nodes.
Lengths depths(std::span<const Leaf> leaves) {
  const std::size_t n = leaves.size();
  std::array<std::uint64_t, kMaxHuffmanSymbols> weight;
  std::array<std::uint16_t, 2 * kMaxHuffmanSymbols> parent;  // of the leaves, then of the nodes
  std::size_t leaf = 0, node = 0;
  for (std::size_t made = 0; made + 1 < n; ++made) {
    weight[made] = 0;
    for (int child = 0; child < 2; ++child) {
      const bool take_leaf = leaf < n && (node == made || leaves[leaf].count <= weight[node]);
      weight[made] += take_leaf ? leaves[leaf].count : weight[node];
      parent[take_leaf ? leaf++ : n + node++] = static_cast<std::uint16_t>(made);
    }
  }
  std::array<std::uint16_t, kMaxHuffmanSymbols> depth;
  depth[n - 2] = 0;
  for (std::size_t i = n - 2; i-- > 0;) depth[i] = static_cast<std::uint16_t>(depth[parent[n + i]] + 1);
  Lengths of{};
  for (std::size_t i = 0; i < n; ++i) ++of[depth[parent[i]] + 1u];
  return of;
}

/// Moves codes that are too long up, each time at the cost of the deepest one above the limit (as in JPEG,
/// annex K.3): the set stays complete.
void shorten(Lengths& of, unsigned limit) {
  for (std::size_t length = of.size() - 1; length > limit; --length)
    while (of[length] > 0) {
      std::size_t above = length - 2;
      while (of[above] == 0) --above;
      of[length] -= 2;
      ++of[length - 1];
      of[above + 1] += 2;
      --of[above];
    }
}

std::uint16_t reversed(std::uint32_t code, unsigned length) {
  std::uint32_t out = 0;
  for (unsigned i = 0; i < length; ++i) out |= (code >> i & 1u) << (length - 1 - i);
  return static_cast<std::uint16_t>(out);
}

}  // namespace

void huffman_codes(std::span<const std::uint32_t> counts, unsigned limit, std::span<HuffmanCode> codes) {
  assert(counts.size() >= 2 && counts.size() <= kMaxHuffmanSymbols && codes.size() >= counts.size());
  std::array<Leaf, kMaxHuffmanSymbols> leaves;
  std::size_t used = 0;
  for (std::size_t s = 0; s < counts.size(); ++s)
    if (counts[s] > 0) leaves[used++] = {counts[s], static_cast<std::uint16_t>(s)};
  for (std::uint16_t s = 0; used < 2; ++s)
    if (counts[s] == 0) leaves[used++] = {1, s};
  std::sort(leaves.begin(), leaves.begin() + static_cast<std::ptrdiff_t>(used),
            [](const Leaf& a, const Leaf& b) {
              return a.count != b.count ? a.count < b.count : a.symbol < b.symbol;
            });
  Lengths of = depths({leaves.data(), used});
  shorten(of, limit);

  std::fill(codes.begin(), codes.end(), HuffmanCode{});
  std::size_t next = 0;  // the rarest symbols get the longest codes
  for (std::size_t length = limit; length > 0; --length)
    for (std::uint32_t i = 0; i < of[length]; ++i)
      codes[leaves[next++].symbol].length = static_cast<std::uint8_t>(length);
  std::array<std::uint32_t, kMaxHuffmanLength + 2> first{};
  for (unsigned length = 1; length <= limit; ++length) first[length + 1] = (first[length] + of[length]) << 1;
  for (HuffmanCode& code : codes)
    if (code.length > 0) code.bits = reversed(first[code.length]++, code.length);
}

}  // namespace shardwright::ckpt
