#include "trainer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace shardwright::trainer {

Optimizer::Optimizer(Parameters& parameters, Communicators& comms, kernels::Stream& stream,
                     const Config::Optim& hyper)
    : parameters_(parameters), comms_(comms), stream_(stream), hyper_(hyper) {
  if (comms.data->size() > 1 && parameters.layout().zero > 0) plan_segments();
}

void Optimizer::plan_segments() {
  const std::size_t ranks = static_cast<std::size_t>(comms_.data->size());
  std::vector<std::vector<ckpt::Box>> pieces;  // by parameter, then dp index
  for (const Parameter& p : parameters_.all())
    pieces.push_back(
        reshard::dp_pieces(parameters_.model(), parameters_.layout(), parameters_.rank(), p.placed.tensor));
  std::uint64_t at = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    first_.push_back(segments_.size());
    const std::uint64_t start = at;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const ckpt::Box& piece = pieces[i][r];
      if (piece.empty()) continue;
      segments_.push_back({i, row_offset(parameters_.all()[i].placed.holds, piece), piece.elements(), at});
      at += piece.elements();
    }
    counts_.push_back(static_cast<std::int64_t>(at - start));
  }
  first_.push_back(segments_.size());
  packed_.resize(at);
  reduced_.resize(static_cast<std::size_t>(counts_[static_cast<std::size_t>(comms_.data->rank())]));
}

std::span<const Optimizer::Segment> Optimizer::own_segments() const {
  const std::size_t me = static_cast<std::size_t>(comms_.data->rank());
  return std::span(segments_).subspan(first_[me], first_[me + 1] - first_[me]);
}

void Optimizer::reduce_gradients() {
  if (comms_.data->size() == 1) return;
  stream_.synchronize();
  if (segments_.empty()) {
    comms_.data->all_reduce_sum(parameters_.gradients());
    return;
  }
  for (const Segment& s : segments_)
    std::copy_n(parameters_.all()[s.parameter].grad + s.offset, s.length, packed_.data() + s.packed);
  comms_.data->reduce_scatter_sum(packed_, reduced_, counts_);
  const float* next = reduced_.data();
  for (const Segment& s : own_segments()) {
    std::copy_n(next, s.length, parameters_.all()[s.parameter].grad + s.offset);
    next += s.length;
  }
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
  gather_parameters();
}

void Optimizer::gather_parameters() {
  if (segments_.empty()) return;
  for (const Segment& s : own_segments())
    std::copy_n(parameters_.all()[s.parameter].value + s.offset, s.length, packed_.data() + s.packed);
  const std::size_t me = static_cast<std::size_t>(comms_.data->rank());
  const std::int64_t start =
      std::accumulate(counts_.begin(), counts_.begin() + comms_.data->rank(), std::int64_t{0});
  comms_.data->all_gather(
      std::span(packed_).subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(counts_[me])),
      packed_, counts_);
  for (const Segment& s : segments_)
    std::copy_n(packed_.data() + s.packed, s.length, parameters_.all()[s.parameter].value + s.offset);
}

}  // namespace shardwright::trainer
