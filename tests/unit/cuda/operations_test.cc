// The CUDA kernels, run on the host by tests/emulation, against the CPU device and float64, at awkward sizes.
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda/ops.h"
#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"
#include "tests/unit/kernels/sixteen_bits.h"

namespace shardwright::kernels {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 3, 5, 7, 97, 1009, 4099};

TEST(CudaPointwise, AddScaleAndFillGiveTheCpusBits) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t n : kSizes) {
    const Floats x = random_floats(n, 1);
    Floats y = random_floats(n, 2), want = y;
    cuda::add(nullptr, x.data(), y.data(), n);
    add(s, x.data(), want.data(), n);
    EXPECT_EQ(y, want) << n;
    cuda::scale(nullptr, 0.3f, y.data(), n);
    scale(s, 0.3f, want.data(), n);
    EXPECT_EQ(y, want) << n;
    cuda::fill(nullptr, 2.5f, y.data(), n);
    EXPECT_EQ(y, Floats(static_cast<std::size_t>(n), 2.5f)) << n;
  }
}

// More elements than the grid's largest number of threads, so that each thread takes a second one.
TEST(CudaPointwise, ThreadsTakeSeveralElements) {
  constexpr std::int64_t kCount = 4096 * 256 + 5;
  Floats y(kCount);
  cuda::fill(nullptr, 1.5f, y.data(), kCount);
  EXPECT_EQ(y, Floats(kCount, 1.5f));
}

TEST(CudaPointwise, BiasOfAnyShape) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t rows : {0, 1, 5, 97}) {
    for (const std::int64_t n : {1, 3, 7, 301}) {
      const Floats bias = random_floats(n, 1), dy = random_floats(rows * n, 3);
      Floats y = random_floats(rows * n, 2), want = y;
      cuda::add_bias(nullptr, bias.data(), y.data(), rows, n);
      add_bias(s, bias.data(), want.data(), rows, n);
      EXPECT_EQ(y, want) << rows << " x " << n;

      Floats gradient = bias;
      cuda::bias_backward(nullptr, dy.data(), gradient.data(), rows, n);
      Doubles sums = widen(bias);
      for (std::int64_t i = 0; i < rows * n; ++i) sums[i % n] += static_cast<double>(dy[i]);
      expect_close(gradient, sums, 1e-5, "dbias");
    }
  }
}

TEST(CudaPointwise, GeluAgainstFloat64) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  const auto gelu = [&](const Doubles& x) {
    Doubles y = x;
    for (double& v : y) v = 0.5 * v * (1 + std::tanh(root * (v + 0.044715 * v * v * v)));
    return y;
  };
  for (const std::int64_t n : kSizes) {
    const Floats x = random_floats(n, 1, 6.0f), dy = random_floats(n, 2);
    Floats y(x.size()), dx(x.size());
    cuda::gelu_forward(nullptr, x.data(), y.data(), n);
    expect_close(y, gelu(widen(x)), 1e-6, "gelu");
    cuda::gelu_backward(nullptr, dy.data(), x.data(), dx.data(), n);
    if (n <= 97) expect_close(dx, numeric_gradient(gelu, widen(x), dy), 1e-5, "dx");
    Stream s(DeviceKind::cpu);
    Floats want(x.size());
    gelu_backward(s, dy.data(), x.data(), want.data(), n);
    expect_close(dx, widen(want), 2e-6, "dx beside the CPU's");
  }
}

class CudaSixteenBits : public testing::TestWithParam<ElementType> {};
INSTANTIATE_TEST_SUITE_P(Types, CudaSixteenBits, testing::Values(ElementType::bf16, ElementType::f16),
                         type_name);

