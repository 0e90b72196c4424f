// Causal attention by strips: a strip is all scores of a few queries of one head, so the softmax is exact in
// one pass and memory does not grow with the square of the positions. Strips to the right of the diagonal are
// never computed. Heads of 16-bit elements are widened when a thread takes them, keys and values once.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

constexpr std::int64_t kQueries = 64;  // rows of a strip

// Matrix product of one strip. Inside a parallel region oneDNN uses the calling thread alone.
[[nodiscard]] bool gemm(char transpose_a, char transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                        float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                        float beta, float* c, std::int64_t ldc) {
  return dnnl_sgemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) == dnnl_success;
}

// Takes slope * distance from the scores of queries first .. first + rows - 1, as far as they see keys.
SHARDWRIGHT_CLONES void subtract_distances(float slope, float* strip, std::int64_t rows, std::int64_t first,
                                           std::int64_t keys) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const row = strip + r * keys;
    const auto query = static_cast<std::int32_t>(first + r);  // vectors of 64-bit integers convert slowly
#pragma omp simd
    for (std::int32_t i = 0; i <= query; ++i) row[i] -= slope * static_cast<float>(query - i);
  }
}

// In: scores of queries first .. first + rows - 1 against keys 0 .. keys - 1. Out: exp(score - largest of the
// row), zero where the key comes after the query; the rows' sums inverted, and log-sum-exps.
SHARDWRIGHT_CLONES void softmax_strip(float* strip, std::int64_t rows, std::int64_t first, std::int64_t keys,
                                      float* inverse_sum, float* lse) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const row = strip + r * keys;
    const std::int64_t seen = first + r + 1;
    float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
    for (std::int64_t i = 0; i < seen; ++i) largest = row[i] > largest ? row[i] : largest;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < seen; ++i) {
      row[i] = cpu::exp_approximate(row[i] - largest);
      sum += row[i];
    }
    for (std::int64_t i = seen; i < keys; ++i) row[i] = 0.0f;
    inverse_sum[r] = 1.0f / sum;
    lse[r] = largest + std::log(sum);
  }
}

SHARDWRIGHT_CLONES void scale_rows(float* y, std::int64_t stride, const float* factors, std::int64_t rows,
                                   std::int64_t n) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const row = y + r * stride;
    const float factor = factors[r];
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) row[i] *= factor;
  }
}

// Dropout's factors of queries first .. first + rows - 1 of a head, as far as they see keys.
void strip_factors(const AttentionDropout& d, std::int64_t sequence, std::int64_t head,
                   std::int64_t positions, std::int64_t first, std::int64_t rows, std::int64_t keys,
                   float* factors) {
  const auto wide = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t plane =
      (d.first_sequence + wide(sequence)) * wide(d.all_heads) + wide(d.first_head + head);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint64_t row = plane * wide(positions) + wide(first + r);
    cpu::dropout_factors(d.dropout, factors + r * keys, first + r + 1, row * wide(positions));
  }
}

SHARDWRIGHT_CLONES void multiply_strip(const float* __restrict factors, float* __restrict strip,
                                       std::int64_t rows, std::int64_t first, std::int64_t keys) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* __restrict const from = factors + r * keys;
    float* __restrict const row = strip + r * keys;
    const std::int64_t seen = first + r + 1;
#pragma omp simd
    for (std::int64_t i = 0; i < seen; ++i) row[i] *= from[i];
  }
}

// In: scores and the gradient of the probabilities. Out: probabilities in scores, the scores' gradient in
// gradient.
SHARDWRIGHT_CLONES void softmax_strip_backward(float* __restrict scores, float* __restrict gradient,
                                               std::int64_t rows, std::int64_t first, std::int64_t keys,
                                               const float* lse, const float* __restrict dout,
                                               const float* __restrict out, std::int64_t stride,
                                               std::int64_t head_size) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* __restrict const p = scores + r * keys;
    float* __restrict const g = gradient + r * keys;
    const float* __restrict const a = dout + r * stride;
    const float* __restrict const b = out + r * stride;
    // Sum over keys of p * dp, which equals the product of out and its gradient, dropout or not.
    float delta = 0;
#pragma omp simd reduction(+ : delta)
    for (std::int64_t i = 0; i < head_size; ++i) delta += a[i] * b[i];
    const std::int64_t seen = first + r + 1;
    const float l = lse[r];
#pragma omp simd
    for (std::int64_t i = 0; i < seen; ++i) {
      p[i] = cpu::exp_approximate(p[i] - l);
      g[i] = p[i] * (g[i] - delta);
    }
    for (std::int64_t i = seen; i < keys; ++i) {
      p[i] = 0.0f;
      g[i] = 0.0f;
    }
  }
}

