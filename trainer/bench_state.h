// State to measure with: it compresses as that of a model in training does.
#pragma once

#include <array>
#include <cstdint>

#include "ckpt/source.h"
#include "reshard/model_spec.h"

namespace shardwright::trainer {

inline constexpr std::array<const char*, 3> kStateKinds{reshard::kParam, reshard::kExpAvg,
                                                        reshard::kExpAvgSq};

/// `count` values of the state kStateKinds[kind] of tensor number `tensor`, from element `first` on: weights
/// and first moments normal at their usual scales, second moments squares. A pure function of the element.
void fill_state(float* to, std::uint64_t count, std::uint64_t tensor, std::size_t kind, std::uint64_t first);

/// These values of a whole tensor (fp32, row-major), made where they are read. Thread-safe.
class StateSource : public ckpt::Source {
 public:
  StateSource(ckpt::Dims global_shape, std::uint64_t tensor, std::size_t kind)
      : shape_(global_shape), tensor_(tensor), kind_(kind) {}
  void read(const ckpt::Box& region, std::byte* dst) const override;

 private:
  ckpt::Dims shape_;
  std::uint64_t tensor_;
  std::size_t kind_;
};

}  // namespace shardwright::trainer
