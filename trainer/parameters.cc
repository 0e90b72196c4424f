#include "trainer/parameters.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "kernels/ops.h"

namespace shardwright::trainer {
namespace {

using reshard::Role;

// The weights' standard deviation of GPT-2 (Radford et al. 2019).
constexpr double kInitStddev = 0.02;

std::uint64_t purpose(const std::string& name) { return ckpt::xxh3_64(std::as_bytes(std::span(name))); }

bool is_norm_weight(Role role) {
  return role == Role::embed_norm || role == Role::input_norm || role == Role::post_norm ||
         role == Role::final_norm;
}

bool is_bias(Role role) {
  switch (role) {
    case Role::embed_norm_bias:
    case Role::input_norm_bias:
    case Role::q_bias:
    case Role::k_bias:
    case Role::v_bias:
    case Role::o_bias:
    case Role::post_norm_bias:
    case Role::up_bias:
    case Role::down_bias:
    case Role::final_norm_bias:
      return true;
    default:
      return false;
  }
}

// Draws `box` of a tensor by global element index, run by run of what is contiguous in the global tensor.
void draw(kernels::Stream& stream, float* values, const ckpt::Box& box, const ckpt::Dims& global,
          std::uint64_t seed, std::uint64_t key, float stddev) {
  const std::size_t dims = global.size();
  const bool full_rows = dims < 2 || box.shape[1] == global[1];
  const std::uint64_t width = dims < 2 ? 1 : global[1];
  const std::uint64_t runs = full_rows ? 1 : box.shape[0];
  const std::uint64_t length = box.elements() / runs;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const std::uint64_t first = (box.offset[0] + run) * width + (full_rows ? 0 : box.offset[1]);
    kernels::fill_normal(stream, values + run * length, static_cast<std::int64_t>(length), seed, key, first,
                         stddev);
  }
}

}  // namespace

kernels::ElementType element_type_named(const std::string& dtype) {
  if (dtype == "fp32") return kernels::ElementType::f32;
  if (dtype == "bf16") return kernels::ElementType::bf16;
  if (dtype == "fp16") return kernels::ElementType::f16;
  throw Error(ErrorCode::usage, "dtype: \"" + dtype + "\" is no type; give fp32, bf16 or fp16");
}

std::uint64_t row_offset(const ckpt::Box& outer, const ckpt::Box& inner) {
  return inner.empty() ? 0 : (inner.offset[0] - outer.offset[0]) * (outer.elements() / outer.shape[0]);
}

Parameters::Parameters(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                       kernels::ElementType type)
    : model_(model), layout_(layout), rank_(rank), memory_(parameter_memory(model, layout, rank, type)) {
  using kernels::MemoryUse;
  const auto make = [](std::uint64_t bytes, MemoryUse use) {
    return kernels::Memory(kernels::DeviceKind::cpu, bytes, use);
  };
  const bool value_slots = memory_.zero >= 3;
  const bool grad_slots = memory_.zero >= 2;
  values_ = make(memory_.value_bytes, value_slots ? MemoryUse::buffers : MemoryUse::param);
  value_pieces_ = make(memory_.value_piece_bytes, MemoryUse::param);
  grads_ = make(memory_.grad_elements * sizeof(float), grad_slots ? MemoryUse::buffers : MemoryUse::grad);
  grad_pieces_ = make(grad_slots ? memory_.piece_elements * sizeof(float) : 0, MemoryUse::grad);
  moments_ = make(2 * memory_.piece_elements * sizeof(float), MemoryUse::optimizer);
  masters_ = make(memory_.master_elements * sizeof(float), MemoryUse::optimizer);
  for (const TensorMemory& t : memory_.tensors) {
    Parameter p;
    p.placed = t.placed;
    p.spec = &model_.tensors[t.placed.tensor];
    p.unit = t.unit;
    p.value = {values_.data() + t.value, t.type};
    p.grad = grads_.floats() + t.grad;
    p.optimizer_box = t.optimizer_box;
    p.optimizer_offset = row_offset(t.placed.holds, t.optimizer_box);
    p.value_piece = value_slots ? kernels::Elements(value_pieces_.data() + t.value_piece, t.type)
                                : p.value + static_cast<std::int64_t>(p.optimizer_offset);
    p.grad_piece = grad_slots ? grad_pieces_.floats() + t.piece : p.grad + p.optimizer_offset;
    p.master = t.type == kernels::ElementType::f32 ? p.value_piece.f32() : masters_.floats() + t.master;
    p.exp_avg = moments_.floats() + t.piece;
    p.exp_avg_sq = p.exp_avg + memory_.piece_elements;
    places_.emplace(std::pair(p.spec->role, p.spec->layer()), parameters_.size());
    parameters_.push_back(p);
  }
}

