// Boxes: half-open ranges of global element coordinates. All placement, saving, loading and resharding is
// arithmetic on boxes of global tensors; memory behind a box is dense and row-major.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace shardwright::ckpt {

inline constexpr std::size_t kMaxDims = 8;

/// Up to eight extents or coordinates, stored inline (plans hold millions of them). A scalar has none.
class Dims {
 public:
  constexpr Dims() = default;
  Dims(std::initializer_list<std::uint64_t> values) {
    for (std::uint64_t v : values) push_back(v);
  }
  /// `count` values, all equal to `value`.
  static Dims filled(std::size_t count, std::uint64_t value) {
    Dims d;
    for (std::size_t i = 0; i < count; ++i) d.push_back(value);
    return d;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::uint64_t operator[](std::size_t i) const { return values_[i]; }
  std::uint64_t& operator[](std::size_t i) { return values_[i]; }
  const std::uint64_t* begin() const { return values_.data(); }
  const std::uint64_t* end() const { return values_.data() + size_; }
  void push_back(std::uint64_t value) {
    assert(size_ < kMaxDims);
    values_[size_++] = value;
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (a.values_[i] != b.values_[i]) return false;
    return true;
  }

 private:
  std::array<std::uint64_t, kMaxDims> values_{};
  std::uint8_t size_ = 0;
};

/// Product of the extents; 1 for a scalar. Callers that read shapes from files check for overflow there.
std::uint64_t element_count(const Dims& shape);

/// The same, or nothing where the product does not fit 64 bits: for shapes that come from a file.
std::optional<std::uint64_t> checked_element_count(const Dims& shape);

/// "[3, 64]"; "[]" for a scalar.
std::string to_string(const Dims& dims);

/// The elements c with offset[d] <= c[d] < offset[d] + shape[d] for each dimension d.
struct Box {
  Dims offset;
  Dims shape;

  std::uint64_t elements() const { return element_count(shape); }
  bool empty() const { return elements() == 0; }
  std::uint64_t end(std::size_t d) const { return offset[d] + shape[d]; }
  friend bool operator==(const Box&, const Box&) = default;

  /// The box of a whole tensor.
  static Box whole(const Dims& global_shape) { return {Dims::filled(global_shape.size(), 0), global_shape}; }
};

/// "[0:3, 8:16]".
std::string to_string(const Box& box);

/// The common part, or nothing where the boxes share no element. Both must have the same number of
/// dimensions.
std::optional<Box> intersect(const Box& a, const Box& b);

/// True if each element of `inner` is in `outer`; an empty `inner` is contained in everything.
bool contains(const Box& outer, const Box& inner);

/// How many elements of `outer`'s dense memory come before those of `inner` (contained in it, not empty), if
/// they lie in it in one piece.
std::optional<std::uint64_t> dense_start(const Box& outer, const Box& inner);

/// Copies the elements of `region` (contained in both boxes) from the dense memory of `src_box` to the dense
/// memory of `dst_box`. Longest contiguous runs are copied at once. Thread-safe for disjoint destinations.
void copy_region(const std::byte* src, const Box& src_box, std::byte* dst, const Box& dst_box,
                 const Box& region, std::size_t element_size);

}  // namespace shardwright::ckpt
