#include "trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardwright::trainer {

Optimizer::Optimizer(Parameters& parameters, Communicators& comms, kernels::Stream& stream,
                     const Config::Optim& hyper, bool sequence_parallel)
    : parameters_(parameters),
      comms_(comms),
      stream_(stream),
      hyper_(hyper),
      copy_sum_(parameters, comms, sequence_parallel) {
  if (comms.data->size() == 1) return;
  for (const BucketOf kind : {BucketOf::tensor_copies, BucketOf::stage_copies}) {
    Bucket bucket(parameters, *comms.data, kind);
    if (!bucket.empty()) copies_.push_back(std::move(bucket));
  }
  if (parameters.layout().zero > 0) own_.emplace(parameters, *comms.data, BucketOf::own);
}

void Optimizer::reduce_gradients() {
  stream_.synchronize();
  copy_sum_.run();
  if (comms_.data->size() == 1) return;
  if (own_) {
    for (Bucket& bucket : copies_) bucket.reduce_scatter_gradients();
    own_->reduce_scatter_gradients();
    return;
  }
  // All in place at once; the copies again in buckets of their own.
  for (Bucket& bucket : copies_) bucket.pack_gradients();
  comms_.data->all_reduce_sum(parameters_.gradients());
  for (Bucket& bucket : copies_) bucket.all_reduce_gradients();
}

StepResult Optimizer::norm(std::span<double> words) {
  std::vector<double> sums(words.begin(), words.end());
  double squares = 0;
  for (const Parameter& p : parameters_.all()) {
    const ckpt::Box& box = p.placed.writes;
    if (box.empty()) continue;
    squares += kernels::sum_of_squares(stream_, p.grad + row_offset(p.placed.holds, box),
                                       static_cast<std::int64_t>(box.elements()));
  }
  sums.push_back(squares);
  comms_.world->all_reduce_sum(std::span<double>(sums));
  std::copy_n(sums.begin(), words.size(), words.begin());
  return {std::sqrt(sums.back()), std::isfinite(sums.back())};
}

void Optimizer::update(const StepResult& norm, double lr, std::int64_t step,
                       const BeforeWrite& before_write) {
  const double grad_scale =
      hyper_.clip > 0 && norm.grad_norm > hyper_.clip ? hyper_.clip / norm.grad_norm : 1.0;
  kernels::AdamW h{};
  h.lr = static_cast<float>(lr);
  h.beta1 = static_cast<float>(hyper_.beta1);
  h.beta2 = static_cast<float>(hyper_.beta2);
  h.eps = static_cast<float>(hyper_.eps);
  h.grad_scale = static_cast<float>(grad_scale);
  h.step = step;
  for (const Parameter& p : parameters_.all()) {
    if (p.optimizer_box.empty()) continue;
    for (const char* kind : {reshard::kParam, reshard::kExpAvg, reshard::kExpAvgSq})
      before_write(p, kind, p.optimizer_box);
    h.weight_decay = p.spec->decay ? static_cast<float>(hyper_.weight_decay) : 0.0F;
    kernels::adamw(stream_, h, p.value + p.optimizer_offset, p.grad + p.optimizer_offset, p.exp_avg,
                   p.exp_avg_sq, static_cast<std::int64_t>(p.optimizer_box.elements()));
  }
  stream_.synchronize();
  if (!own_) return;
  for (Bucket& bucket : copies_) bucket.all_gather_values();
  own_->all_gather_values();
}

}  // namespace shardwright::trainer
