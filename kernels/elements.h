// Element types of tensors in device memory, and pointers that know theirs. Operations that work in 16 bits
// take these; all others take float*.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

namespace shardwright::kernels {

/// bf16 is the upper half of an fp32 (8 bits of exponent, 7 of fraction), f16 is IEEE 754 binary16 (5 and
/// 10).
enum class ElementType : std::uint8_t { f32, bf16, f16 };

/// Bytes of an element.
constexpr std::size_t element_size(ElementType type) { return type == ElementType::f32 ? 4 : 2; }

/// A pointer to elements of a type; what it points to is not owned. A float* is one to fp32.
struct Elements {
  Elements() = default;
  Elements(void* elements, ElementType of) : data(elements), type(of) {}
  Elements(float* elements) : data(elements) {}

  /// The memory as fp32, which it must be.
  float* f32() const {
    assert(type == ElementType::f32);
    return static_cast<float*>(data);
  }
  /// `count` elements further.
  Elements operator+(std::int64_t count) const {
    if (data == nullptr) return *this;
    return {static_cast<std::byte*>(data) + count * static_cast<std::int64_t>(element_size(type)), type};
  }
  bool operator==(const Elements&) const = default;

  void* data = nullptr;
  ElementType type = ElementType::f32;
};

/// The same, for elements that are only read.
struct ConstElements {
  ConstElements() = default;
  ConstElements(const void* elements, ElementType of) : data(elements), type(of) {}
  ConstElements(const float* elements) : data(elements) {}
  ConstElements(float* elements) : data(elements) {}
  ConstElements(const Elements& elements) : data(elements.data), type(elements.type) {}
  ConstElements(std::nullptr_t) {}

  const float* f32() const {
    assert(type == ElementType::f32);
    return static_cast<const float*>(data);
  }
  ConstElements operator+(std::int64_t count) const {
    if (data == nullptr) return *this;
    return {static_cast<const std::byte*>(data) + count * static_cast<std::int64_t>(element_size(type)),
            type};
  }
  bool operator==(const ConstElements&) const = default;

  const void* data = nullptr;
  ElementType type = ElementType::f32;
};

}  // namespace shardwright::kernels
