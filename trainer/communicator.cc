#include "trainer/communicator.h"

#include <cassert>

#include "reshard/placement.h"

namespace shardwright::trainer {
namespace {

// Splits `world` in the groups of ranks that hold this rank's part of a tensor alike; null where nobody else
// does, and on ranks without the tensor (null too).
std::unique_ptr<Communicator> holders_group(Communicator& world, const reshard::ModelSpec& model,
                                            const reshard::Layout& layout, const reshard::Placed* placed) {
  int colour = -1;
  if (placed != nullptr && placed->copies > 1)
    colour = reshard::holders(model, layout, world.rank(), placed->tensor).front();
  return world.split(colour, world.rank());
}

std::unique_ptr<Communicator> axis_group(Communicator& world, const reshard::Layout& layout,
                                         reshard::Axis axis) {
  // The first rank of a group names it.
  return world.split(reshard::axis_group(layout, world.rank(), axis).front(),
                     reshard::axis_index(layout, world.rank(), axis));
}

}  // namespace

// Two broadcasts, because only the root knows the length.
std::string Communicator::broadcast(const std::string& text, int root) {
  std::uint64_t length = text.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string result = rank() == root ? text : std::string(length, '\0');
  broadcast(std::as_writable_bytes(std::span(result.data(), result.size())), root);
  return result;
}

Communicators make_communicators(std::unique_ptr<Communicator> world, const reshard::ModelSpec& model,
                                 const reshard::Layout& layout) {
  assert(world->size() == layout.ranks());
  Communicators c;
  c.tensor = axis_group(*world, layout, reshard::Axis::tp);
  c.data = axis_group(*world, layout, reshard::Axis::dp);
  c.pipeline = axis_group(*world, layout, reshard::Axis::pp);
  const reshard::Placed* kv = nullptr;
  const reshard::Placed* embedding = nullptr;
  const std::vector<reshard::Placed> placed = reshard::placement(model, layout, world->rank());
  for (const reshard::Placed& p : placed) {
    // Every stage has a layer, and all layers' KV heads are held by the same ranks.
    if (model.tensors[p.tensor].role == reshard::Role::k && kv == nullptr) kv = &p;
    if (model.tensors[p.tensor].role == reshard::Role::embed_tokens && p.stage_copies > 1) embedding = &p;
  }
  c.kv = holders_group(*world, model, layout, kv);
  c.tied = holders_group(*world, model, layout, embedding);
  c.world = std::move(world);
  return c;
}

}  // namespace shardwright::trainer
