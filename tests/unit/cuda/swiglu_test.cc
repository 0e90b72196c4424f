#include <cmath>

#include "kernels/cuda/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {
namespace {

TEST(CudaSwiGLU, AgainstFloat64) {
  for (const std::int64_t rows : {0, 1, 5, 13}) {
    for (const std::int64_t width : {1, 3, 7, 97}) {
      const auto forward = [&](const Doubles& x) {
        Doubles y;
        for (std::int64_t i = 0; i < rows * width; ++i) {
          const double gate = x[i / width * 2 * width + i % width];
          y.push_back(gate / (1 + std::exp(-gate)) * x[i / width * 2 * width + i % width + width]);
        }
        return y;
      };
      const Floats x = random_floats(rows * 2 * width, 1, 4.0f), dy = random_floats(rows * width, 2);
      Floats y(dy.size()), dx(x.size());
      cuda::swiglu_forward(nullptr, x.data(), y.data(), rows, width);
      expect_close(y, forward(widen(x)), 1e-6, "y");
      cuda::swiglu_backward(nullptr, dy.data(), x.data(), dx.data(), rows, width);
      if (rows * width < 200) expect_close(dx, numeric_gradient(forward, widen(x), dy), 1e-5, "dx");
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels
