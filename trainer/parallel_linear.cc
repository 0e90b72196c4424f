#include "trainer/parallel_linear.h"

#include <cassert>

namespace shardwright::trainer {

Linear fuse(std::initializer_list<const Parameter*> weights, std::initializer_list<const Parameter*> biases) {
  const Parameter& weight = **weights.begin();
  const Parameter& bias = **biases.begin();
  Linear fused{weight.value,
               bias.value,
               weight.grad,
               bias.grad,
               static_cast<std::int64_t>(weight.placed.holds.shape[1]),
               0};
  for (const Parameter* part : weights) {
    assert(part->value == fused.weight + fused.out * fused.in &&
           part->grad == fused.weight_grad + fused.out * fused.in);
    fused.out += static_cast<std::int64_t>(part->placed.holds.shape[0]);
  }
  [[maybe_unused]] std::int64_t biased = 0;
  for ([[maybe_unused]] const Parameter* part : biases) {
    assert(part->value == fused.bias + biased && part->grad == fused.bias_grad + biased);
    biased += static_cast<std::int64_t>(part->placed.holds.shape[0]);
  }
  assert(biased == fused.out);
  return fused;
}

void reduce_over(Communicator& group, float* values, std::int64_t count) {
  if (group.size() > 1) group.all_reduce_sum(std::span<float>(values, static_cast<std::size_t>(count)));
}

void column_parallel_forward(kernels::Stream& stream, const Linear& layer, const float* x, float* y,
                             std::int64_t rows) {
  if (layer.out == 0) return;
  kernels::linear_forward(stream, x, layer.weight, layer.bias, y, rows, layer.in, layer.out);
}

void column_parallel_backward(kernels::Stream& stream, Communicator& tp, const Linear& layer, const float* dy,
                              const float* x, float* dx, std::int64_t rows) {
  if (layer.out == 0) {
    kernels::zero(stream, dx, rows * layer.in);
  } else {
    kernels::linear_backward(stream, dy, x, layer.weight, dx, layer.weight_grad, layer.bias_grad, rows,
                             layer.in, layer.out);
  }
  reduce_over(tp, dx, rows * layer.in);
}

void row_parallel_forward(kernels::Stream& stream, Communicator& tp, const Linear& layer, const float* x,
                          const float* residual, float* y, std::int64_t rows) {
  if (layer.in == 0) {
    kernels::zero(stream, y, rows * layer.out);
  } else {
    // In a group of one the product may add the bias on its way.
    const float* bias = tp.size() == 1 ? layer.bias : nullptr;
    kernels::linear_forward(stream, x, layer.weight, bias, y, rows, layer.in, layer.out);
  }
  if (tp.size() > 1) {
    reduce_over(tp, y, rows * layer.out);
    kernels::add_bias(stream, layer.bias, y, rows, layer.out);
  }
  kernels::add(stream, residual, y, rows * layer.out);
}

void row_parallel_backward(kernels::Stream& stream, const Linear& layer, const float* dy, const float* x,
                           float* dx, std::int64_t rows) {
  if (layer.in == 0) {
    kernels::bias_backward(stream, dy, layer.bias_grad, rows, layer.out);
  } else {
    kernels::linear_backward(stream, dy, x, layer.weight, dx, layer.weight_grad, layer.bias_grad, rows,
                             layer.in, layer.out);
  }
}

}  // namespace shardwright::trainer
