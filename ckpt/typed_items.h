// What to save and where to load, over a program's own arrays: data type and size come from the array.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/names.h"
#include "ckpt/source.h"

namespace shardwright::ckpt {

/// The data type that holds a C++ type. bf16 and f16 have none here: give them by SaveItem and LoadItem.
template <class T>
consteval DType dtype_of() {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "no data type of the format holds it");
  if constexpr (std::same_as<T, bool>) {
    static_assert(sizeof(bool) == 1);
    return DType::boolean;
  } else if constexpr (std::floating_point<T>) {
    return sizeof(T) == 4 ? DType::f32 : DType::f64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1   ? DType::i8
           : sizeof(T) == 2 ? DType::i16
           : sizeof(T) == 4 ? DType::i32
                            : DType::i64;
  } else {
    return sizeof(T) == 1   ? DType::u8
           : sizeof(T) == 2 ? DType::u16
           : sizeof(T) == 4 ? DType::u32
                            : DType::u64;
  }
}

/// Error(usage) unless an array of `values` elements is the memory of `box`.
void check_memory(const std::string& tensor, const std::string& kind, const Box& box, std::uint64_t values);

/// `box` of a tensor of shape `global_shape`, to be saved from `values`: dense, row-major, as many as the box
/// has elements (Error(usage) otherwise, or for names that cannot be saved). Nothing is copied yet: they must
/// stay unchanged until the save has begun (start() has returned).
template <std::ranges::contiguous_range Values>
SaveItem save_item(std::string tensor, std::string kind, const Dims& global_shape, const Box& box,
                   const Values& values) {
  using T = std::ranges::range_value_t<Values>;
  check_names(tensor, kind);
  check_memory(tensor, kind, box, std::ranges::size(values));
  return {std::move(tensor),
          std::move(kind),
          dtype_of<T>(),
          global_shape,
          box,
          {},
          std::make_shared<HostSource>(std::ranges::data(values), box, sizeof(T))};
}

/// `box` of a tensor of shape `global_shape`, to be loaded into `values`: as many as the box has elements
/// (Error(usage) otherwise), valid until load() has returned.
template <std::ranges::contiguous_range Values>
LoadItem load_item(std::string tensor, std::string kind, const Dims& global_shape, const Box& box,
                   Values&& values) {
  using T = std::ranges::range_value_t<Values>;
  check_memory(tensor, kind, box, std::ranges::size(values));
  return {std::move(tensor),
          std::move(kind),
          dtype_of<T>(),
          global_shape,
          box,
          reinterpret_cast<std::byte*>(std::ranges::data(values))};
}

}  // namespace shardwright::ckpt
