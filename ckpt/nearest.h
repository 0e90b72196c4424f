// The nearest known word to one that is not known: what an error suggests for a mistyped key, flag or fault
// point.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardwright::ckpt {

/// The element of `known` with the smallest edit distance (insertions, deletions, replacements and swaps of
/// neighbours, one each); the first of equals; empty if `known` is.
std::string nearest(std::string_view word, std::span<const std::string> known);

}  // namespace shardwright::ckpt
