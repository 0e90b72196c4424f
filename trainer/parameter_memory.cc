#include "trainer/parameter_memory.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardwright::trainer {
namespace {

using kernels::ElementType;
using reshard::Role;

constexpr std::uint64_t kAlignment = 64;  // bytes

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

std::uint64_t up(std::uint64_t count, std::uint64_t to) { return (count + to - 1) / to * to; }

// Floats to the next boundary.
std::uint64_t align(std::uint64_t floats) { return up(floats, kAlignment / sizeof(float)); }

// The unit of a tensor by its place in the model, -1 to `layers`. Tied embeddings on a rank with both ends
// are used at both, so that the ends are one unit.
std::int64_t place(const reshard::TensorSpec& spec, bool first, bool one_end, std::int64_t layers) {
  const std::int64_t at = spec.layer();
  if (at >= 0 && at < layers) return at;
  if (one_end) return -1;
  return at < 0 && first ? -1 : layers;
}

// Lays out the tensors of a unit, a fused group at the place of its first member; values and gradients start
// where `value` and `grad` say, which are moved on.
void lay_out(const reshard::ModelSpec& model, const std::vector<TensorMemory*>& tensors, std::uint64_t& value,
             std::uint64_t& grad) {
  std::vector<bool> done(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (done[i]) continue;
    for (const Role member : fused_with(model.tensors[tensors[i]->placed.tensor].role)) {
      const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorMemory* t) {
        return model.tensors[t->placed.tensor].role == member;
      });
      if (found == tensors.end()) continue;
      TensorMemory& t = **found;
      done[static_cast<std::size_t>(found - tensors.begin())] = true;
      t.value = value;
      t.grad = grad;
      value += t.placed.holds.elements() * kernels::element_size(t.type);
      grad += t.placed.holds.elements();
    }
    value = up(value, kAlignment);
    grad = align(grad);
  }
}

}  // namespace

StateMemory state_memory(const ParameterMemory& memory) {
  constexpr std::uint64_t kFloat = sizeof(float);
  StateMemory bytes;
  (memory.zero >= 3 ? bytes.buffers : bytes.param) += memory.value_bytes;
  bytes.param += memory.value_piece_bytes;
  (memory.zero >= 2 ? bytes.buffers : bytes.grad) += kFloat * memory.grad_elements;
  if (memory.zero >= 2) bytes.grad += kFloat * memory.piece_elements;
  bytes.optimizer = kFloat * (2 * memory.piece_elements + memory.master_elements);
  return bytes;
}

ParameterMemory parameter_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                                 ElementType type) {
  ParameterMemory memory;
  const bool alone = reshard::axis_size(layout, reshard::Axis::dp) == 1;
  memory.zero = alone ? std::min(layout.zero, 1) : layout.zero;
  const std::vector<reshard::StageLayers> stages = reshard::virtual_stages(layout, model, rank);
  const auto any = [&](bool reshard::StageLayers::*end) {
    return std::any_of(stages.begin(), stages.end(), [&](const auto& stage) { return stage.*end; });
  };
  const bool first = any(&reshard::StageLayers::first);
  const bool one_end = first && any(&reshard::StageLayers::last) && model.config.tie_embeddings;

  for (const reshard::Placed& placed : reshard::placement(model, layout, rank)) {
    TensorMemory t;
    t.placed = placed;
    t.optimizer_box = reshard::optimizer_box(placed, layout);
    t.type = model.tensors[placed.tensor].shape.size() > 1 ? type : ElementType::f32;
    memory.tensors.push_back(std::move(t));
  }
  std::map<std::int64_t, std::vector<TensorMemory*>> units;
  for (TensorMemory& t : memory.tensors)
    units[place(model.tensors[t.placed.tensor], first, one_end, model.config.layers)].push_back(&t);

  // Slots lie behind each other, the layers' first.
  const bool value_slots = memory.zero >= 3;
  const bool grad_slots = memory.zero >= 2;
  std::uint64_t layer_values = 0, layer_grads = 0;
  for (const bool layers : {true, false}) {
    // All units in turn where nothing shares a slot.
    if (!layers && !grad_slots) break;
    for (auto& [at, tensors] : units) {
      const bool layer = at >= 0 && at < model.config.layers;
      if (grad_slots && layer != layers) continue;
      std::uint64_t value = value_slots ? layers ? 0 : layer_values : memory.value_bytes;
      std::uint64_t grad = grad_slots ? layers ? 0 : layer_grads : memory.grad_elements;
      lay_out(model, tensors, value, grad);
      memory.value_bytes = std::max(memory.value_bytes, value);
      memory.grad_elements = std::max(memory.grad_elements, grad);
    }
    layer_values = memory.value_bytes;
    layer_grads = memory.grad_elements;
  }
  for (auto& [at, tensors] : units) {
    UnitMemory unit;
    unit.layer = at >= 0 && at < model.config.layers;
    unit.grad = tensors.front()->grad;
    std::uint64_t end = unit.grad;
    for (TensorMemory* t : tensors) {
      t->unit = memory.units.size();
      unit.grad = std::min(unit.grad, t->grad);
      end = std::max(end, t->grad + t->placed.holds.elements());
      unit.held += t->placed.holds.elements();
      unit.owned += t->optimizer_box.elements();
      unit.value_bytes += t->placed.holds.elements() * kernels::element_size(t->type);
    }
    unit.grad_elements = end - unit.grad;
    memory.units.push_back(unit);
  }

  for (TensorMemory& t : memory.tensors) {
    const std::uint64_t owned = t.optimizer_box.elements();
    t.piece = memory.piece_elements;
    memory.piece_elements += align(owned);
    if (value_slots) {
      t.value_piece = memory.value_piece_bytes;
      memory.value_piece_bytes += up(owned * kernels::element_size(t.type), kAlignment);
    }
    if (t.type == ElementType::f32) continue;
    t.master = memory.master_elements;
    memory.master_elements += align(owned);
  }
  return memory;
}

}  // namespace shardwright::trainer
