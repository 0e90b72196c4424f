// Layer norm and RMS norm as CUDA kernels, run on the host, against float64 and the CPU device.
#include <cmath>

#include "kernels/cuda/ops.h"
#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"
#include "tests/unit/kernels/sixteen_bits.h"

namespace shardwright::kernels {
namespace {

constexpr float kEps = 1e-5f;

/// One of the two norms, on either device. RMS norm has no mean and no bias: those stay as they are.
struct Norm {
  bool centered;

  void forward(bool cuda, const Floats& x, const Floats& weight, const Floats& bias, Elements y, Floats& mean,
               Floats& rstd) const {
    const auto channels = std::ssize(weight), rows = std::ssize(rstd);
    Stream s(DeviceKind::cpu);
    if (centered && cuda)
      cuda::layernorm_forward(nullptr, x.data(), weight.data(), bias.data(), y, mean.data(), rstd.data(),
                              rows, channels, kEps);
    else if (centered)
      layernorm_forward(s, x.data(), weight.data(), bias.data(), y, mean.data(), rstd.data(), rows, channels,
                        kEps);
    else if (cuda)
      cuda::rmsnorm_forward(nullptr, x.data(), weight.data(), y, rstd.data(), rows, channels, kEps);
    else
      rmsnorm_forward(s, x.data(), weight.data(), y, rstd.data(), rows, channels, kEps);
  }
  void backward(const Floats& dy, const Floats& x, const Floats& weight, const Floats& mean,
                const Floats& rstd, Floats& dx, Floats& dweight, Floats& dbias) const {
    const auto channels = std::ssize(weight), rows = std::ssize(rstd);
    if (centered)
      cuda::layernorm_backward(nullptr, dy.data(), x.data(), weight.data(), mean.data(), rstd.data(),
                               dx.data(), dweight.data(), dbias.data(), rows, channels);
    else
      cuda::rmsnorm_backward(nullptr, dy.data(), x.data(), weight.data(), rstd.data(), dx.data(),
                             dweight.data(), rows, channels);
  }
  /// x(rows, C), weight(C), bias(C) one after the other -> y(rows, C).
  Doubles reference(const Doubles& all, std::int64_t rows, std::int64_t channels) const {
    const double* const weight = all.data() + rows * channels;
    const double* const bias = weight + channels;
    const auto count = static_cast<double>(channels);
    Doubles y;
    for (std::int64_t r = 0; r < rows; ++r) {
      const double* const x = all.data() + r * channels;
      double mean = 0, variance = 0;
      for (std::int64_t c = 0; centered && c < channels; ++c) mean += x[c] / count;
      for (std::int64_t c = 0; c < channels; ++c) variance += (x[c] - mean) * (x[c] - mean) / count;
      const double rstd = 1 / std::sqrt(variance + static_cast<double>(kEps));
      for (std::int64_t c = 0; c < channels; ++c)
        y.push_back((x[c] - mean) * rstd * weight[c] + (centered ? bias[c] : 0));
    }
    return y;
  }
};

class CudaNorm : public testing::TestWithParam<bool> {
 protected:
  const Norm norm_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(, CudaNorm, testing::Bool(),
                         [](const auto& of) { return of.param ? "LayerNorm" : "RmsNorm"; });

TEST_P(CudaNorm, ForwardAgainstFloat64AndTheCpu) {
  // Fewer channels than threads, as many, and more; more rows than blocks.
  for (const auto& [rows, channels] :
       {std::array<std::int64_t, 2>{0, 5}, {1, 1}, {7, 3}, {2, 256}, {3, 257}, {5, 1009}, {1027, 2}}) {
    const Floats x = random_floats(rows * channels, 1, 2.0f), weight = random_floats(channels, 2);
    const Floats bias = random_floats(channels, 3);
    Doubles all = widen(x);
    for (const Floats* part : {&weight, &bias}) all.insert(all.end(), part->begin(), part->end());
    Floats y(x.size()), mean(static_cast<std::size_t>(rows)), rstd(mean.size());
    norm_.forward(true, x, weight, bias, y.data(), mean, rstd);
    expect_close(y, norm_.reference(all, rows, channels), channels == 1 ? 1e-4 : 5e-6, "y");
    Floats want(x.size()), want_mean(mean.size()), want_rstd(mean.size());
    norm_.forward(false, x, weight, bias, want.data(), want_mean, want_rstd);
    expect_close(mean, widen(want_mean), 1e-6, "mean");
    expect_close(rstd, widen(want_rstd), 1e-4, "rstd");
  }
}

TEST_P(CudaNorm, BackwardAgainstFloat64) {
  for (const auto& [rows, channels] :
       {std::array<std::int64_t, 2>{1, 12}, {7, 5}, {2, 97}, {11, 33}, {1, 301}}) {
    const Floats x = random_floats(rows * channels, 1, 2.0f), weight = random_floats(channels, 2);
    const Floats bias = random_floats(channels, 3), dy = random_floats(rows * channels, 4);
    Doubles all = widen(x);
    for (const Floats* part : {&weight, &bias}) all.insert(all.end(), part->begin(), part->end());
    Floats y(x.size()), mean(static_cast<std::size_t>(rows)), rstd(mean.size());
    norm_.forward(true, x, weight, bias, y.data(), mean, rstd);
    Floats dx(x.size(), 1.0f), dweight(weight.size(), 1.0f), dbias(bias.size(), 1.0f);
    norm_.backward(dy, x, weight, mean, rstd, dx, dweight, dbias);
    Floats got;
    for (const Floats* part : {&dx, &dweight, &dbias})
      for (const float v : *part) got.push_back(v - 1.0f);  // added to what was there
    expect_close(
        got, numeric_gradient([&](const Doubles& v) { return norm_.reference(v, rows, channels); }, all, dy),
        1e-5, "gradient");
  }
}

TEST_P(CudaNorm, SixteenBitsAreTheRoundedResult) {
  for (const ElementType type : {ElementType::bf16, ElementType::f16}) {
    const std::int64_t rows = 3, channels = 97;
    const Floats x = random_floats(rows * channels, 1), weight = random_floats(channels, 2),
                 bias = random_floats(channels, 3);
    Floats wide(x.size()), mean(rows), rstd(rows);
    SixteenBits y(type, Floats(x.size()));
    norm_.forward(true, x, weight, bias, wide.data(), mean, rstd);
    norm_.forward(true, x, weight, bias, y, mean, rstd);
    EXPECT_EQ(y, SixteenBits(type, wide));
  }
}

}  // namespace
}  // namespace shardwright::kernels
