// Matrix products by oneDNN. A product's primitive (generated code and its plan) costs far more than a small
// product, so it is made once per shape and kept for the life of the process.
#include <omp.h>

#include <compare>
#include <cstddef>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

struct Product {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k, lda, ldb, ldc;
  float alpha, beta;
  bool bias;
  int threads;  // oneDNN plans for the number of threads it meets when the primitive is made

  auto operator<=>(const Product&) const = default;
};

struct Compiled {
  dnnl::memory::desc a, b, bias, c, scratch;
  dnnl::matmul primitive;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

Compiled compile(const Product& p) {
  using dims = dnnl::memory::dims;
  const auto f32 = dnnl::memory::data_type::f32;
  Compiled made;
  made.a = {dims{p.m, p.k}, f32, p.transpose_a ? dims{1, p.lda} : dims{p.lda, 1}};
  made.b = {dims{p.k, p.n}, f32, p.transpose_b ? dims{1, p.ldb} : dims{p.ldb, 1}};
  made.c = {dims{p.m, p.n}, f32, dims{p.ldc, 1}};
  dnnl::primitive_attr attributes;
  // The library's own scratchpad belongs to the thread that made the primitive; ours are used from any
  // thread.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.alpha != 1.0f) attributes.set_output_scales(0, {p.alpha});
  if (p.beta != 0.0f) {
    dnnl::post_ops sum;
    sum.append_sum(p.beta);
    attributes.set_post_ops(sum);
  }
  if (p.bias) made.bias = {dims{1, p.n}, f32, dims{p.n, 1}};
  const dnnl::matmul::desc description = p.bias ? dnnl::matmul::desc(made.a, made.b, made.bias, made.c)
                                                : dnnl::matmul::desc(made.a, made.b, made.c);
  const dnnl::matmul::primitive_desc chosen(description, attributes, cpu_engine());
  made.scratch = chosen.scratchpad_desc();
  made.primitive = dnnl::matmul(chosen);
  return made;
}

/// The primitive of a product, made at its first use. Thread-safe.
const Compiled& compiled(const Product& p) {
  static std::shared_mutex mutex;
  static std::map<Product, Compiled> cache;  // node-based: references stay valid
  {
    const std::shared_lock lock(mutex);
    if (const auto found = cache.find(p); found != cache.end()) return found->second;
  }
  const std::unique_lock lock(mutex);
  if (const auto found = cache.find(p); found != cache.end()) return found->second;
  return cache.emplace(p, compile(p)).first->second;
}

/// This thread's scratch memory, of at least `bytes`.
void* scratch(std::size_t bytes) {
  static thread_local Memory memory;
  if (memory.bytes() < bytes) memory = Memory(DeviceKind::cpu, bytes);
  return memory.data();
}

// c = beta * c, for products over nothing.
void scale_matrix(float beta, float* c, std::int64_t m, std::int64_t n, std::int64_t ldc) {
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t i = 0; i < n; ++i) c[r * ldc + i] = beta == 0.0f ? 0.0f : beta * c[r * ldc + i];
  }
}

void multiply(const Product& p, const float* a, const float* b, const float* bias, float* c) {
  // The setting belongs to the calling thread, and this one may not be the one that called set_threads.
  if (omp_get_max_threads() != p.threads) omp_set_num_threads(p.threads);
  try {
    const Compiled& made = compiled(p);
    const dnnl::engine& engine = cpu_engine();
    static thread_local dnnl::stream stream(engine);
    // oneDNN takes inputs as pointers to non-const; it does not write them.
    const auto in = [&](const dnnl::memory::desc& desc, const float* data) {
      return dnnl::memory(desc, engine, const_cast<float*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, in(made.a, a)},
        {DNNL_ARG_WEIGHTS, in(made.b, b)},
        {DNNL_ARG_DST, dnnl::memory(made.c, engine, c)},
        {DNNL_ARG_SCRATCHPAD, dnnl::memory(made.scratch, engine, scratch(made.scratch.get_size()))},
    };
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, in(made.bias, bias));
    made.primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    throw std::runtime_error("matmul: oneDNN failed on (" + std::to_string(p.m) + ", " + std::to_string(p.k) +
                             ") x (" + std::to_string(p.k) + ", " + std::to_string(p.n) +
                             "): " + error.what());
  }
}

}  // namespace

void matmul(Stream&, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
            float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
            float* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0 || alpha == 0.0f) return scale_matrix(beta, c, m, n, ldc);
  multiply({transpose_a, transpose_b, m, n, k, lda, ldb, ldc, alpha, beta, false, threads()}, a, b, nullptr,
           c);
}

void linear_forward(Stream&, const float* x, const float* w, const float* bias, float* y, std::int64_t rows,
                    std::int64_t in, std::int64_t out) {
  if (rows == 0 || out == 0) return;
  if (in == 0) throw std::runtime_error("linear: no input channels");
  multiply({false, true, rows, out, in, in, in, out, 1.0f, 0.0f, bias != nullptr, threads()}, x, w, bias, y);
}

void linear_backward(Stream& s, const float* dy, const float* x, const float* w, float* dx, float* dw,
                     float* dbias, std::int64_t rows, std::int64_t in, std::int64_t out) {
  if (dx != nullptr) matmul(s, false, false, rows, in, out, 1.0f, dy, out, w, in, 0.0f, dx, in);
  if (dw != nullptr) matmul(s, true, false, out, in, rows, 1.0f, dy, out, x, in, 1.0f, dw, in);
  if (dbias != nullptr) bias_backward(s, dy, dbias, rows, out);
}

}  // namespace shardwright::kernels
