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

// Weights at step 0: a constant, or normal numbers by global element index.
struct Initial {
  float constant = 0;
  float stddev = 0;  // 0: all are the constant
  std::uint64_t seed = 0;
  std::uint64_t key = 0;
};

// Draws `box` of a tensor by global element index, run by run of what is contiguous in the global tensor.
void draw(kernels::Stream& stream, float* values, const ckpt::Box& box, const ckpt::Dims& global,
          const Initial& how) {
  const std::size_t dims = global.size();
  const bool full_rows = dims < 2 || box.shape[1] == global[1];
  const std::uint64_t width = dims < 2 ? 1 : global[1];
  const std::uint64_t runs = full_rows ? 1 : box.shape[0];
  const std::uint64_t length = box.elements() / runs;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const std::uint64_t first = (box.offset[0] + run) * width + (full_rows ? 0 : box.offset[1]);
    kernels::fill_normal(stream, values + run * length, static_cast<std::int64_t>(length), how.seed, how.key,
                         first, how.stddev);
  }
}

Initial initial_values(const reshard::TensorSpec& tensor, std::int64_t layers, std::uint64_t seed) {
  if (is_norm_weight(tensor.role)) return {.constant = 1};
  if (is_bias(tensor.role)) return {};
  // Residual branches add up over 2 * layers projections, so each starts smaller.
  const bool residual = tensor.role == Role::o || tensor.role == Role::down;
  const double scale = residual ? 1.0 / std::sqrt(2.0 * static_cast<double>(layers)) : 1.0;
  return {.stddev = static_cast<float>(kInitStddev * scale), .seed = seed, .key = purpose(tensor.name)};
}

// `count` elements of the parameter's optimizer box, from `first` on.
void fill_initial(kernels::Stream& stream, const Parameter& p, const Initial& how, float* values,
                  std::uint64_t first, std::uint64_t count) {
  if (how.stddev == 0) {
    kernels::fill(stream, how.constant, values, static_cast<std::int64_t>(count));
    return;
  }
  for (const RunBox& run : boxes_of_run(p.optimizer_box, first, count))
    draw(stream, values + run.at, run.box, p.spec->shape, how);
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
                       kernels::ElementType type, const std::optional<OffloadOptions>& offload)
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
  if (offload) {
    offloaded_ = std::make_unique<OffloadedState>(memory_, rank, *offload);
  } else {
    moments_ = make(2 * memory_.piece_elements * sizeof(float), MemoryUse::optimizer);
    masters_ = make(memory_.master_elements * sizeof(float), MemoryUse::optimizer);
  }
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
    if (t.type == kernels::ElementType::f32) p.master = p.value_piece.f32();
    if (!offload) {
      if (p.master == nullptr) p.master = masters_.floats() + t.master;
      p.exp_avg = moments_.floats() + t.piece;
      p.exp_avg_sq = p.exp_avg + memory_.piece_elements;
    }
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
  const auto initial = [&](const Parameter& p) {
    return initial_values(*p.spec, model_.config.layers, seed);
  };
  for (const Parameter& p : parameters_)
    if (p.master != nullptr) fill_initial(stream, p, initial(p), p.master, 0, p.optimizer_box.elements());
  if (!offloaded_) {
    kernels::zero(stream, moments_.floats(), static_cast<std::int64_t>(moments_.bytes() / sizeof(float)));
    return;
  }
  offloaded_->rewrite(OffloadedState::Old::zero, [&](std::span<const OffloadedPart> parts) {
    for (const OffloadedPart& part : parts) {
      if (part.master == nullptr) continue;
      const Parameter& p = parameters_[part.parameter];
      fill_initial(stream, p, initial(p), part.master, part.first, static_cast<std::uint64_t>(part.count));
      kernels::convert(stream, part.master, p.value_piece + static_cast<std::int64_t>(part.first),
                       part.count);
    }
  });
}

void Parameters::load(const ckpt::Checkpoint& checkpoint, bool weights_only,
                      const ckpt::LoadOptions& options) {
  if (weights_only) {
    kernels::Stream stream(kernels::DeviceKind::cpu);
    kernels::zero(stream, moments_.floats(), static_cast<std::int64_t>(moments_.bytes() / sizeof(float)));
  }
  checkpoint.load(load_items(weights_only), options);
  if (offloaded_) load_offloaded(checkpoint, weights_only, options);
}

void Parameters::load_offloaded(const ckpt::Checkpoint& checkpoint, bool weights_only,
                                const ckpt::LoadOptions& options) {
  kernels::Stream stream(kernels::DeviceKind::cpu);
  std::vector<ckpt::LoadItem> items;
  offloaded_->rewrite(OffloadedState::Old::zero, [&](std::span<const OffloadedPart> parts) {
    items.clear();
    for (const OffloadedPart& part : parts) {
      const Parameter& p = parameters_[part.parameter];
      for (const RunBox& run :
           boxes_of_run(p.optimizer_box, part.first, static_cast<std::uint64_t>(part.count))) {
        const auto add = [&](const char* kind, float* memory) {
          items.push_back({p.spec->name, kind, ckpt::DType::f32, p.spec->shape, run.box,
                           reinterpret_cast<std::byte*>(memory + run.at)});
        };
        if (part.master != nullptr) add(reshard::kParam, part.master);
        if (weights_only) continue;
        add(reshard::kExpAvg, part.exp_avg);
        add(reshard::kExpAvgSq, part.exp_avg_sq);
      }
    }
    checkpoint.load(items, options);
    for (const OffloadedPart& part : parts)
      if (part.master != nullptr)
        kernels::convert(stream, part.master,
                         parameters_[part.parameter].value_piece + static_cast<std::int64_t>(part.first),
                         part.count);
  });
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

std::shared_ptr<const ckpt::Source> Parameters::source(const Parameter& parameter, const char* kind,
                                                       const ckpt::Box& box, const float* memory) const {
  if (memory != nullptr || box.empty()) return std::make_shared<ckpt::HostSource>(memory, box, sizeof(float));
  return offloaded_->source(static_cast<std::size_t>(&parameter - parameters_.data()), kind);
}

std::vector<ckpt::SaveItem> Parameters::save_items() const {
  std::vector<ckpt::SaveItem> items;
  for (const Parameter& p : parameters_) {
    const ckpt::Box& box = p.placed.writes;
    const auto add = [&](const char* kind, const float* owned) {
      const float* const memory = owned == nullptr ? nullptr : owned + row_offset(p.optimizer_box, box);
      items.push_back({p.spec->name, kind, ckpt::DType::f32, p.spec->shape, box, p.placed.chunk,
                       source(p, kind, box, memory)});
    };
    add(reshard::kParam, p.master);
    add(reshard::kExpAvg, p.exp_avg);
    add(reshard::kExpAvgSq, p.exp_avg_sq);
  }
  return items;
}

std::vector<ckpt::LoadItem> Parameters::load_items(bool weights_only) {
  std::vector<ckpt::LoadItem> items;
  for (Parameter& p : parameters_) {
    const auto add = [&](const char* kind, float* memory) {
      if (memory != nullptr)
        items.push_back({p.spec->name, kind, ckpt::DType::f32, p.spec->shape, p.optimizer_box,
                         reinterpret_cast<std::byte*>(memory)});
    };
    add(reshard::kParam, p.master);
    if (weights_only) continue;
    add(reshard::kExpAvg, p.exp_avg);
    add(reshard::kExpAvgSq, p.exp_avg_sq);
  }
  return items;
}

}  // namespace shardwright::trainer