/// Calls body(unit, scratch) for each unit, one thread each, with `floats` of scratch memory per thread.
/// Throws if any call returned false (oneDNN out of memory). Units write apart, so which thread takes one
/// does not show in the result.
template <class Body>
void for_units(std::int64_t units, std::int64_t floats, const Body& body) {
  if (units <= 0) return;
  if (omp_get_max_threads() != threads()) omp_set_num_threads(threads());
  const int team = static_cast<int>(std::min<std::int64_t>(threads(), units));
  const std::int64_t padded = (floats + 15) / 16 * 16;
  static thread_local Memory memory;
  const std::size_t bytes = static_cast<std::size_t>(padded * team) * sizeof(float);
  if (memory.bytes() < bytes) memory = Memory(DeviceKind::cpu, bytes, MemoryUse::scratch);
  float* const scratch = memory.floats();
  std::atomic<bool> good{true};
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (std::int64_t unit = 0; unit < units; ++unit) {
    if (!body(unit, scratch + omp_get_thread_num() * padded)) good.store(false, std::memory_order_relaxed);
  }
  if (!good.load()) throw std::runtime_error("attention: oneDNN could not multiply a strip (out of memory?)");
}

/// Rows of a head as fp32.
struct Rows {
  const float* data;
  std::int64_t stride;
};

// `rows` rows of n elements: where they are if that is fp32, else converted into `room`.
Rows read_rows(ConstElements x, std::int64_t stride, std::int64_t rows, std::int64_t n, float* room) {
  if (x.type == ElementType::f32) return {x.f32(), stride};
  cpu::widen_rows(x, stride, room, n, rows, n);
  return {room, n};
}

/// Rows that are made in fp32, in their own place or in `room`; finish() brings them to their place.
class MadeRows {
 public:
  MadeRows(Elements place, std::int64_t place_stride, std::int64_t n, float* room)
      : data(place.type == ElementType::f32 ? place.f32() : room),
        stride(place.type == ElementType::f32 ? place_stride : n),
        place_(place),
        place_stride_(place_stride),
        n_(n) {}
  void finish(std::int64_t rows) const {
    if (place_.type != ElementType::f32) cpu::narrow_rows(data, stride, place_, place_stride_, rows, n_);
  }

  float* const data;
  const std::int64_t stride;

 private:
  Elements place_;
  std::int64_t place_stride_, n_;
};

}  // namespace

void attention_forward(Stream&, ConstElements q, ConstElements k, ConstElements v, std::int64_t stride,
                       Elements out, float* lse, std::int64_t batch, std::int64_t positions,
                       std::int64_t heads, std::int64_t kv_heads, std::int64_t head_size, float softmax_scale,
                       const AttentionDropout* dropout, const float* slopes) {
  if (positions <= 0) return;
  assert(k.type == q.type && v.type == q.type && out.type == q.type);
  const std::int64_t out_stride = heads * head_size, strip_floats = kQueries * positions;
  const bool converted = q.type != ElementType::f32;
  const std::int64_t row_floats = converted ? positions * head_size : 0;
  const std::int64_t strip_rows = converted ? kQueries * head_size : 0;
  const std::int64_t floats =
      kQueries + 2 * row_floats + 2 * strip_rows + (dropout != nullptr ? 2 : 1) * strip_floats;
  for_units(batch * heads, floats, [&](std::int64_t unit, float* scratch) {
    const std::int64_t b = unit / heads, h = unit % heads, shared = h / (heads / kv_heads);
    const ConstElements q_head = q + (b * positions * stride + h * head_size);
    const Elements out_head = out + (b * positions * out_stride + h * head_size);
    float* const inverse_sum = scratch;
    float* const key_room = inverse_sum + kQueries;
    float* const value_room = key_room + row_floats;
    float* const query_room = value_room + row_floats;
    float* const out_room = query_room + strip_rows;
    float* const strip = out_room + strip_rows;
    float* const factors = strip + strip_floats;
    const std::int64_t at = b * positions * stride + shared * head_size;
    const Rows keys_of_head = read_rows(k + at, stride, positions, head_size, key_room);
    const Rows values = read_rows(v + at, stride, positions, head_size, value_room);
    bool good = true;
    for (std::int64_t first = 0; first < positions; first += kQueries) {
      const std::int64_t rows = std::min(kQueries, positions - first), keys = first + rows;
      const Rows queries = read_rows(q_head + first * stride, stride, rows, head_size, query_room);
      const MadeRows made(out_head + first * out_stride, out_stride, head_size, out_room);
      good &= gemm('N', 'T', rows, keys, head_size, softmax_scale, queries.data, queries.stride,
                   keys_of_head.data, keys_of_head.stride, 0.0f, strip, keys);
      if (slopes != nullptr) subtract_distances(slopes[h], strip, rows, first, keys);
      softmax_strip(strip, rows, first, keys, inverse_sum, lse + unit * positions + first);
      if (dropout != nullptr) {
        strip_factors(*dropout, b, h, positions, first, rows, keys, factors);
        multiply_strip(factors, strip, rows, first, keys);
      }
      good &= gemm('N', 'N', rows, head_size, keys, 1.0f, strip, keys, values.data, values.stride, 0.0f,
                   made.data, made.stride);
      scale_rows(made.data, made.stride, inverse_sum, rows, head_size);
      made.finish(rows);
    }
    return good;
  });
}

