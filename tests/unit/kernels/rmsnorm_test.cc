#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

constexpr float kEps = 1e-5f;

// x(rows, C), weight(C) behind each other -> y(rows, C), and, if asked for, rstd(rows).
Doubles reference(const Doubles& all, std::int64_t rows, std::int64_t channels, Doubles* kept = nullptr) {
  const double* const weight = all.data() + rows * channels;
  Doubles y;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* const x = all.data() + r * channels;
    double square = 0;
    for (std::int64_t c = 0; c < channels; ++c) square += x[c] * x[c] / static_cast<double>(channels);
    const double rstd = 1 / std::sqrt(square + static_cast<double>(kEps));
    if (kept != nullptr) kept->push_back(rstd);
    for (std::int64_t c = 0; c < channels; ++c) y.push_back(x[c] * rstd * weight[c]);
  }
  return y;
}

TEST(RmsNorm, ForwardAndBackwardAgainstFloat64) {
  Stream s(DeviceKind::cpu);
  for (const auto& [rows, channels] :
       {std::array<std::int64_t, 2>{1, 1}, {1, 12}, {7, 12}, {7, 5}, {2, 97}, {0, 5}}) {
    const Floats x = random_floats(rows * channels, 1, 2.0f), weight = random_floats(channels, 2);
    const Floats dy = random_floats(rows * channels, 3);
    Doubles all = widen(x);
    all.insert(all.end(), weight.begin(), weight.end());
    const auto f = [&, rows = rows, channels = channels](const Doubles& v) {
      return reference(v, rows, channels);
    };

    Floats y(x.size()), rstd(static_cast<std::size_t>(rows));
    rmsnorm_forward(s, x.data(), weight.data(), y.data(), rstd.data(), rows, channels, kEps);
    Doubles want_rstd;
    expect_close(y, reference(all, rows, channels, &want_rstd), 3e-6, "y");
    expect_close(rstd, want_rstd, 3e-6, "rstd");

    Floats dx(x.size(), 1.0f), dweight(weight.size(), 1.0f);
    rmsnorm_backward(s, dy.data(), x.data(), weight.data(), rstd.data(), dx.data(), dweight.data(), rows,
                     channels);
    Floats got;
    for (const Floats* part : {&dx, &dweight}) {
      for (const float v : *part) got.push_back(v - 1.0f);  // accumulated on what was there
    }
    expect_close(got, numeric_gradient(f, all, dy), 5e-6, "gradient");
  }
}

TEST(RmsNorm, BackwardHasTheSameBitsForAnyNumberOfThreads) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kRows = 500, kChannels = 96;
  const Floats x = random_floats(kRows * kChannels, 1), dy = random_floats(kRows * kChannels, 2);
  const Floats weight = random_floats(kChannels, 3);
  Floats y(x.size()), rstd(kRows);
  rmsnorm_forward(s, x.data(), weight.data(), y.data(), rstd.data(), kRows, kChannels, kEps);
  const int before = threads();
  Floats first;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    Floats result(x.size() + kChannels);
    rmsnorm_backward(s, dy.data(), x.data(), weight.data(), rstd.data(), result.data(),
                     result.data() + x.size(), kRows, kChannels);
    if (first.empty()) first = result;
    EXPECT_EQ(result, first) << count;
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
