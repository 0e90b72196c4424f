// Matrix products by oneDNN. A product's primitive (generated code and its plan) costs far more than a small
// product, so it is made once per shape and kept for the life of the process. Operands of 16 bits that the
// processor does not multiply are widened a tile at a time, so that what is widened stays in cache and takes
// no memory that grows with the matrices.
#include <omp.h>

#include <algorithm>
#include <cassert>
#include <compare>
#include <cstddef>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

struct Product {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k, lda, ldb, ldc;
  float alpha, beta;
  bool bias;
  ElementType operands, result;
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

dnnl::memory::data_type data_type(ElementType type) {
  switch (type) {
    case ElementType::bf16:
      return dnnl::memory::data_type::bf16;
    case ElementType::f16:
      return dnnl::memory::data_type::f16;
    case ElementType::f32:
      break;
  }
  return dnnl::memory::data_type::f32;
}

Compiled compile(const Product& p) {
  using dims = dnnl::memory::dims;
  const auto operands = data_type(p.operands);
  Compiled made;
  made.a = {dims{p.m, p.k}, operands, p.transpose_a ? dims{1, p.lda} : dims{p.lda, 1}};
  made.b = {dims{p.k, p.n}, operands, p.transpose_b ? dims{1, p.ldb} : dims{p.ldb, 1}};
  made.c = {dims{p.m, p.n}, data_type(p.result), dims{p.ldc, 1}};
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
  if (p.bias) made.bias = {dims{1, p.n}, dnnl::memory::data_type::f32, dims{p.n, 1}};
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

/// At least `bytes` of a memory that is used again and again.
void* room(Memory& memory, std::size_t bytes) {
  if (memory.bytes() < bytes) memory = Memory(DeviceKind::cpu, bytes, MemoryUse::scratch);
  return memory.data();
}

// c = beta * c, for products over nothing.
void scale_matrix(float beta, Elements c, std::int64_t m, std::int64_t n, std::int64_t ldc) {
  for (std::int64_t r = 0; r < m; ++r) {
    // The bytes of zero are zeros in each type.
    if (beta == 0.0f) {
      std::memset((c + r * ldc).data, 0, static_cast<std::size_t>(n) * element_size(c.type));
    } else {
      for (std::int64_t i = 0; i < n; ++i) c.f32()[r * ldc + i] *= beta;
    }
  }
}

/// The types are p's.
void multiply(const Product& p, const void* a, const void* b, const float* bias, void* c) {
  // The setting belongs to the calling thread, and this one may not be the one that called set_threads.
  if (omp_get_max_threads() != p.threads) omp_set_num_threads(p.threads);
  try {
    const Compiled& made = compiled(p);
    const dnnl::engine& engine = cpu_engine();
    static thread_local dnnl::stream stream(engine);
    static thread_local Memory scratch;
    // oneDNN takes inputs as pointers to non-const; it does not write them.
    const auto in = [&](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, engine, const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, in(made.a, a)},
        {DNNL_ARG_WEIGHTS, in(made.b, b)},
        {DNNL_ARG_DST, dnnl::memory(made.c, engine, c)},
        {DNNL_ARG_SCRATCHPAD, dnnl::memory(made.scratch, engine, room(scratch, made.scratch.get_size()))},
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

// A tile of an operand has about this many elements (4 MiB in fp32), of the result at most as many.
constexpr std::int64_t kTileElements = std::int64_t{1} << 20;
constexpr std::int64_t kTileMost = 1024, kTileLeast = 64;

// Rows or columns of a tile of an operand whose other dimension is k.
std::int64_t tile_size(std::int64_t k) {
  return std::clamp(kTileElements / k / kTileLeast * kTileLeast, kTileLeast, kTileMost);
}

// Row stride of a converted tile n wide: not a power of two, where a column would fall on few lines of a
// cache.
std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16 + 16; }

// y(rows, n) = x(rows, n), each with a row stride, of different types.
void convert_rows(ConstElements x, std::int64_t x_stride, Elements y, std::int64_t y_stride,
                  std::int64_t rows, std::int64_t n) {
  cpu::for_ranges(rows, cpu::row_grain(n), [&](std::int64_t begin, std::int64_t end) {
    const ConstElements from = x + begin * x_stride;
    const Elements to = y + begin * y_stride;
    if (y.type == ElementType::f32) {
      cpu::widen_rows(from, x_stride, to.f32(), y_stride, end - begin, n);
    } else {
      cpu::narrow_rows(from.f32(), x_stride, to, y_stride, end - begin, n);
    }
  });
}

/// An operand by tiles along the dimension of the result, in the type that is multiplied: where it lies if it
/// has that type, else converted.
class Operand {
 public:
  /// `rows_are_k`: the matrix in memory is (k, size), else (size, k).
  Operand(ConstElements matrix, std::int64_t ld, bool rows_are_k, std::int64_t k, ElementType type,
          Memory& memory)
      : matrix_(matrix), ld_(ld), rows_are_k_(rows_are_k), k_(k), type_(type), memory_(memory) {}

  /// [first, first + size). Valid until the next call.
  const void* tile(std::int64_t first, std::int64_t size) {
    const ConstElements from = matrix_ + (rows_are_k_ ? first : first * ld_);
    if (matrix_.type == type_) return from.data;
    const std::int64_t rows = rows_are_k_ ? k_ : size;
    const Elements to{room(memory_, static_cast<std::size_t>(rows * ld(size)) * element_size(type_)), type_};
    if (first == made_first_ && size == made_size_) return to.data;
    convert_rows(from, ld_, to, ld(size), rows, rows_are_k_ ? size : k_);
    made_first_ = first;
    made_size_ = size;
    return to.data;
  }
  /// Row stride of a tile of that size.
  std::int64_t ld(std::int64_t size) const {
    if (matrix_.type == type_) return ld_;
    return padded(rows_are_k_ ? size : k_);
  }

 private:
  ConstElements matrix_;
  std::int64_t ld_;
  bool rows_are_k_;
  std::int64_t k_;
  ElementType type_;
  Memory& memory_;
  std::int64_t made_first_ = -1, made_size_ = -1;
};

/// matmul with a bias (n) or null; nothing is empty.
void product(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
             ConstElements a, std::int64_t lda, ConstElements b, std::int64_t ldb, const float* bias,
             float beta, Elements c, std::int64_t ldc) {
  const ElementType narrow = a.type != ElementType::f32 ? a.type : b.type;
  assert((a.type == narrow || a.type == ElementType::f32) &&
         (b.type == narrow || b.type == ElementType::f32));
  assert(c.type == ElementType::f32 || beta == 0.0f);
  const ElementType type = multiplies_directly(narrow) ? narrow : ElementType::f32;
  const ElementType result = c.type == type ? type : ElementType::f32;
  if (a.type == type && b.type == type && c.type == result) {
    return multiply({transpose_a, transpose_b, m, n, k, lda, ldb, ldc, alpha, beta, bias != nullptr, type,
                     result, threads()},
                    a.data, b.data, bias, c.data);
  }
  static thread_local Memory a_room, b_room, c_room;
  Operand left(a, lda, transpose_a, k, type, a_room), right(b, ldb, !transpose_b, k, type, b_room);
  const std::int64_t tile = tile_size(k);
  for (std::int64_t column = 0; column < n; column += tile) {
    const std::int64_t columns = std::min(tile, n - column);
    const void* const b_tile = right.tile(column, columns);
    for (std::int64_t row = 0; row < m; row += tile) {
      const std::int64_t rows = std::min(tile, m - row);
      const Elements place = c + (row * ldc + column);
      const bool direct = c.type == result;
      void* const made =
          direct ? place.data : room(c_room, static_cast<std::size_t>(rows * columns) * sizeof(float));
      multiply({transpose_a, transpose_b, rows, columns, k, left.ld(rows), right.ld(columns),
                direct ? ldc : columns, alpha, beta, bias != nullptr, type, result, threads()},
               left.tile(row, rows), b_tile, bias == nullptr ? nullptr : bias + column, made);
      if (direct) continue;
      convert_rows(static_cast<const float*>(made), columns, place, ldc, rows, columns);
    }
  }
}

}  // namespace

bool multiplies_directly(ElementType type) {
  if (type == ElementType::f32) return true;
  // oneDNN 2.6 has no f16 products on CPUs, and refuses bf16 below AVX-512; without its bf16 instructions it
  // would be slower than fp32.
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool bf16 = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  return type == ElementType::bf16 && bf16;
}

void matmul(Stream&, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
            float alpha, ConstElements a, std::int64_t lda, ConstElements b, std::int64_t ldb, float beta,
            Elements c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0 || alpha == 0.0f) return scale_matrix(beta, c, m, n, ldc);
  product(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, nullptr, beta, c, ldc);
}

void linear_forward(Stream&, ConstElements x, ConstElements w, const float* bias, Elements y,
                    std::int64_t rows, std::int64_t in, std::int64_t out) {
  if (rows == 0 || out == 0) return;
  if (in == 0) throw std::runtime_error("linear: no input channels");
  product(false, true, rows, out, in, 1.0f, x, in, w, in, bias, 0.0f, y, out);
}

void linear_backward(Stream& s, ConstElements dy, ConstElements x, ConstElements w, Elements dx, float* dw,
                     float* dbias, std::int64_t rows, std::int64_t in, std::int64_t out) {
  if (dx.data != nullptr) matmul(s, false, false, rows, in, out, 1.0f, dy, out, w, in, 0.0f, dx, in);
  if (dw != nullptr) matmul(s, true, false, out, in, rows, 1.0f, dy, out, x, in, 1.0f, dw, in);
  if (dbias != nullptr) bias_backward(s, dy, dbias, rows, out);
}

}  // namespace shardwright::kernels
