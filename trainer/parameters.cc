#include "trainer/parameters.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "ckpt/digest.h"
#include "kernels/ops.h"

namespace shardwright::trainer {
namespace {

using reshard::Role;

constexpr std::uint64_t kAlign = 16;  // floats: 64 bytes

// The weights' standard deviation of GPT-2 (Radford et al. 2019).
constexpr double kInitStddev = 0.02;

// Tensors that one matrix product reads as if they were one, in the order of its output columns.
const std::vector<std::vector<Role>> kFused = {
    {Role::q, Role::k, Role::v},
    {Role::q_bias, Role::k_bias, Role::v_bias},
    {Role::gate, Role::up},
};

// The fused group of a role: itself alone for most.
std::vector<Role> fused_with(Role role) {
  for (const std::vector<Role>& group : kFused)
    if (std::find(group.begin(), group.end(), role) != group.end()) return group;
  return {role};
}

std::uint64_t align(std::uint64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; }

std::uint64_t purpose(const std::string& name) { return ckpt::xxh3_64(std::as_bytes(std::span(name))); }

bool is_norm_weight(Role role) {
  return role == Role::input_norm || role == Role::post_norm || role == Role::final_norm;
}

bool is_bias(Role role) {
  switch (role) {
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

std::uint64_t row_offset(const ckpt::Box& outer, const ckpt::Box& inner) {
  return inner.empty() ? 0 : (inner.offset[0] - outer.offset[0]) * (outer.elements() / outer.shape[0]);
}

Parameters::Parameters(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank)
    : model_(model), layout_(layout), rank_(rank) {
  for (const reshard::Placed& placed : reshard::placement(model_, layout_, rank_)) {
    Parameter p;
    p.placed = placed;
    p.spec = &model_.tensors[placed.tensor];
    p.optimizer_box = reshard::optimizer_box(placed, layout_);
    p.optimizer_offset = row_offset(placed.holds, p.optimizer_box);
    parameters_.push_back(p);
  }
  // Model order, a fused group at the place of its first member.
  std::uint64_t floats = 0;
  std::vector<std::optional<std::uint64_t>> offsets(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (offsets[i]) continue;
    for (Role member : fused_with(parameters_[i].spec->role)) {
      for (std::size_t j = i; j < parameters_.size(); ++j) {
        const reshard::TensorSpec& spec = *parameters_[j].spec;
        if (offsets[j] || spec.role != member || spec.layer() != parameters_[i].spec->layer()) continue;
        offsets[j] = floats;
        floats += parameters_[j].placed.holds.elements();
        break;
      }
    }
    floats = align(floats);
  }
  values_ = kernels::Memory(kernels::DeviceKind::cpu, floats * sizeof(float));
  grads_ = kernels::Memory(kernels::DeviceKind::cpu, floats * sizeof(float));
  std::uint64_t moments = 0;
  for (const Parameter& p : parameters_) moments += 2 * align(p.optimizer_box.elements());
  moments_ = kernels::Memory(kernels::DeviceKind::cpu, moments * sizeof(float));
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    places_.emplace(std::pair(p.spec->role, p.spec->layer()), i);
    p.value = values_.floats() + *offsets[i];
    p.grad = grads_.floats() + *offsets[i];
    p.exp_avg = moments_.floats() + at;
    at += align(p.optimizer_box.elements());
    p.exp_avg_sq = moments_.floats() + at;
    at += align(p.optimizer_box.elements());
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
    const std::int64_t count = static_cast<std::int64_t>(p.placed.holds.elements());
    const Role role = p.spec->role;
    if (is_norm_weight(role)) {
      kernels::fill(stream, 1.0F, p.value, count);
    } else if (is_bias(role)) {
      kernels::zero(stream, p.value, count);
    } else if (count > 0) {
      // Residual branches add up over 2 * layers projections, so each starts smaller.
      const bool residual = role == Role::o || role == Role::down;
      const double scale = residual ? 1.0 / std::sqrt(2.0 * static_cast<double>(model_.config.layers)) : 1.0;
      draw(stream, p.value, p.placed.holds, p.spec->shape, seed, purpose(p.spec->name),
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
  const std::span<float> all = gradients();
  kernels::zero(stream, all.data(), static_cast<std::int64_t>(all.size()));
}

std::span<float> Parameters::gradients() { return {grads_.floats(), grads_.bytes() / sizeof(float)}; }

std::vector<ckpt::SaveItem> Parameters::save_items() const {
  std::vector<ckpt::SaveItem> items;
  for (const Parameter& p : parameters_) {
    const ckpt::Box& box = p.placed.writes;
    const auto add = [&](const char* kind, const float* memory) {
      items.push_back({p.spec->name, kind, ckpt::DType::f32, p.spec->shape, box, p.placed.chunk,
                       std::make_shared<ckpt::HostSource>(memory, box, sizeof(float))});
    };
    add(reshard::kParam, p.value + row_offset(p.placed.holds, box));
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
    add(reshard::kParam, p.placed.holds, p.value);
    if (weights_only) continue;
    add(reshard::kExpAvg, p.optimizer_box, p.exp_avg);
    add(reshard::kExpAvgSq, p.optimizer_box, p.exp_avg_sq);
  }
  return items;
}

}  // namespace shardwright::trainer
