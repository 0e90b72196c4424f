// AdamW, in one pass over memory. Compiled without fused multiply-add, with IEEE roots and quotients: the
// bits of kernels/cpu/adamw.cc.
#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace shardwright::kernels::cuda {
namespace {

struct Constants {
  float grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;        // lr / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float eps, decay;       // decay: 1 - lr * weight_decay
};

__global__ void adamw_kernel(Constants k, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                             std::int64_t n) {
  for (std::int64_t i = grid_index(); i < n; i += grid_size()) {
    const float g = grad[i] * k.grad_scale;
    const float m = k.beta1 * exp_avg[i] + k.one_minus_beta1 * g;
    const float v = k.beta2 * exp_avg_sq[i] + k.one_minus_beta2 * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * k.decay - k.step_size * m / (sqrtf(v) * k.root_correction + k.eps);
  }
}

}  // namespace

void adamw(CudaStream s, const AdamW& h, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
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
  launch(adamw_kernel, blocks_for(n), s, k, param, grad, exp_avg, exp_avg_sq, n);
}

}  // namespace shardwright::kernels::cuda
