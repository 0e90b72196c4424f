// AdamW. This file is compiled without fused multiply-add: each element's result is then the same in any
// vector width and on any machine, however the parameters are cut among ranks and threads. The loop waits for
// memory, so nothing is lost.
#include <cmath>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

struct Constants {
  float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float eps, decay;       // decay: 1 - lr * weight_decay
};

SHARDWRIGHT_CLONES void update(const Constants& h, float* __restrict param, const float* __restrict grad,
                               float* __restrict exp_avg, float* __restrict exp_avg_sq, std::int64_t n) {
  const Constants k = h;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = grad[i] * k.grad_scale;
    const float m = k.beta1 * exp_avg[i] + k.one_minus_beta1 * g;
    const float v = k.beta2 * exp_avg_sq[i] + k.one_minus_beta2 * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * k.decay - k.step_size * m / (std::sqrt(v) * k.root_correction + k.eps);
  }
}

}  // namespace

void adamw(Stream&, const AdamW& h, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
           std::int64_t n) {
  const double beta1 = h.beta1, beta2 = h.beta2, lr = h.lr, step = static_cast<double>(h.step);
  const Constants k{
      .grad_scale = h.grad_scale,
      .beta1 = h.beta1,
      .one_minus_beta1 = static_cast<float>(1 - beta1),
      .beta2 = h.beta2,
      .one_minus_beta2 = static_cast<float>(1 - beta2),
      .step_size = static_cast<float>(lr / (1 - std::pow(beta1, step))),
      .root_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, step))),
      .eps = h.eps,
      .decay = static_cast<float>(1 - lr * static_cast<double>(h.weight_decay)),
  };
  cpu::for_ranges(n, cpu::kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    update(k, param + begin, grad + begin, exp_avg + begin, exp_avg_sq + begin, end - begin);
  });
}

}  // namespace shardwright::kernels
