// Operations of kernels/ops.h on a CUDA device: the same names and meaning, with a CUDA stream in the place
// of the Stream, and all pointers in device memory. Work is queued on the stream; a refused launch throws
// std::runtime_error. In libshardwright_cuda.so; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "kernels/elements.h"
#include "kernels/ops.h"

struct CUstream_st;

namespace shardwright::kernels::cuda {

using CudaStream = CUstream_st*;

void add(CudaStream s, const float* x, float* y, std::int64_t n);
void add_bias(CudaStream s, const float* bias, float* y, std::int64_t rows, std::int64_t n);
/// Rows are added in order by one thread per column: the same bits in each run.
void bias_backward(CudaStream s, ConstElements dy, float* dbias, std::int64_t rows, std::int64_t n);
void scale(CudaStream s, float factor, float* y, std::int64_t n);
void fill(CudaStream s, float value, float* y, std::int64_t n);
/// The bits of the CPU's.
void convert(CudaStream s, ConstElements x, Elements y, std::int64_t n);
void gelu_forward(CudaStream s, ConstElements x, Elements y, std::int64_t n);
void gelu_backward(CudaStream s, ConstElements dy, ConstElements x, Elements dx, std::int64_t n);

void swiglu_forward(CudaStream s, ConstElements gate_up, Elements y, std::int64_t rows, std::int64_t width);
void swiglu_backward(CudaStream s, ConstElements dy, ConstElements gate_up, Elements d_gate_up,
                     std::int64_t rows, std::int64_t width);

/// Rows are summed in an order that depends on their length alone, and rows for the gradients of weight and
/// bias in one that depends on their number alone.
void layernorm_forward(CudaStream s, const float* x, const float* weight, const float* bias, Elements y,
                       float* mean, float* rstd, std::int64_t rows, std::int64_t channels, float eps);
void layernorm_backward(CudaStream s, const float* dy, const float* x, const float* weight, const float* mean,
                        const float* rstd, float* dx, float* dweight, float* dbias, std::int64_t rows,
                        std::int64_t channels);
void rmsnorm_forward(CudaStream s, const float* x, const float* weight, Elements y, float* rstd,
                     std::int64_t rows, std::int64_t channels, float eps);
void rmsnorm_backward(CudaStream s, const float* dy, const float* x, const float* weight, const float* rstd,
                      float* dx, float* dweight, std::int64_t rows, std::int64_t channels);

/// The bits of the CPU's.
void dropout(CudaStream s, const Dropout& d, const float* x, Elements y, std::int64_t n, std::uint64_t first);
/// The bits of the CPU's: compiled without fused multiply-add.
void adamw(CudaStream s, const AdamW& h, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
           std::int64_t n);

/// Doubles of scratch that sum_of_squares works in.
inline constexpr int kReductionBlocks = 256;
/// *sum = sum of squares in float64, in an order that depends on n alone. `scratch` has kReductionBlocks.
void sum_of_squares(CudaStream s, const float* x, std::int64_t n, double* scratch, double* sum);
/// Clears *finite if an element is NaN or infinite, otherwise leaves it; the caller sets it to 1 before.
void all_finite(CudaStream s, const float* x, std::int64_t n, std::int32_t* finite);

}  // namespace shardwright::kernels::cuda
