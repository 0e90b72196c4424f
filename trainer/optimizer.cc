#include "trainer/optimizer.h"

#include <algorithm>
#include <cmath>

#include "ckpt/trace.h"
#include "trainer/replicas.h"

namespace shardwright::trainer {
namespace {

kernels::AdamW of_parameter(kernels::AdamW hyper, const Parameter& p) {
  if (!p.spec->decay) hyper.weight_decay = 0;
  return hyper;
}

}  // namespace

Optimizer::Optimizer(Parameters& parameters, Communicators& comms, DataParallel& data,
                     kernels::Stream& stream, const Config::Optim& hyper, bool sequence_parallel)
    : parameters_(parameters),
      comms_(comms),
      data_(data),
      stream_(stream),
      hyper_(hyper),
      copy_sum_(parameters, comms, sequence_parallel) {}

void Optimizer::reduce_gradients() {
  data_.reduce_gradients();
  stream_.synchronize();
  copy_sum_.run();
}

StepResult Optimizer::norm(std::span<double> words, double loss_scale) {
  const trace::Span span("clip");
  std::vector<double> sums(words.begin(), words.end());
  double squares = 0;
  for (const Parameter& p : parameters_.all()) {
    const ckpt::Box& box = p.placed.writes;
    if (box.empty()) continue;
    squares += kernels::sum_of_squares(stream_, p.grad_piece + row_offset(p.optimizer_box, box),
                                       static_cast<std::int64_t>(box.elements()));
  }
  sums.push_back(squares);
  comms_.world->all_reduce_sum(std::span<double>(sums));
  std::copy_n(sums.begin(), words.size(), words.begin());
  return {std::sqrt(sums.back()) / loss_scale, std::isfinite(sums.back()), loss_scale};
}

void Optimizer::update(const StepResult& norm, double lr, std::int64_t step,
                       const BeforeWrite& before_write) {
  const trace::Span span("optimizer");
  const double grad_scale =
      hyper_.clip > 0 && norm.grad_norm > hyper_.clip ? hyper_.clip / norm.grad_norm : 1.0;
  kernels::AdamW h{};
  h.lr = static_cast<float>(lr);
  h.beta1 = static_cast<float>(hyper_.beta1);
  h.beta2 = static_cast<float>(hyper_.beta2);
  h.eps = static_cast<float>(hyper_.eps);
  h.grad_scale = static_cast<float>(grad_scale / norm.loss_scale);
  h.step = step;
  h.weight_decay = static_cast<float>(hyper_.weight_decay);
  if (parameters_.offloaded() != nullptr)
    update_offloaded(h, before_write);
  else
    update_in_memory(h, before_write);
  // Values too are compared between ranks (replicas.h) while the next passes run.
  for (const Parameter& p : parameters_.all()) {
    const bool f32 = p.value.type == kernels::ElementType::f32;
    if (f32 && p.optimizer_box == p.placed.holds) continue;  // is the master itself
    before_write(p, f32 ? reshard::kParam : kValue, p.placed.holds);
  }
  data_.spread_values();
}

void Optimizer::update_in_memory(const kernels::AdamW& hyper, const BeforeWrite& before_write) {
  for (const Parameter& p : parameters_.all()) {
    if (p.optimizer_box.empty()) continue;
    for (const char* kind : {reshard::kParam, reshard::kExpAvg, reshard::kExpAvgSq})
      before_write(p, kind, p.optimizer_box);
    kernels::adamw(stream_, of_parameter(hyper, p), p.master, p.grad_piece, p.exp_avg, p.exp_avg_sq,
                   static_cast<std::int64_t>(p.optimizer_box.elements()));
  }
  stream_.synchronize();
}

void Optimizer::update_offloaded(const kernels::AdamW& hyper, const BeforeWrite& before_write) {
  parameters_.offloaded()->rewrite(OffloadedState::Old::read, [&](std::span<const OffloadedPart> parts) {
    for (const OffloadedPart& part : parts) {
      const Parameter& p = parameters_.all()[part.parameter];
      const auto first = static_cast<std::int64_t>(part.first);
      // Only what lies in memory is about to change under a save.
      if (part.first == 0 && part.master == nullptr) before_write(p, reshard::kParam, p.optimizer_box);
      if (part.first == 0 && part.master != nullptr) before_write(p, kValue, p.placed.holds);
      kernels::adamw(stream_, of_parameter(hyper, p), part.master == nullptr ? p.master + first : part.master,
                     p.grad_piece + first, part.exp_avg, part.exp_avg_sq, part.count);
      if (part.master != nullptr) kernels::convert(stream_, part.master, p.value_piece + first, part.count);
    }
    stream_.synchronize();
  });
}

}  // namespace shardwright::trainer
