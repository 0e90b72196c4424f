#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

constexpr float kEps = 1e-5f;

// x(rows, C), weight(C), bias(C) behind each other -> y(rows, C).
Doubles reference(const Doubles& all, std::int64_t rows, std::int64_t channels) {
  const double* const weight = all.data() + rows * channels;
  const double* const bias = weight + channels;
  Doubles y;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* const x = all.data() + r * channels;
    double mean = 0, variance = 0;
    for (std::int64_t c = 0; c < channels; ++c) mean += x[c] / static_cast<double>(channels);
    for (std::int64_t c = 0; c < channels; ++c)
      variance += (x[c] - mean) * (x[c] - mean) / static_cast<double>(channels);
    const double rstd = 1 / std::sqrt(variance + static_cast<double>(kEps));
    for (std::int64_t c = 0; c < channels; ++c) y.push_back((x[c] - mean) * rstd * weight[c] + bias[c]);
  }
  return y;
}

TEST(LayerNorm, ForwardAndBackwardAgainstFloat64) {
  Stream s(DeviceKind::cpu);
  for (const auto& [rows, channels] : {std::array<std::int64_t, 2>{1, 12}, {7, 12}, {7, 5}, {2, 97}}) {
    const Floats x = random_floats(rows * channels, 1, 2.0f), weight = random_floats(channels, 2);
    const Floats bias = random_floats(channels, 3), dy = random_floats(rows * channels, 4);
    Doubles all = widen(x);
    for (const Floats* part : {&weight, &bias}) all.insert(all.end(), part->begin(), part->end());
    const auto f = [&, rows = rows, channels = channels](const Doubles& v) {
      return reference(v, rows, channels);
    };

    Floats y(x.size()), mean(static_cast<std::size_t>(rows)), rstd(mean.size());
    layernorm_forward(s, x.data(), weight.data(), bias.data(), y.data(), mean.data(), rstd.data(), rows,
                      channels, kEps);
    expect_close(y, f(all), 3e-6, "y");

    Floats dx(x.size(), 1.0f), dweight(weight.size(), 1.0f), dbias(bias.size(), 1.0f);
    layernorm_backward(s, dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), dx.data(),
                       dweight.data(), dbias.data(), rows, channels);
    Floats got;
    for (const Floats* part : {&dx, &dweight, &dbias}) {
      for (const float v : *part) got.push_back(v - 1.0f);  // accumulated on what was there
    }
    expect_close(got, numeric_gradient(f, all, dy), 5e-6, "gradient");
  }
}

TEST(LayerNorm, BackwardHasTheSameBitsForAnyNumberOfThreads) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kRows = 500, kChannels = 96;
  const Floats x = random_floats(kRows * kChannels, 1), dy = random_floats(kRows * kChannels, 2);
  const Floats weight = random_floats(kChannels, 3);
  Floats y(x.size()), mean(kRows), rstd(kRows);
  layernorm_forward(s, x.data(), weight.data(), weight.data(), y.data(), mean.data(), rstd.data(), kRows,
                    kChannels, kEps);
  const int before = threads();
  Floats first;
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    Floats result(x.size() + 2 * kChannels);
    float* const dweight = result.data() + x.size();
    layernorm_backward(s, dy.data(), x.data(), weight.data(), mean.data(), rstd.data(), result.data(),
                       dweight, dweight + kChannels, kRows, kChannels);
    if (first.empty()) first = result;
    EXPECT_EQ(result, first) << count;
  }
  set_threads(before);
}

}  // namespace
}  // namespace shardwright::kernels
