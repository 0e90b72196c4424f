#include "trainer/copy_sum.h"

#include <algorithm>

#include "ckpt/trace.h"

namespace shardwright::trainer {
namespace {

constexpr std::size_t kPacked = std::size_t{1} << 18;  // elements; larger tensors go alone, in place

}  // namespace

CopySum::CopySum(Parameters& parameters, Communicators& comms, bool sequence_parallel) {
  Group tied{comms.tied.get(), {}};
  Group kv{comms.kv.get(), {}};
  Group tensor{sequence_parallel ? comms.tensor.get() : nullptr, {}};
  for (Parameter& p : parameters.all()) {
    if (p.placed.stage_copies > 1) {
      tied.copies.push_back(&p);
    } else if (p.placed.copies > 1) {
      (p.spec->replicated() ? tensor : kv).copies.push_back(&p);
    }
  }
  for (Group* group : {&tied, &kv, &tensor})
    if (group->comm != nullptr && !group->copies.empty()) groups_.push_back(*group);
  packed_ =
      kernels::Memory(kernels::DeviceKind::cpu, bytes(parameters.memory()), kernels::MemoryUse::buffers);
}

std::size_t CopySum::bytes(const ParameterMemory& memory) {
  std::size_t elements = 0;
  for (const TensorMemory& t : memory.tensors)
    if (t.placed.copies > 1) elements += t.optimizer_box.elements();
  return std::min(elements, kPacked) * sizeof(float);
}

void CopySum::run() {
  for (Group& group : groups_) {
    const trace::Span span("reduce copies");
    std::vector<Parameter*> packed;
    std::size_t used = 0;
    const auto flush = [&] {
      group.comm->all_reduce_sum(std::span(packed_.floats(), used));
      const float* next = packed_.floats();
      for (Parameter* p : packed) {
        std::copy_n(next, p->optimizer_box.elements(), p->grad_piece);
        next += p->optimizer_box.elements();
      }
      packed.clear();
      used = 0;
    };
    for (Parameter* p : group.copies) {
      const std::size_t count = p->optimizer_box.elements();
      if (count > kPacked) {
        group.comm->all_reduce_sum(std::span(p->grad_piece, count));
        continue;
      }
      if (used + count > kPacked) flush();
      std::copy_n(p->grad_piece, count, packed_.floats() + used);
      packed.push_back(p);
      used += count;
    }
    if (used > 0) flush();
  }
}

}  // namespace shardwright::trainer
