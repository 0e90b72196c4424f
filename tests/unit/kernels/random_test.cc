#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

// Random123's known answers for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  const auto words = [](std::uint64_t key, std::uint64_t high, std::uint64_t low) {
    const PhiloxWords p = philox(key, high, low);
    return std::vector<std::uint32_t>(p.w, p.w + 4);
  };
  using Words = std::vector<std::uint32_t>;
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(words(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(ones, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(FillNormal, IsBoxMullerOfPhilox) {
  Stream s(DeviceKind::cpu);
  Floats y(203);
  fill_normal(s, y.data(), 203, 42, 7, 0, 0.5f);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const PhiloxWords p = philox(42, 7, i / 4);
    const std::size_t pair = i % 4 / 2;
    const double radius = std::sqrt(-2 * std::log((p.w[2 * pair] + 1.0) * 0x1p-32));
    const double angle = 2 * 3.14159265358979323846 * (p.w[2 * pair + 1] * 0x1p-32);
    const double want = 0.5 * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    ASSERT_NEAR(static_cast<double>(y[i]), want, 1e-7 * (1 + std::abs(want))) << i;
  }
}

TEST(FillNormal, PiecesAndThreadsGiveTheBitsOfTheWhole) {
  Stream s(DeviceKind::cpu);
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 33) + 5;  // past 32 bits, not on a multiple of 4
  constexpr std::int64_t kCount = 5000;
  const int before = threads();
  set_threads(1);
  Floats whole(kCount);
  fill_normal(s, whole.data(), kCount, 1, 2, kFirst, 1.0f);
  set_threads(3);
  for (const std::int64_t piece : {1, 3, 5, 64, 97, 5000}) {
    Floats y(kCount);
    for (std::int64_t i = 0; i < kCount; i += piece) {
      fill_normal(s, y.data() + i, std::min(piece, kCount - i), 1, 2, kFirst + static_cast<std::uint64_t>(i),
                  1.0f);
    }
    EXPECT_EQ(y, whole) << piece;
  }
  set_threads(before);
  Floats other(kCount);
  fill_normal(s, other.data(), kCount, 1, 3, kFirst, 1.0f);
  EXPECT_NE(other, whole);
  fill_normal(s, other.data(), kCount, 2, 2, kFirst, 1.0f);
  EXPECT_NE(other, whole);
}

TEST(FillNormal, Moments) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kCount = 1000000;
  Floats y(kCount);
  fill_normal(s, y.data(), kCount, 3, 0, 0, 2.0f);
  double mean = 0, square = 0, fourth = 0;
  for (const float f : y) {
    const double v = static_cast<double>(f) / 2;
    mean += v / kCount;
    square += v * v / kCount;
    fourth += v * v * v * v / kCount;
  }
  EXPECT_NEAR(mean, 0, 0.005);  // five standard errors
  EXPECT_NEAR(square, 1, 0.0075);
  EXPECT_NEAR(fourth, 3, 0.05);
}

}  // namespace
}  // namespace shardwright::kernels