void attention_backward(Stream&, ConstElements dout, ConstElements q, ConstElements k, ConstElements v,
                        std::int64_t stride, ConstElements out, const float* lse, Elements dq, Elements dk,
                        Elements dv, std::int64_t dstride, std::int64_t batch, std::int64_t positions,
                        std::int64_t heads, std::int64_t kv_heads, std::int64_t head_size,
                        float softmax_scale, const AttentionDropout* dropout, const float* slopes) {
  if (positions <= 0 || kv_heads <= 0) return;
  assert(k.type == q.type && v.type == q.type && out.type == q.type && dout.type == q.type);
  assert(dq.type == q.type && dk.type == q.type && dv.type == q.type);
  const std::int64_t out_stride = heads * head_size, group = heads / kv_heads;
  const std::int64_t strip_floats = kQueries * positions;
  const bool converted = q.type != ElementType::f32;
  const std::int64_t row_floats = converted ? positions * head_size : 0;
  const std::int64_t strip_rows = converted ? kQueries * head_size : 0;
  const std::int64_t floats = 4 * row_floats + 4 * strip_rows + (dropout != nullptr ? 3 : 2) * strip_floats;
  // A unit is a key head with all the query heads that use it, so that its dk and dv have one writer.
  for_units(batch * kv_heads, floats, [&](std::int64_t unit, float* scratch) {
    const std::int64_t b = unit / kv_heads, shared = unit % kv_heads;
    const std::int64_t in = b * positions * stride, gradient = b * positions * dstride;
    float* const rooms = scratch + 4 * row_floats;  // of a strip's rows
    float* const scores = rooms + 4 * strip_rows;
    float* const dscores = scores + strip_floats;
    float* const factors = dscores + strip_floats;
    const Rows kh = read_rows(k + (in + shared * head_size), stride, positions, head_size, scratch);
    const Rows vh =
        read_rows(v + (in + shared * head_size), stride, positions, head_size, scratch + row_floats);
    const MadeRows dkh(dk + (gradient + shared * head_size), dstride, head_size, scratch + 2 * row_floats);
    const MadeRows dvh(dv + (gradient + shared * head_size), dstride, head_size, scratch + 3 * row_floats);
    bool good = true;
    float beta = 0.0f;
    for (std::int64_t h = shared * group; h < (shared + 1) * group; ++h) {
      // From the last strip, which meets every key: the first product into dk and dv writes all of them.
      for (std::int64_t first = (positions - 1) / kQueries * kQueries; first >= 0; first -= kQueries) {
        const std::int64_t rows = std::min(kQueries, positions - first), keys = first + rows;
        const std::int64_t out_at = (b * positions + first) * out_stride + h * head_size;
        const Rows qs = read_rows(q + (in + h * head_size + first * stride), stride, rows, head_size, rooms);
        const Rows dos = read_rows(dout + out_at, out_stride, rows, head_size, rooms + strip_rows);
        const Rows os = read_rows(out + out_at, out_stride, rows, head_size, rooms + 2 * strip_rows);
        const MadeRows dqs(dq + (gradient + h * head_size + first * dstride), dstride, head_size,
                           rooms + 3 * strip_rows);
        good &= gemm('N', 'T', rows, keys, head_size, softmax_scale, qs.data, qs.stride, kh.data, kh.stride,
                     0.0f, scores, keys);
        if (slopes != nullptr) subtract_distances(slopes[h], scores, rows, first, keys);
        good &= gemm('N', 'T', rows, keys, head_size, 1.0f, dos.data, dos.stride, vh.data, vh.stride, 0.0f,
                     dscores, keys);
        if (dropout != nullptr) {
          strip_factors(*dropout, b, h, positions, first, rows, keys, factors);
          multiply_strip(factors, dscores, rows, first, keys);
        }
        softmax_strip_backward(scores, dscores, rows, first, keys, lse + (b * heads + h) * positions + first,
                               dos.data, os.data, os.stride, head_size);
        if (dropout != nullptr) multiply_strip(factors, scores, rows, first, keys);
        good &= gemm('T', 'N', keys, head_size, rows, 1.0f, scores, keys, dos.data, dos.stride, beta,
                     dvh.data, dvh.stride);
        good &= gemm('T', 'N', keys, head_size, rows, softmax_scale, dscores, keys, qs.data, qs.stride, beta,
                     dkh.data, dkh.stride);
        good &= gemm('N', 'N', rows, head_size, keys, softmax_scale, dscores, keys, kh.data, kh.stride, 0.0f,
                     dqs.data, dqs.stride);
        dqs.finish(rows);
        beta = 1.0f;
      }
    }
    dkh.finish(positions);
    dvh.finish(positions);
    return good;
  });
}

}  // namespace shardwright::kernels
