// exp and the functions made of it, in a form that compilers vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace shardwright::kernels::cpu {

/// e^x to 1.5e-7 relative where the result is a normal number, subnormals below, 0 for -infinity, infinity
/// past the largest float; NaN stays NaN. Branch-free.
[[gnu::always_inline]] inline float exp_approximate(float x) {
  // Written so that NaN fails both comparisons and goes through.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. e^x = 2^n * e^r, |r| <= ln(2) / 2.
  constexpr float kRound = 12582912.0f;
  const float rounded = x * 1.44269504088896341f + kRound;
  const float n = rounded - kRound;
  // ln(2) in two parts; the first has few bits, so its product with n is exact.
  float r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  // Minimax polynomial of (e^r - 1 - r) / r^2, from the Cephes library.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that neither leaves the normal range when the result is subnormal or near the
  // largest float.
  const auto k =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(kRound));
  const std::int32_t half = k >> 1;
  const float first = std::bit_cast<float>((static_cast<std::uint32_t>(half) + 127u) << 23);
  const float second = std::bit_cast<float>((static_cast<std::uint32_t>(k - half) + 127u) << 23);
  return e * first * second;
}

// GPT-2's GELU: x * sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3), the same as 0.5 x (1 + tanh(u))
// without its cancellation at negative x.
inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kGeluTwoRootTwoOverPi = 1.5957691216057308f;

[[gnu::always_inline]] inline float gelu(float x) {
  const float u2 = kGeluTwoRootTwoOverPi * (x + kGeluCubic * x * x * x);
  return x / (1.0f + exp_approximate(-u2));
}

[[gnu::always_inline]] inline float gelu_derivative(float x) {
  // Past 9.75 the derivative is 0 or 1 to 1e-32; the clamp keeps exp(-u2) finite (and NaN passes).
  x = x > 9.75f ? 9.75f : x;
  x = x < -9.75f ? -9.75f : x;
  const float u2 = kGeluTwoRootTwoOverPi * (x + kGeluCubic * x * x * x);
  const float du2 = kGeluTwoRootTwoOverPi * (1.0f + 3.0f * kGeluCubic * x * x);
  const float e = exp_approximate(-u2);
  const float sigmoid = 1.0f / (1.0f + e);
  return sigmoid + x * sigmoid * (e * sigmoid) * du2;
}

}  // namespace shardwright::kernels::cpu
