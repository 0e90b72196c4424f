#include "trainer/plan_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace shardwright::trainer {
namespace {

using reshard::Axis;

constexpr double kGiga = 1e9;

// Operations of a forward pass for one token.
struct TokenWork {
  double layer = 0;      // all of a layer's
  double attention = 0;  // of those, scores and their product with the values
  double head = 0;
};

TokenWork token_work(const reshard::ModelSpec& model, std::int64_t positions) {
  TokenWork work;
  double weights = 0;
  for (const reshard::TensorSpec& tensor : model.tensors)
    if (tensor.layer() == 0 && tensor.shape.size() == 2)
      weights += static_cast<double>(ckpt::element_count(tensor.shape));
  // A token meets (positions + 1) / 2 keys on average.
  work.attention = 2 * static_cast<double>(positions + 1) * static_cast<double>(model.config.hidden);
  work.layer = 2 * weights + work.attention;
  work.head = 2 * static_cast<double>(model.config.hidden) * static_cast<double>(model.config.vocab);
  return work;
}

double transfer(const Link& link, double bytes) { return link.latency_s + bytes / (link.gbps * kGiga); }

// A ring: everybody's share passes everybody.
double gather(const Link& link, double ranks, double bytes) {
  return ranks < 2 ? 0 : (ranks - 1) * transfer(link, bytes / ranks);
}
double all_reduce(const Link& link, double ranks, double bytes) { return 2 * gather(link, ranks, bytes); }

// Seconds of a rank for one micro-batch.
struct MicroTime {
  double forward = 0;
  double again = 0;  // recomputation
  double tensor = 0;
  double all() const { return 3 * forward + again + tensor; }
};

class StepModel {
 public:
  StepModel(const reshard::ModelSpec& model, const reshard::Layout& layout, const TrainingShape& shape,
            const Machine& machine)
      : model_(model),
        layout_(layout),
        shape_(shape),
        machine_(machine),
        work_(token_work(model, shape.positions)),
        tokens_(static_cast<double>(shape.batch.micro_batch * shape.positions)),
        stream_bytes_(tokens_ * static_cast<double>(model.config.hidden) *
                      static_cast<double>(element_bytes(shape))) {}

  double ranks(Axis axis) const { return reshard::axis_size(layout_, axis); }
  const Link& link(Axis axis) const {
    return within_node(layout_, axis, machine_.gpus_per_node) ? machine_.node : machine_.network;
  }
  double seconds(double operations) const { return operations / (machine_.gflops * kGiga); }
  double micro_batches() const { return static_cast<double>(reshard::micro_batches(layout_, shape_.batch)); }

  MicroTime micro(int rank) const {
    const double sum = all_reduce(link(Axis::tp), ranks(Axis::tp), stream_bytes_);
    const bool full = shape_.recompute == "full";
    const double again = full ? work_.layer : shape_.recompute == "selective" ? work_.attention : 0;
    MicroTime time;
    for (const reshard::StageLayers& stage : reshard::virtual_stages(layout_, model_, rank)) {
      const auto layers = static_cast<double>(stage.layers);
      const double share = tokens_ / ranks(Axis::tp);
      time.forward += seconds(share * (layers * work_.layer + (stage.last ? work_.head : 0)));
      time.again += seconds(share * layers * again);
      // Two row-parallel products a layer and their gradients' counterparts; embedding; head.
      time.tensor += sum * (layers * (full ? 6 : 4) + (stage.first ? 1 : 0) + (stage.last ? 1 : 0));
    }
    return time;
  }

  // Both directions of one micro-batch; the trainer waits for each.
  double hops(double chunks) const {
    const double spread = shape_.sequence_parallel ? ranks(Axis::tp) : 1;
    return ranks(Axis::pp) < 2 ? 0 : 2 * chunks * transfer(link(Axis::pp), stream_bytes_ / spread);
  }

  double data(const MicroTime& micro, const reshard::RankSizes& most) const {
    const double d = ranks(Axis::dp);
    const auto held = static_cast<double>(most.holds);
    const double grads = gather(link(Axis::dp), d, 4 * held);
    const double values = gather(link(Axis::dp), d, static_cast<double>(element_bytes(shape_)) * held);
    const double forward = micro.forward;
    const double backward = 2 * micro.forward + micro.again;
    const auto exposed = [](double communication, double computation) {
      return std::max(0.0, communication - computation);
    };
    switch (layout_.zero) {
      case 0:
        return 2 * grads;
      case 1:
        return grads + values;
      case 2:  // each micro-batch's gradients go out during its backward pass
        return micro_batches() * exposed(grads, backward) + values;
      default:  // and each layer's parameters come in just before their use, twice
        return micro_batches() * (exposed(values, forward) + exposed(values + grads, backward));
    }
  }

 private:
  const reshard::ModelSpec& model_;
  const reshard::Layout& layout_;
  const TrainingShape& shape_;
  const Machine& machine_;
  TokenWork work_;
  double tokens_;        // of a micro-batch
  double stream_bytes_;  // of its residual stream
};

}  // namespace

bool within_node(const reshard::Layout& layout, Axis axis, int gpus_per_node) {
  const std::vector<int> group = reshard::axis_group(layout, 0, axis);
  return group.back() < gpus_per_node;
}

double bubble_share(const reshard::ModelSpec& model, const reshard::Layout& layout,
                    const TrainingShape& shape) {
  const auto chunks = static_cast<double>(reshard::virtual_stages(layout, model, 0).size());
  const auto micro = static_cast<double>(reshard::micro_batches(layout, shape.batch));
  return (reshard::axis_size(layout, Axis::pp) - 1) / (micro * chunks);
}

StepTime step_time(const reshard::ModelSpec& model, const reshard::Layout& layout, const TrainingShape& shape,
                   const Machine& machine, const reshard::RankSizes& most) {
  const StepModel step(model, layout, shape, machine);
  const auto chunks = static_cast<double>(reshard::virtual_stages(layout, model, 0).size());
  MicroTime slowest;
  double all = 0;
  for (const int rank : reshard::axis_group(layout, 0, Axis::pp)) {
    const MicroTime time = step.micro(rank);
    if (time.all() > slowest.all()) slowest = time;
    all += time.all();
  }
  const double micro = step.micro_batches();
  const double hops = step.hops(chunks);
  StepTime time;
  time.compute = micro * 3 * slowest.forward;
  time.recompute = micro * slowest.again;
  time.tensor = micro * slowest.tensor;
  time.pipeline = micro * hops;
  // The first micro-batch passes the other ranks before this one is busy, and the last one after.
  time.bubble = (all - slowest.all() + (step.ranks(Axis::pp) - 1) * hops) / chunks;
  time.data = step.data(slowest, most);
  // AdamW reads and writes value, gradient and two moments.
  const auto owned = static_cast<double>(layout.zero >= 1 ? most.piece : most.holds);
  constexpr double kOptimizerBytes = 28;
  time.optimizer = owned * kOptimizerBytes / (machine.memory_gbps * kGiga) +
                   2 * std::log2(layout.ranks()) * machine.network.latency_s;  // the norm
  return time;
}

}  // namespace shardwright::trainer
