// Vectors of 16-bit elements for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/unit/kernels/float64_gradient.h"

namespace shardwright::kernels {

class SixteenBits {
 public:
  SixteenBits(ElementType type, const Floats& values) : type_(type), bits_(values.size()) {
    Stream s(DeviceKind::cpu);
    convert(s, values.data(), *this, std::ssize(values));
  }
  operator Elements() { return {bits_.data(), type_}; }
  operator ConstElements() const { return {bits_.data(), type_}; }
  Elements operator+(std::int64_t n) { return Elements(*this) + n; }
  Floats floats() const {
    Stream s(DeviceKind::cpu);
    Floats values(bits_.size());
    convert(s, *this, values.data(), std::ssize(values));
    return values;
  }
  bool operator==(const SixteenBits&) const = default;

 private:
  ElementType type_;
  std::vector<std::uint16_t> bits_;
};

/// Relative error of rounding to nearest.
inline double rounding(ElementType type) { return type == ElementType::bf16 ? 0x1p-8 : 0x1p-11; }

inline std::string type_name(const testing::TestParamInfo<ElementType>& info) {
  return info.param == ElementType::bf16 ? "bf16" : "f16";
}

}  // namespace shardwright::kernels