Parameter* Parameters::find(Role role, std::int64_t layer) {
  // The one tensor of its role outside of the layers, or the layer's.
  for (const std::int64_t place : {std::int64_t{-1}, model_.config.layers, layer}) {
    const auto found = places_.find({role, place});
    if (found != places_.end()) return &parameters_[found->second];
  }
  return nullptr;
}

void Parameters::initialise(std::uint64_t seed) {
  kernels::Stream stream(kernels::DeviceKind::cpu);
  for (Parameter& p : parameters_) {
    const std::int64_t count = static_cast<std::int64_t>(p.optimizer_box.elements());
    const Role role = p.spec->role;
    if (is_norm_weight(role)) {
      kernels::fill(stream, 1.0F, p.master, count);
    } else if (is_bias(role)) {
      kernels::zero(stream, p.master, count);
    } else if (count > 0) {
      // Residual branches add up over 2 * layers projections, so each starts smaller.
      const bool residual = role == Role::o || role == Role::down;
      const double scale = residual ? 1.0 / std::sqrt(2.0 * static_cast<double>(model_.config.layers)) : 1.0;
      draw(stream, p.master, p.optimizer_box, p.spec->shape, seed, purpose(p.spec->name),
           static_cast<float>(kInitStddev * scale));
    }
  }
  zero_moments();
}

void Parameters::zero_moments() {
  kernels::Stream stream(kernels::DeviceKind::cpu);
  kernels::zero(stream, moments_.floats(), static_cast<std::int64_t>(moments_.bytes() / sizeof(float)));
}

void Parameters::zero_gradients() {
  kernels::Stream stream(kernels::DeviceKind::cpu);
  const kernels::Memory& sums = memory_.zero >= 2 ? grad_pieces_ : grads_;
  kernels::zero(stream, sums.floats(), static_cast<std::int64_t>(sums.bytes() / sizeof(float)));
}

std::span<float> Parameters::gradients(std::size_t unit) {
  const UnitMemory& u = memory_.units[unit];
  return {grads_.floats() + u.grad, u.grad_elements};
}

std::vector<ckpt::SaveItem> Parameters::save_items() const {
  std::vector<ckpt::SaveItem> items;
  for (const Parameter& p : parameters_) {
    const ckpt::Box& box = p.placed.writes;
    const auto add = [&](const char* kind, const float* memory) {
      items.push_back({p.spec->name, kind, ckpt::DType::f32, p.spec->shape, box, p.placed.chunk,
                       std::make_shared<ckpt::HostSource>(memory, box, sizeof(float))});
    };
    add(reshard::kParam, p.master + row_offset(p.optimizer_box, box));
    add(reshard::kExpAvg, p.exp_avg + row_offset(p.optimizer_box, box));
    add(reshard::kExpAvgSq, p.exp_avg_sq + row_offset(p.optimizer_box, box));
  }
  return items;
}

std::vector<ckpt::LoadItem> Parameters::load_items(bool weights_only) {
  std::vector<ckpt::LoadItem> items;
  for (Parameter& p : parameters_) {
    const auto add = [&](const char* kind, const ckpt::Box& box, float* memory) {
      items.push_back(
          {p.spec->name, kind, ckpt::DType::f32, p.spec->shape, box, reinterpret_cast<std::byte*>(memory)});
    };
    add(reshard::kParam, p.optimizer_box, p.master);
    if (weights_only) continue;
    add(reshard::kExpAvg, p.optimizer_box, p.exp_avg);
    add(reshard::kExpAvgSq, p.optimizer_box, p.exp_avg_sq);
  }
  return items;
}

}  // namespace shardwright::trainer
