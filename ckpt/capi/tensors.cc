#include "ckpt/capi/tensors.h"

#include <fmt/format.h>

#include "ckpt/capi/last_error.h"
#include "ckpt/capi/shardwright.h"

namespace shardwright::capi {

using ckpt::DType;

// The numbers of the header are those of the enumeration, for good.
static_assert(
    ckpt::kDTypes == 13 && static_cast<int>(DType::f32) == SHARDWRIGHT_F32 &&
    static_cast<int>(DType::bf16) == SHARDWRIGHT_BF16 && static_cast<int>(DType::f16) == SHARDWRIGHT_F16 &&
    static_cast<int>(DType::f64) == SHARDWRIGHT_F64 && static_cast<int>(DType::i8) == SHARDWRIGHT_I8 &&
    static_cast<int>(DType::u8) == SHARDWRIGHT_U8 && static_cast<int>(DType::i16) == SHARDWRIGHT_I16 &&
    static_cast<int>(DType::u16) == SHARDWRIGHT_U16 && static_cast<int>(DType::i32) == SHARDWRIGHT_I32 &&
    static_cast<int>(DType::u32) == SHARDWRIGHT_U32 && static_cast<int>(DType::i64) == SHARDWRIGHT_I64 &&
    static_cast<int>(DType::u64) == SHARDWRIGHT_U64 && static_cast<int>(DType::boolean) == SHARDWRIGHT_BOOL);
static_assert(ckpt::kMaxDims == SHARDWRIGHT_MAX_DIMS);

DType dtype_of(int number) {
  if (number < 0 || number >= static_cast<int>(ckpt::kDTypes))
    refuse(fmt::format("dtype: {} is none; SHARDWRIGHT_F32 ({}) to SHARDWRIGHT_BOOL ({}) are", number,
                       static_cast<int>(SHARDWRIGHT_F32), static_cast<int>(SHARDWRIGHT_BOOL)));
  return static_cast<DType>(number);
}

ckpt::Dims dims_of(std::uint32_t count, const std::uint64_t* values, const char* argument) {
  if (count > ckpt::kMaxDims)
    refuse(fmt::format("ndim: {}; at most {} dimensions are right", count, ckpt::kMaxDims));
  if (count > 0) need(values, argument);
  ckpt::Dims dims;
  for (std::uint32_t d = 0; d < count; ++d) dims.push_back(values[d]);
  return dims;
}

void check_box(const std::string& thing, const ckpt::Box& box, const ckpt::Dims& global_shape, DType dtype,
               const void* data, std::size_t bytes) {
  for (std::size_t d = 0; d < global_shape.size(); ++d)
    if (box.shape[d] > global_shape[d] || box.offset[d] > global_shape[d] - box.shape[d])
      refuse(fmt::format("{}: {} elements from {} on along dimension {} are not inside the shape {}", thing,
                         box.shape[d], box.offset[d], d, to_string(global_shape)));
  const auto elements = ckpt::checked_element_count(box.shape);
  std::uint64_t needed = 0;
  if (!elements || __builtin_mul_overflow(*elements, size_of(dtype), &needed))
    refuse(fmt::format("{}: {} has more bytes than 64 bits count", thing, to_string(box.shape)));
  if (needed != bytes)
    refuse(fmt::format("{}: {} bytes of memory for {} elements of {}; {} are right", thing, bytes, *elements,
                       name(dtype), needed));
  if (needed > 0) need(data, thing.c_str());
}

std::string& document_of(ckpt::Description& description, int number) {
  switch (number) {
    case SHARDWRIGHT_TRAINING:
      return description.training;
    case SHARDWRIGHT_MODEL:
      return description.model;
    case SHARDWRIGHT_CONFIG:
      return description.config;
    case SHARDWRIGHT_LAYOUT:
      return description.layout;
    default:
      refuse(fmt::format("document: {} is none; SHARDWRIGHT_TRAINING ({}) to SHARDWRIGHT_LAYOUT ({}) are",
                         number, static_cast<int>(SHARDWRIGHT_TRAINING),
                         static_cast<int>(SHARDWRIGHT_LAYOUT)));
  }
}

}  // namespace shardwright::capi
