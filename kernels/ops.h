// The operations that a decoder is made of, each taking a stream. All compute and sum in fp32; what is typed
// Elements may lie in memory as bf16 or f16 (of one type in a call unless said), converted as it is read and
// rounded to nearest even as it is written. Matrices are row-major and dense unless a leading dimension says
// otherwise. Gradients marked "+=" accumulate; all other outputs are
// overwritten. Results are a pure function of the arguments and the number of threads, the same in each run.
// Not built for aliased arguments unless said. Rows, heads, widths and counts may be zero.
//
// Letters: B sequences, T positions, C channels (hidden), H heads, D channels of a head, V vocabulary rows
// held here.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/elements.h"

namespace shardwright::kernels {

// --- matrix products (oneDNN on the CPU)

/// C(m, n) = alpha * op(A)(m, k) * op(B)(k, n) + beta * C, op being the transpose where asked; ld* are row
/// strides. Any of A, B, C may be fp32, the others are of one 16-bit type; a C of 16 bits has beta 0.
void matmul(Stream& s, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
            float alpha, ConstElements a, std::int64_t lda, ConstElements b, std::int64_t ldb, float beta,
            Elements c, std::int64_t ldc);
/// Whether this processor multiplies operands of this type as they are, with sums in fp32. Otherwise products
/// of 16-bit operands widen them first, a tile at a time, and run in fp32. Where it does, an fp32 operand
/// beside a 16-bit one is rounded to its type.
bool multiplies_directly(ElementType type);

/// y(rows, out) = x(rows, in) * w(out, in)^T + bias(out); bias may be null.
/// Types as matmul's.
void linear_forward(Stream& s, ConstElements x, ConstElements w, const float* bias, Elements y,
                    std::int64_t rows, std::int64_t in, std::int64_t out);
/// dx(rows, in) = dy(rows, out) * w(out, in); dw(out, in) += dy^T * x; dbias(out) += column sums of dy. Any
/// of dx, dw, dbias may be null. Types as matmul's.
void linear_backward(Stream& s, ConstElements dy, ConstElements x, ConstElements w, Elements dx, float* dw,
                     float* dbias, std::int64_t rows, std::int64_t in, std::int64_t out);

// --- pointwise

/// y += x
void add(Stream& s, const float* x, float* y, std::int64_t n);
/// y(rows, n) += bias(n)
void add_bias(Stream& s, const float* bias, float* y, std::int64_t rows, std::int64_t n);
/// dbias(n) += column sums of dy(rows, n)
void bias_backward(Stream& s, ConstElements dy, float* dbias, std::int64_t rows, std::int64_t n);
void scale(Stream& s, float factor, float* y, std::int64_t n);
void zero(Stream& s, float* y, std::int64_t n);
void copy(Stream& s, const float* x, float* y, std::int64_t n);
/// y = x, of any two types. Infinity stays, past the largest number of a type lies infinity, NaN stays NaN.
void convert(Stream& s, ConstElements x, Elements y, std::int64_t n);
/// GPT-2's GELU: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
void gelu_forward(Stream& s, ConstElements x, Elements y, std::int64_t n);
/// dx = dy * gelu'(x); dx may alias dy.
void gelu_backward(Stream& s, ConstElements dy, ConstElements x, Elements dx, std::int64_t n);

/// SwiGLU (Shazeer 2020), gate_up(rows, 2F) with the gate in the first F = `width` columns: y(rows, F) =
/// silu(gate) * up.
void swiglu_forward(Stream& s, ConstElements gate_up, Elements y, std::int64_t rows, std::int64_t width);
/// d_gate_up(rows, 2F) from dy(rows, F).
void swiglu_backward(Stream& s, ConstElements dy, ConstElements gate_up, Elements d_gate_up,
                     std::int64_t rows, std::int64_t width);

// --- norms

/// Layer norm: y(rows, C) = (x - mean) * rstd * weight + bias; mean and rstd (rows) are kept for backward.
/// eps is added to the variance.
void layernorm_forward(Stream& s, const float* x, const float* weight, const float* bias, Elements y,
                       float* mean, float* rstd, std::int64_t rows, std::int64_t channels, float eps);
/// dx(rows, C) += ...; dweight(C) +=, dbias(C) +=. (dx accumulates because the residual branch meets it.)
void layernorm_backward(Stream& s, const float* dy, const float* x, const float* weight, const float* mean,
                        const float* rstd, float* dx, float* dweight, float* dbias, std::int64_t rows,
                        std::int64_t channels);

/// RMS norm (Zhang and Sennrich 2019): y(rows, C) = x * rstd * weight with rstd(rows) = 1 / sqrt(mean(x^2) +
/// eps), kept for backward.
void rmsnorm_forward(Stream& s, const float* x, const float* weight, Elements y, float* rstd,
                     std::int64_t rows, std::int64_t channels, float eps);
/// dx(rows, C) += ...; dweight(C) +=.
void rmsnorm_backward(Stream& s, const float* dy, const float* x, const float* weight, const float* rstd,
                      float* dx, float* dweight, std::int64_t rows, std::int64_t channels);

// --- embedding, with the vocabulary's rows [first, first + V) held here

/// y(rows, C) = table[token - first], zero where the token is not held here.
void embedding_forward(Stream& s, const std::int32_t* tokens, ConstElements table, float* y,
                       std::int64_t rows, std::int64_t channels, std::int64_t first, std::int64_t held);
/// dtable(V, C) += dy of the tokens held here, rows in order (deterministic).
void embedding_backward(Stream& s, const std::int32_t* tokens, const float* dy, float* dtable,
                        std::int64_t rows, std::int64_t channels, std::int64_t first, std::int64_t held);
/// y(rows, C) += the table(T, C)'s row of each position: row r is row first_row + r of the sequences behind
/// each other, so its position is (first_row + r) % T. Backward: dtable(T, C) += dy, rows in order.
void position_forward(Stream& s, ConstElements table, float* y, std::int64_t first_row, std::int64_t rows,
                      std::int64_t positions, std::int64_t channels);
void position_backward(Stream& s, const float* dy, float* dtable, std::int64_t first_row, std::int64_t rows,
                       std::int64_t positions, std::int64_t channels);

// --- rotary positions (Su et al. 2021)

/// Rotates in place x, a view (rows, H, D) with row stride `stride`, row r being position r % T. Channels i
/// and i + D/2 of a head (the pairs of Llama checkpoints) turn by the angle position * theta^(-2i/D). D is
/// even. `inverse` turns back, which is its backward.
void rope(Stream& s, Elements x, std::int64_t stride, std::int64_t rows, std::int64_t positions,
          std::int64_t heads, std::int64_t head_size, float theta, bool inverse);

// --- dropout

/// The element with index i is dropped if word i % 4 of Philox4x32-10 (key = seed, counter = (purpose, i /
/// 4)) is below p * 2^32; what stays is multiplied by 1 / (1 - p). A pure function of the index: the same
/// mask in each layout, cut and machine. 0 <= p < 1.
struct Dropout {
  float p;
  std::uint64_t seed;
  std::uint64_t purpose;
};
/// y[i] = dropout of x[i], the element with index first + i. It is its own backward; y may be x.
void dropout(Stream& s, const Dropout& d, const float* x, Elements y, std::int64_t n, std::uint64_t first);

// --- ALiBi, positions by distance (Press et al. 2022)

/// slopes(heads) of heads first_head .. first_head + heads - 1 of all_heads. Head h of the first n, the
/// largest power of two up to all_heads, has 2^(-8 (h + 1) / n); the heads after them have every second slope
/// of 2 n heads, from the first.
void alibi_slopes(Stream& s, float* slopes, std::int64_t first_head, std::int64_t heads,
                  std::int64_t all_heads);

// --- causal attention

/// Dropout of attention's probabilities. The one of sequence b, head h, query t and key u here has index
/// ((sequence * all_heads + head) * T + t) * T + u with sequence = first_sequence + b, head = first_head + h.
struct AttentionDropout {
  Dropout dropout;
  std::uint64_t first_sequence;
  std::int64_t all_heads;
  std::int64_t first_head;
};

/// q (B, T, H, D) and k, v (B, T, KV, D) are views with row stride `stride` (elements from one position to
/// the next, so that they may lie in one fused buffer); H is a multiple of KV. out (B, T, H, D) dense. lse
/// (B, H, T) keeps the row's log-sum-exp. `dropout` null is none. With `slopes` (H) the score of query t and
/// key u loses slopes[h] * (t - u) before the softmax.
void attention_forward(Stream& s, ConstElements q, ConstElements k, ConstElements v, std::int64_t stride,
                       Elements out, float* lse, std::int64_t batch, std::int64_t positions,
                       std::int64_t heads, std::int64_t kv_heads, std::int64_t head_size, float softmax_scale,
                       const AttentionDropout* dropout = nullptr, const float* slopes = nullptr);
/// Dropout and slopes must be forward's. dq, dk, dv are overwritten, with row stride `dstride`.
void attention_backward(Stream& s, ConstElements dout, ConstElements q, ConstElements k, ConstElements v,
                        std::int64_t stride, ConstElements out, const float* lse, Elements dq, Elements dk,
                        Elements dv, std::int64_t dstride, std::int64_t batch, std::int64_t positions,
                        std::int64_t heads, std::int64_t kv_heads, std::int64_t head_size,
                        float softmax_scale, const AttentionDropout* dropout = nullptr,
                        const float* slopes = nullptr);

// --- cross entropy over a vocabulary cut in ranks: the caller reduces between the passes

/// row_max(rows) = largest logit held here (-inf if V is 0).
void logits_max(Stream& s, const float* logits, float* row_max, std::int64_t rows, std::int64_t held);
/// Given the global row_max: sums(rows) = sum of exp(logit - max) held here; target_logit(rows) = logit of
/// the target minus max if it is held here, else 0. logits may be overwritten with exp(logit - max).
void logits_sum(Stream& s, float* logits, const std::int32_t* targets, const float* row_max, float* sums,
                float* target_logit, std::int64_t rows, std::int64_t held, std::int64_t first);
/// Given the global sums, and logits as logits_sum left them: dlogits = scale * (softmax - onehot), in place.
/// Targets < 0 have no loss and a zero gradient.
void logits_backward(Stream& s, float* logits, const std::int32_t* targets, const float* sums, float scale,
                     std::int64_t rows, std::int64_t held, std::int64_t first);

// --- optimizer and reductions

/// Decoupled AdamW (Loshchilov and Hutter 2019) on n elements; `step` counts from 1 for the bias correction.
/// The gradient is multiplied by grad_scale (clipping) first.
struct AdamW {
  float lr, beta1, beta2, eps, weight_decay, grad_scale;
  std::int64_t step;
};
void adamw(Stream& s, const AdamW& h, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
           std::int64_t n);
/// Sum of squares in float64, in a fixed order.
double sum_of_squares(Stream& s, const float* x, std::int64_t n);
/// True if each element is finite.
bool all_finite(Stream& s, const float* x, std::int64_t n);

// --- counter-based random numbers

/// y[i] = stddev * N(0, 1). The value of index = first + i is number index % 4 of the four normal numbers
/// that Philox4x32-10 (Salmon et al. 2011) and Box-Muller give for key = seed and counter = (purpose, index /
/// 4): a pure function of the global index, the same bits in every layout, cut and machine.
void fill_normal(Stream& s, float* y, std::int64_t n, std::uint64_t seed, std::uint64_t purpose,
                 std::uint64_t first, float stddev);
void fill(Stream& s, float value, float* y, std::int64_t n);

/// Four words of Philox4x32-10 of a counter, for other uses on the host (the sample order).
struct PhiloxWords {
  std::uint32_t w[4];
};
PhiloxWords philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low);

}  // namespace shardwright::kernels
