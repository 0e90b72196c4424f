#include "ckpt/dtype.h"

#include <array>
#include <string>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

struct Entry {
  std::string_view name;
  std::size_t size;
};

// In the order of the enumeration.
constexpr std::array<Entry, kDTypes> kTable = {{{"f32", 4},
                                                {"bf16", 2},
                                                {"f16", 2},
                                                {"f64", 8},
                                                {"i8", 1},
                                                {"u8", 1},
                                                {"i16", 2},
                                                {"u16", 2},
                                                {"i32", 4},
                                                {"u32", 4},
                                                {"i64", 8},
                                                {"u64", 8},
                                                {"bool", 1}}};

}  // namespace

std::size_t size_of(DType type) { return kTable.at(static_cast<std::size_t>(type)).size; }

std::string_view name(DType type) { return kTable.at(static_cast<std::size_t>(type)).name; }

DType parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < kTable.size(); ++i)
    if (kTable[i].name == text) return static_cast<DType>(i);
  throw Error(ErrorCode::damaged,
              "dtype '" + std::string(text) +
                  "': unknown; known are f32 bf16 f16 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool");
}

}  // namespace shardwright::ckpt
