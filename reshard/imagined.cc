#include "reshard/imagined.h"

#include "ckpt/shard.h"
#include "reshard/plan_counts.h"

namespace shardwright::reshard {

TargetPlan plan_imagined(const ModelSpec& model, const Layout& from, const Layout& to, bool weights_only) {
  check_layout(from, model);
  check_layout(to, model);
  const std::uint64_t kinds = weights_only ? 1 : 3;  // weights, first and second moments
  TargetPlan plan;
  plan.model = model;
  plan.layout = to;
  PlanCounter counter(plan);
  for (std::uint32_t t = 0; t < model.tensors.size(); ++t) {
    const Pieces source = written_pieces(model, from, t);
    for (std::size_t i = 0; i < source.boxes.size(); ++i)
      plan.source_chunks += kinds * ckpt::element_count(ckpt::chunk_grid(source.boxes[i], source.chunks[i]));
    counter.add(written_pieces(model, to, t), source, ckpt::DType::f32, kinds);
    plan.raw_bytes += kinds * ckpt::element_count(model.tensors[t].shape) * ckpt::size_of(ckpt::DType::f32);
    ++plan.tensors;
  }
  counter.finish();
  return plan;
}

}  // namespace shardwright::reshard
