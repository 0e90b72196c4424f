#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

constexpr AdamW kSettings{.lr = 1e-2f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .grad_scale = 0.5f,
                          .step = 1};

TEST(AdamW, ThreeStepsAgainstFloat64) {
  Stream s(DeviceKind::cpu);
  for (const std::int64_t n : {0, 1, 7, 97}) {
    Floats param = random_floats(n, 1), m(param.size()), v(param.size());
    Doubles p = widen(param), dm(param.size()), dv(param.size());
    for (int step = 1; step <= 3; ++step) {
      const Floats grad = random_floats(n, 10 + static_cast<unsigned>(step));
      AdamW h = kSettings;
      h.step = step;
      adamw(s, h, param.data(), grad.data(), m.data(), v.data(), n);
      const double beta1 = h.beta1, beta2 = h.beta2, lr = h.lr, decay = h.weight_decay, eps = h.eps;
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double g = static_cast<double>(grad[i]) * static_cast<double>(h.grad_scale);
        dm[i] = beta1 * dm[i] + (1 - beta1) * g;
        dv[i] = beta2 * dv[i] + (1 - beta2) * g * g;
        const double m_hat = dm[i] / (1 - std::pow(beta1, step)), v_hat = dv[i] / (1 - std::pow(beta2, step));
        p[i] -= lr * (m_hat / (std::sqrt(v_hat) + eps) + decay * p[i]);
      }
    }
    expect_close(param, p, 1e-6, "param");
    expect_close(m, dm, 1e-6, "exp_avg");
    expect_close(v, dv, 1e-6, "exp_avg_sq");
  }
}

// ZeRO cuts the parameters anywhere: pieces of any length give the bits of the whole.
TEST(AdamW, PiecesGiveTheBitsOfTheWhole) {
  Stream s(DeviceKind::cpu);
  constexpr std::int64_t kCount = 50000;
  const Floats grad = random_floats(kCount, 1), start = random_floats(kCount, 2);
  Floats whole = start, m(kCount, 0.01f), v(kCount, 0.02f);
  adamw(s, kSettings, whole.data(), grad.data(), m.data(), v.data(), kCount);
  for (const std::int64_t piece : {1, 3, 7, 1000}) {
    Floats param = start, m2(kCount, 0.01f), v2(kCount, 0.02f);
    for (std::int64_t i = 0; i < kCount; i += piece) {
      adamw(s, kSettings, param.data() + i, grad.data() + i, m2.data() + i, v2.data() + i,
            std::min(piece, kCount - i));
    }
    EXPECT_EQ(param, whole) << piece;
    EXPECT_EQ(m2, m) << piece;
    EXPECT_EQ(v2, v) << piece;
  }
}

}  // namespace
}  // namespace shardwright::kernels
