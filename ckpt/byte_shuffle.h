// HDF5's byte shuffle (filter 2): byte k of every element together, for k = 0, 1, ...; bytes that do not fill
// an element stay at the end. Internal to the chunk codec.
#pragma once

#include <cstddef>
#include <span>

namespace shardwright::ckpt {

/// `to` has the size of `from`; they do not overlap.
void byte_shuffle(std::span<const std::byte> from, std::size_t element_size, std::byte* to);
void byte_unshuffle(std::span<const std::byte> from, std::size_t element_size, std::byte* to);

}  // namespace shardwright::ckpt
