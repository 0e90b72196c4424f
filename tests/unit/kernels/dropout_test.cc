#include <limits>
#include <string>

#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

Floats dropped(const Dropout& d, const Floats& x, std::uint64_t first) {
  Stream s(DeviceKind::cpu);
  Floats y(x.size(), 99.0f);
  dropout(s, d, x.data(), y.data(), std::ssize(x), first);
  return y;
}

TEST(Dropout, IsWordsOfPhiloxBelowTheShare) {
  const Dropout d{.p = 0.3f, .seed = 42, .purpose = 7};
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 34) - 5;  // over a carry of the counter's low word
  const Floats x = random_floats(203, 1), y = dropped(d, x, kFirst);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint64_t index = kFirst + i;
    const bool drop = philox(42, 7, index / 4).w[index % 4] < static_cast<double>(d.p) * 0x1p32;
    ASSERT_EQ(y[i], drop ? 0.0f : x[i] * (1.0f / (1.0f - d.p))) << i;
  }
}

// Runs are resumed on other machines and by later versions: these bits may never change.
TEST(Dropout, PinnedMask) {
  const Floats y = dropped({.p = 0.5f, .seed = 1234567890123, .purpose = 9876543210987}, Floats(48, 1.0f), 3);
  std::string kept;
  for (const float v : y) kept += v == 2.0f ? '1' : v == 0.0f ? '0' : '?';
  EXPECT_EQ(kept, "001010000111110010000011110000011001011111000001");
}

TEST(Dropout, PiecesThreadsAndInPlaceGiveTheMaskOfTheWhole) {
  Stream s(DeviceKind::cpu);
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 33) + 5;
  constexpr std::int64_t kCount = 50001;
  const Dropout d{.p = 0.1f, .seed = 1, .purpose = 2};
  const Floats x = random_floats(kCount, 1);
  const int before = threads();
  set_threads(1);
  const Floats whole = dropped(d, x, kFirst);
  set_threads(3);
  EXPECT_EQ(dropped(d, x, kFirst), whole);
  for (const std::int64_t piece : {1, 3, 5, 64, 97, 1024, 5000}) {
    Floats y = x;
    for (std::int64_t i = 0; i < kCount; i += piece) {
      dropout(s, d, y.data() + i, y.data() + i, std::min(piece, kCount - i),
              kFirst + static_cast<std::uint64_t>(i));
    }
    EXPECT_EQ(y, whole) << piece;
  }
  set_threads(before);
  EXPECT_NE(dropped({.p = 0.1f, .seed = 1, .purpose = 3}, x, kFirst), whole);
  EXPECT_NE(dropped({.p = 0.1f, .seed = 2, .purpose = 2}, x, kFirst), whole);
  EXPECT_NE(dropped(d, x, kFirst + 1), whole);
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  constexpr std::int64_t kCount = 1000000;
  const Floats x(kCount, 1.0f);
  for (const float p : {0.01f, 0.1f, 0.5f, 0.9f}) {
    const Floats y = dropped({.p = p, .seed = 3, .purpose = 4}, x, 0);
    const double share = static_cast<double>(std::count(y.begin(), y.end(), 0.0f)) / kCount;
    const double wide = static_cast<double>(p), error = std::sqrt(wide * (1 - wide) / kCount);
    EXPECT_NEAR(share, wide, 5 * error);
    double mean = 0;
    for (const float v : y) mean += static_cast<double>(v) / kCount;
    EXPECT_NEAR(mean, 1, 5 * error / (1 - wide));
  }
}

TEST(Dropout, ShareZeroIsTheIdentityAndNothingIsNothing) {
  const Floats x = random_floats(97, 1);
  EXPECT_EQ(dropped({.p = 0, .seed = 1, .purpose = 1}, x, 5), x);
  EXPECT_EQ(dropped({.p = 0.5f, .seed = 1, .purpose = 1}, {}, 5), Floats{});
}

TEST(Dropout, HidesNoNan) {
  const Floats x(101, std::numeric_limits<float>::quiet_NaN());
  for (const float v : dropped({.p = 0.9f, .seed = 1, .purpose = 1}, x, 0)) EXPECT_TRUE(std::isnan(v));
}

// Backward is the same call on the gradient: the mask of a given index does not depend on x.
TEST(Dropout, IsItsOwnBackward) {
  const Dropout d{.p = 0.25f, .seed = 5, .purpose = 6};
  const Floats x = random_floats(37, 1), dy = random_floats(37, 2);
  const auto f = [&](const Doubles& v) {
    Doubles y;
    for (std::size_t i = 0; i < v.size(); ++i) {
      const bool drop = philox(5, 6, (i + 3) / 4).w[(i + 3) % 4] < 0x40000000u;
      y.push_back(drop ? 0 : v[i] / 0.75);
    }
    return y;
  };
  expect_close(dropped(d, x, 3), f(widen(x)), 1e-7, "y");
  expect_close(dropped(d, dy, 3), numeric_gradient(f, widen(x), dy), 1e-6, "dx");
}

}  // namespace
}  // namespace shardwright::kernels
