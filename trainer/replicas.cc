#include "trainer/replicas.h"

#include <memory>

namespace shardwright::trainer {
namespace {

ckpt::DType dtype_of(kernels::ElementType type) {
  switch (type) {
    case kernels::ElementType::f32:
      return ckpt::DType::f32;
    case kernels::ElementType::bf16:
      return ckpt::DType::bf16;
    case kernels::ElementType::f16:
      break;
  }
  return ckpt::DType::f16;
}

class Collector {
 public:
  explicit Collector(Parameters& parameters) : zero_(parameters.memory().zero) {
    for (const Parameter& p : parameters.all()) {
      const std::vector<ckpt::Box> pieces =
          reshard::dp_pieces(parameters.model(), parameters.layout(), parameters.rank(), p.placed.tensor);
      const std::size_t holders = p.placed.copies * (zero_ >= 3 ? 1 : pieces.size());
      if (holders == 1) continue;
      for (const ckpt::Box& box : reshard::written_boxes(parameters.model(), parameters.layout(),
                                                         parameters.rank(), p.placed.tensor))
        add(p, box);
    }
  }
  std::vector<Replica> take() { return std::move(replicas_); }

 private:
  void add(const Parameter& p, const ckpt::Box& box) {
    const bool owned = ckpt::contains(p.optimizer_box, box);
    const bool here = owned || zero_ < 3;
    if (!here) return;
    if (!(box == p.placed.writes)) {
      if (owned) {
        const std::uint64_t at = row_offset(p.optimizer_box, box);
        add_owned(p, reshard::kParam, box, p.master, at);
        add_owned(p, reshard::kExpAvg, box, p.exp_avg, at);
        add_owned(p, reshard::kExpAvgSq, box, p.exp_avg_sq, at);
      } else if (p.value.type == kernels::ElementType::f32) {
        add(p, reshard::kParam, ckpt::DType::f32, box, p.value.f32() + row_offset(p.placed.holds, box));
      }
    }
    if (p.value.type == kernels::ElementType::f32) return;
    const kernels::Elements value =
        zero_ >= 3 ? p.value_piece + static_cast<std::int64_t>(row_offset(p.optimizer_box, box))
                   : p.value + static_cast<std::int64_t>(row_offset(p.placed.holds, box));
    add(p, kValue, dtype_of(p.value.type), box, value.data);
  }

  void add_owned(const Parameter& p, const char* kind, const ckpt::Box& box, float* owned, std::uint64_t at) {
    if (owned == nullptr)
      replicas_.push_back({&p, kind, ckpt::DType::f32, box, {}});
    else
      add(p, kind, ckpt::DType::f32, box, owned + at);
  }

  void add(const Parameter& p, const char* kind, ckpt::DType dtype, const ckpt::Box& box, void* memory) {
    replicas_.push_back(
        {&p, kind, dtype, box, {static_cast<std::byte*>(memory), box.elements() * ckpt::size_of(dtype)}});
  }

  const int zero_;
  std::vector<Replica> replicas_;
};

}  // namespace

std::vector<Replica> replicas(Parameters& parameters) { return Collector(parameters).take(); }

std::vector<ckpt::SaveItem> save_items(std::span<const Replica> replicas, const Parameters& parameters) {
  std::vector<ckpt::SaveItem> items;
  for (const Replica& r : replicas) {
    std::shared_ptr<const ckpt::Source> source;
    if (r.memory.empty())
      source = parameters.source(*r.parameter, r.kind.c_str(), r.box, nullptr);
    else
      source = std::make_shared<ckpt::HostSource>(r.memory.data(), r.box, ckpt::size_of(r.dtype));
    items.push_back(
        {r.parameter->spec->name, r.kind, r.dtype, r.parameter->spec->shape, r.box, {}, std::move(source)});
  }
  return items;
}

}  // namespace shardwright::trainer
