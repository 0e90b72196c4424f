#include "ckpt/byte_shuffle.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace shardwright::ckpt {
namespace {

/// Elements [first, count) one by one; what the vector code leaves, and all of it without SSE2.
void shuffle_plain(const std::byte* from, std::size_t size, std::size_t first, std::size_t count,
                   std::byte* to) {
  for (std::size_t i = first; i < count; ++i)
    for (std::size_t k = 0; k < size; ++k) to[k * count + i] = from[i * size + k];
}

void unshuffle_plain(const std::byte* from, std::size_t size, std::size_t first, std::size_t count,
                     std::byte* to) {
  for (std::size_t i = first; i < count; ++i)
    for (std::size_t k = 0; k < size; ++k) to[i * size + k] = from[k * count + i];
}

#if defined(__SSE2__)

// Sixteen elements of kSize bytes are kSize vectors. One round splits their byte stream into its even and its
// odd bytes; after log2(kSize) rounds each vector is one byte plane, in bit-reversed order. Every processor
// of x86-64 has SSE2.
constexpr std::size_t kLanes = 16;

constexpr std::size_t plane(std::size_t vector, std::size_t size) {
  std::size_t reversed = 0;
  for (std::size_t bit = 1; bit < size; bit <<= 1) reversed = reversed << 1 | ((vector & bit) ? 1 : 0);
  return reversed;
}

template <std::size_t kSize>
struct Vectors {
  __m128i at[kSize];
  __m128i& operator[](std::size_t j) { return at[j]; }
};

__m128i load(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void store(std::byte* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }

template <std::size_t kSize>
std::size_t shuffle_vectors(const std::byte* from, std::size_t count, std::byte* to) {
  const __m128i low = _mm_set1_epi16(0xff);
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    Vectors<kSize> v, next;
    for (std::size_t j = 0; j < kSize; ++j) v[j] = load(from + i * kSize + j * kLanes);
    // Blocks of `span` vectors are one stream; its halves afterwards are the even and the odd bytes.
    for (std::size_t span = kSize; span > 1; span /= 2) {
      for (std::size_t start = 0; start < kSize; start += span)
        for (std::size_t j = 0; j < span / 2; ++j) {
          const __m128i a = v[start + 2 * j], b = v[start + 2 * j + 1];
          next[start + j] = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
          next[start + span / 2 + j] = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
        }
      v = next;
    }
    for (std::size_t j = 0; j < kSize; ++j) store(to + plane(j, kSize) * count + i, v[j]);
  }
  return whole;
}

template <std::size_t kSize>
std::size_t unshuffle_vectors(const std::byte* from, std::size_t count, std::byte* to) {
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    Vectors<kSize> v, next;
    for (std::size_t j = 0; j < kSize; ++j) v[j] = load(from + plane(j, kSize) * count + i);
    for (std::size_t span = 2; span <= kSize; span *= 2) {
      for (std::size_t start = 0; start < kSize; start += span)
        for (std::size_t j = 0; j < span / 2; ++j) {
          const __m128i even = v[start + j], odd = v[start + span / 2 + j];
          next[start + 2 * j] = _mm_unpacklo_epi8(even, odd);
          next[start + 2 * j + 1] = _mm_unpackhi_epi8(even, odd);
        }
      v = next;
    }
    for (std::size_t j = 0; j < kSize; ++j) store(to + i * kSize + j * kLanes, v[j]);
  }
  return whole;
}

std::size_t shuffle_fast(const std::byte* from, std::size_t size, std::size_t count, std::byte* to) {
  switch (size) {
    case 2:
      return shuffle_vectors<2>(from, count, to);
    case 4:
      return shuffle_vectors<4>(from, count, to);
    case 8:
      return shuffle_vectors<8>(from, count, to);
    default:
      return 0;
  }
}

std::size_t unshuffle_fast(const std::byte* from, std::size_t size, std::size_t count, std::byte* to) {
  switch (size) {
    case 2:
      return unshuffle_vectors<2>(from, count, to);
    case 4:
      return unshuffle_vectors<4>(from, count, to);
    case 8:
      return unshuffle_vectors<8>(from, count, to);
    default:
      return 0;
  }
}

#else

std::size_t shuffle_fast(const std::byte*, std::size_t, std::size_t, std::byte*) { return 0; }
std::size_t unshuffle_fast(const std::byte*, std::size_t, std::size_t, std::byte*) { return 0; }

#endif

void copy_rest(std::span<const std::byte> from, std::size_t begin, std::byte* to) {
  if (begin < from.size()) std::memcpy(to + begin, from.data() + begin, from.size() - begin);
}

}  // namespace

void byte_shuffle(std::span<const std::byte> from, std::size_t element_size, std::byte* to) {
  const std::size_t count = element_size > 1 ? from.size() / element_size : 0;
  const std::size_t done = shuffle_fast(from.data(), element_size, count, to);
  shuffle_plain(from.data(), element_size, done, count, to);
  copy_rest(from, count * element_size, to);
}

void byte_unshuffle(std::span<const std::byte> from, std::size_t element_size, std::byte* to) {
  const std::size_t count = element_size > 1 ? from.size() / element_size : 0;
  const std::size_t done = unshuffle_fast(from.data(), element_size, count, to);
  unshuffle_plain(from.data(), element_size, done, count, to);
  copy_rest(from, count * element_size, to);
}

}  // namespace shardwright::ckpt
