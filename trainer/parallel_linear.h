// Linear layers cut over the ranks of a tensor-parallel group, after Megatron-LM (Shoeybi et al. 2019). A
// column-parallel layer holds rows of its weight and makes its part of the output; a row-parallel layer takes
// such parts, and one sum over the group completes its output. A pair of them costs one all-reduce forward
// and one backward.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/ops.h"
#include "trainer/communicator.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// A weight (out, in) and bias (out) with their gradients, as this rank holds them. Not owned.
struct Linear {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* weight_grad = nullptr;
  float* bias_grad = nullptr;
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// Tensors that lie back to back in memory (q, k, v) as one layer, their outputs side by side.
Linear fuse(std::initializer_list<const Parameter*> weights, std::initializer_list<const Parameter*> biases);

/// y(rows, out) = x(rows, in) * weight^T + bias; x is the same on all ranks, y this rank's columns. No
/// communication.
void column_parallel_forward(kernels::Stream& stream, const Linear& layer, const float* x, float* y,
                             std::int64_t rows);
/// dx(rows, in) = dy * weight, summed over the group; the gradients of weight and bias +=. Any size of `out`,
/// zero included.
void column_parallel_backward(kernels::Stream& stream, Communicator& tp, const Linear& layer, const float* dy,
                              const float* x, float* dx, std::int64_t rows);

/// y(rows, out) = residual(rows, out) + x(rows, in) * weight^T summed over the group + bias, the bias once.
void row_parallel_forward(kernels::Stream& stream, Communicator& tp, const Linear& layer, const float* x,
                          const float* residual, float* y, std::int64_t rows);
/// dx(rows, in) = dy * weight; the gradients of weight and bias +=. dy is the same on all ranks, so the bias'
/// gradient is too, and there is no communication. The residual's gradient is dy itself.
void row_parallel_backward(kernels::Stream& stream, const Linear& layer, const float* dy, const float* x,
                           float* dx, std::int64_t rows);

/// Sum over the group in place; nothing at all in a group of one.
void reduce_over(Communicator& group, float* values, std::int64_t count);

}  // namespace shardwright::trainer
