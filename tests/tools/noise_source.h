// Values with the entropy of trained weights and moments: what compresses by about a fifth, as they do.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "ckpt/source.h"
#include "reshard/placement.h"

namespace shardwright {

/// A function of tensor, kind and the position of a region's first element; whoever cuts a tensor otherwise
/// gets other values.
class NoiseSource : public ckpt::Source {
 public:
  NoiseSource(const std::string& tensor, std::string kind, ckpt::Dims global_shape)
      : seed_(std::hash<std::string>{}(tensor + kind)), kind_(std::move(kind)), global_shape_(global_shape) {}
  void read(const ckpt::Box& region, std::byte* dst) const override {
    std::uint64_t first = 0;
    for (std::size_t d = 0; d < global_shape_.size(); ++d)
      first = first * global_shape_[d] + region.offset[d];
    std::uint64_t state = seed_ ^ first * 0x9E3779B97F4A7C15ull;
    const std::uint64_t count = region.elements();
    for (std::uint64_t i = 0; i < count; ++i) {
      state += 0x9E3779B97F4A7C15ull;
      std::uint64_t z = state;
      z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
      z = (z ^ z >> 27) * 0x94D049BB133111EBull;
      z ^= z >> 31;
      // The sum of four even numbers is nearly normal; what float has beyond its 18 bits is filled up.
      const auto sum = static_cast<float>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
      const float normal = (sum - 131070.0f) / 37837.0f;
      const float rest = static_cast<float>(z >> 40 & 0xfff) * 1e-8f;
      const float value = kind_ == reshard::kParam    ? normal * 0.02f + rest
                          : kind_ == reshard::kExpAvg ? normal * 3e-4f + rest * 1e-3f
                                                      : normal * normal * 1e-7f + rest * 1e-6f;
      std::memcpy(dst + i * sizeof value, &value, sizeof value);
    }
  }

 private:
  std::uint64_t seed_;
  std::string kind_;
  ckpt::Dims global_shape_;
};

}  // namespace shardwright