TEST_P(CudaSixteenBits, ConvertGivesTheCpusBits) {
  Stream s(DeviceKind::cpu);
  // Every 16-bit value, widened; and floats of all magnitudes with the special ones, narrowed.
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<std::uint32_t> got(all.size()), want(all.size());
  cuda::convert(nullptr, {all.data(), GetParam()}, Elements(got.data(), ElementType::f32), 65536);
  convert(s, {all.data(), GetParam()}, Elements(want.data(), ElementType::f32), 65536);
  EXPECT_EQ(got, want);

  Floats x;
  for (std::uint32_t bits = 0; bits < 0xfff00000u; bits += 0x0001ffffu / 3)
    x.push_back(std::bit_cast<float>(bits));
  x.insert(x.end(), {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                     std::numeric_limits<float>::quiet_NaN(), 65504.0f, 65520.0f, -0.0f});
  std::vector<std::uint16_t> narrow(x.size()), expected(x.size());
  cuda::convert(nullptr, x.data(), Elements(narrow.data(), GetParam()), std::ssize(x));
  convert(s, x.data(), Elements(expected.data(), GetParam()), std::ssize(x));
  EXPECT_EQ(narrow, expected);
}

TEST_P(CudaSixteenBits, GeluIsTheRoundedResult) {
  const std::int64_t n = 1009;
  SixteenBits x(GetParam(), random_floats(n, 1, 4.0f)), y(GetParam(), Floats(n));
  cuda::gelu_forward(nullptr, x, y, n);
  Floats wide(n);
  cuda::gelu_forward(nullptr, x.floats().data(), wide.data(), n);
  EXPECT_EQ(y, SixteenBits(GetParam(), wide));
}

TEST(CudaDropout, GivesTheCpusBits) {
  Stream s(DeviceKind::cpu);
  const Dropout d{.p = 0.3f, .seed = 0x123456789abcdef0u, .purpose = 0xfedcba9876543210u};
  for (const std::int64_t n : kSizes) {
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, (std::uint64_t{1} << 34) - 5}) {
      const Floats x = random_floats(n, 1);
      Floats y(x.size()), want(x.size());
      cuda::dropout(nullptr, d, x.data(), y.data(), n, first);
      dropout(s, d, x.data(), want.data(), n, first);
      EXPECT_EQ(y, want) << n << " from " << first;
    }
  }
}

TEST(CudaAdamW, ThreeStepsGiveTheCpusBits) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t n : kSizes) {
    Floats param = random_floats(n, 1), m(param.size()), v(param.size());
    Floats want = param, want_m = m, want_v = v;
    for (int step = 1; step <= 3; ++step) {
      const Floats grad = random_floats(n, 10 + static_cast<unsigned>(step));
      const AdamW h{.lr = 1e-2f,
                    .beta1 = 0.9f,
                    .beta2 = 0.95f,
                    .eps = 1e-8f,
                    .weight_decay = 0.1f,
                    .grad_scale = 0.5f,
                    .step = step};
      cuda::adamw(nullptr, h, param.data(), grad.data(), m.data(), v.data(), n);
      adamw(s, h, want.data(), grad.data(), want_m.data(), want_v.data(), n);
    }
    EXPECT_EQ(param, want) << n;
    EXPECT_EQ(m, want_m) << n;
    EXPECT_EQ(v, want_v) << n;
  }
}

TEST(CudaReductions, SumOfSquaresAgainstFloat64) {
  for (const std::int64_t n : {0, 1, 3, 97, 1009, 70001}) {
    const Floats x = random_floats(n, 1);
    double want = 0;
    for (const float v : x) want += static_cast<double>(v) * static_cast<double>(v);
    Doubles scratch(cuda::kReductionBlocks);
    double sum = -1, again = -1;
    cuda::sum_of_squares(nullptr, x.data(), n, scratch.data(), &sum);
    cuda::sum_of_squares(nullptr, x.data(), n, scratch.data(), &again);
    EXPECT_NEAR(sum, want, 1e-12 * want) << n;
    EXPECT_EQ(sum, again) << n;
  }
}

TEST(CudaReductions, OneElementThatIsNotFiniteIsSeen) {
  for (const std::int64_t n : {0, 1, 97, 1009}) {
    Floats x = random_floats(n, 1);
    std::int32_t finite = 1;
    cuda::all_finite(nullptr, x.data(), n, &finite);
    EXPECT_EQ(finite, 1) << n;
    for (std::int64_t i = 0; i < n; i += 31) {
      const float kept = x[i];
      x[i] = i % 2 == 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      finite = 1;
      cuda::all_finite(nullptr, x.data(), n, &finite);
      EXPECT_EQ(finite, 0) << i << " of " << n;
      x[i] = kept;
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels
