#include "ckpt/fingerprint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

// The formula again, one element at a time, as the header states it.
std::uint64_t fmix64(std::uint64_t k) {
  k ^= k >> 33;
  k *= 0xff51afd7ed558ccdull;
  k ^= k >> 33;
  k *= 0xc4ceb9fe1a85ec53ull;
  k ^= k >> 33;
  return k;
}

Fingerprint by_formula(const std::vector<std::byte>& data, std::size_t size, const Box& box,
                       const Dims& shape) {
  Fingerprint f;
  for (std::uint64_t k = 0; k < box.elements(); ++k) {
    std::uint64_t rest = k, index = 0, scale = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * scale;
      rest /= box.shape[d];
      scale *= shape[d];
    }
    std::uint64_t x = 0;
    std::memcpy(&x, data.data() + k * size, size);
    const std::uint64_t h = fmix64(fmix64(index + 1) + x);
    std::uint64_t g = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull;
    g ^= g >> 32;
    f += {h, g, 1};
  }
  return f;
}

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(count);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

// Computed with Python's integers from the formula: 105 elements in a shape of [3, 5, 7].
TEST(Fingerprint, PinnedVectors) {
  const Dims shape{3, 5, 7};
  const auto of = [&](auto element, std::uint64_t factor) {
    std::vector<decltype(element)> values(105);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<decltype(element)>(i * factor);
    return to_hex(fingerprint(reinterpret_cast<const std::byte*>(values.data()), sizeof(element),
                              Box::whole(shape), shape));
  };
  EXPECT_EQ(of(std::uint32_t{}, 1), "7ea764758f2eb6c11fa4b46d131056a2");
  EXPECT_EQ(of(std::uint64_t{}, 1), "7ea764758f2eb6c11fa4b46d131056a2");
  EXPECT_EQ(of(std::uint64_t{}, 0x0123456789abcdefull), "003ab104a50f9c2883ac84d278005add");
  EXPECT_EQ(of(std::uint8_t{}, 7919), "f0c8b625ad95b423105ff1148bcb10f4");
  EXPECT_EQ(of(std::uint16_t{}, 7919), "d150ed5cb38b51412a458ba244d7ac18");
  const std::uint32_t zero = 0;
  EXPECT_EQ(to_hex(fingerprint(reinterpret_cast<const std::byte*>(&zero), 4, Box{}, Dims{})),
            "7d6e4ac38b2b1be20769566cc6ecc4e2");
}

TEST(Fingerprint, MatchesTheFormulaForAllSizesAndBoxes) {
  const Dims shape{5, 7, 131};
  for (const std::size_t size : {1, 2, 4, 8}) {
    for (const Box& box :
         {Box::whole(shape), Box{{1, 0, 0}, {3, 7, 131}}, Box{{0, 2, 0}, {5, 3, 131}},
          Box{{2, 1, 17}, {2, 5, 101}}, Box{{4, 6, 130}, {1, 1, 1}}, Box{{1, 1, 1}, {2, 0, 5}}}) {
      const std::vector<std::byte> data = random_bytes(box.elements() * size, static_cast<unsigned>(size));
      EXPECT_EQ(fingerprint(data.data(), size, box, shape), by_formula(data, size, box, shape))
          << size << to_string(box);
    }
  }
}

// However a tensor is cut, the pieces add up to the whole.
// From 2^33 elements on, an index takes another way through the code.
TEST(Fingerprint, IndicesBeyond32And33Bits) {
  const Dims shape{std::uint64_t{1} << 40};
  for (const unsigned bits : {31, 32, 33, 34, 39})
    for (const std::uint64_t before : {0, 1, 2, 3, 40, 97, 98})
      for (const std::size_t size : {1, 2, 4, 8}) {
        const Box box{{(std::uint64_t{1} << bits) - before}, {97}};
        const std::vector<std::byte> data = random_bytes(97 * size, bits);
        EXPECT_EQ(fingerprint(data.data(), size, box, shape), by_formula(data, size, box, shape))
            << size << to_string(box);
      }
}

TEST(Fingerprint, AddsUpOverAnyCut) {
  const Dims shape{17, 23};
  const std::vector<std::byte> whole = random_bytes(17 * 23 * 4, 1);
  const Fingerprint expected = fingerprint(whole.data(), 4, Box::whole(shape), shape);
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    const std::uint64_t row = random() % 18, column = random() % 24;
    Fingerprint sum;
    for (const Box& piece : {Box{{0, 0}, {row, column}}, Box{{row, 0}, {17 - row, column}},
                             Box{{0, column}, {17, 23 - column}}}) {
      std::vector<std::byte> values(piece.elements() * 4);
      copy_region(whole.data(), Box::whole(shape), values.data(), piece, piece, 4);
      sum += fingerprint(values.data(), 4, piece, shape);
    }
    EXPECT_EQ(sum, expected);
  }
}

TEST(Fingerprint, SeesEveryBitAndEverySwap) {
  const Dims shape{3, 43};
  std::vector<std::byte> data = random_bytes(3 * 43 * 2, 2);
  const Fingerprint before = fingerprint(data.data(), 2, Box::whole(shape), shape);
  for (std::size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(fingerprint(data.data(), 2, Box::whole(shape), shape) == before) << bit;
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (std::size_t i = 0; i + 4 <= data.size(); i += 2) {
    if (std::memcmp(&data[i], &data[i + 2], 2) == 0) continue;
    std::swap_ranges(&data[i], &data[i + 2], &data[i + 2]);
    EXPECT_FALSE(fingerprint(data.data(), 2, Box::whole(shape), shape) == before) << i;
    std::swap_ranges(&data[i], &data[i + 2], &data[i + 2]);
  }
  // Zeros count too: a tensor of zeros is not one of fewer zeros.
  const std::vector<std::byte> zeros(8);
  EXPECT_FALSE(fingerprint(zeros.data(), 4, Box::whole({2}), {2}) ==
               fingerprint(zeros.data(), 4, Box{{0}, {1}}, {2}));
}

TEST(Fingerprint, TextForm) {
  const Fingerprint f{0x1234, 0xabc, 5};
  EXPECT_EQ(to_hex(f), "00000000000012340000000000000abc");
  EXPECT_EQ(parse_fingerprint(to_hex(f), 5), f);
  EXPECT_THROW(parse_fingerprint("12", 5), Error);
}

}  // namespace
}  // namespace shardwright::ckpt
