// optimizer_parallel LAYOUT: run by as many ranks as the layout has. Three optimizer steps of two
// micro-batches each with gradients drawn by global index and dp rank, against the same steps of a rank alone
// that has the summed gradients. Once with all tensors passing through in rounds of a few hundred elements.
// Exits 1 with a line for each difference.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "reshard/layout.h"
#include "trainer/communicator.h"
#include "trainer/optimizer.h"

namespace shardwright::trainer {
namespace {

// Odd sizes: a vocabulary and rows that no degree divides, and tensors smaller than the ranks.
reshard::ModelSpec model() {
  reshard::ModelConfig config;
  config.layers = 3;
  config.hidden = 24;
  config.heads = 6;
  config.ffn = 43;
  config.vocab = 1031;
  config.seq_len = 13;
  return reshard::build_model(config);
}

// Part of data-parallel rank `data` in the gradient of one element.
float gradient(std::uint32_t tensor, std::uint64_t element, int step, int data) {
  return static_cast<float>(
      std::sin(static_cast<double>(element % 9973) + 3.0 * tensor + 17.0 * step + 0.7 * data));
}

// Calls visit(i, g) for each element of `box`: i is its place in dense memory of the box, g its global
// row-major index.
template <typename F>
void for_elements(const ckpt::Box& box, const ckpt::Dims& global, F visit) {
  const std::uint64_t width = box.shape.size() == 2 ? box.shape[1] : 1;
  const std::uint64_t global_width = global.size() == 2 ? global[1] : 1;
  const std::uint64_t column = box.shape.size() == 2 ? box.offset[1] : 0;
  std::uint64_t i = 0;
  for (std::uint64_t r = 0; r < box.shape[0]; ++r)
    for (std::uint64_t c = 0; c < width; ++c) visit(i++, (box.offset[0] + r) * global_width + column + c);
}

class Run {
 public:
  Run(const reshard::Layout& layout, int rank, Communicators comms, std::uint64_t round_elements)
      : parameters_(model(), layout, rank),
        comms_(std::move(comms)),
        data_(parameters_, *comms_.data, stream_, round_elements),
        optimizer_(parameters_, comms_, data_, stream_, hyper(), false) {
    parameters_.initialise(11);
    data_.spread_values();
  }

  // `first` and `last`: the data-parallel ranks whose parts this one has.
  void step(int number, int first, int last) {
    parameters_.zero_gradients();
    for (const float share : {0.25F, 0.75F})
      for (std::size_t unit = parameters_.memory().units.size(); unit-- > 0;)
        backward(unit, number, first, last, share);
    optimizer_.reduce_gradients();
    std::vector<double> words{1.0};
    norm_ = optimizer_.norm(words);
    words_ = words[0];
    optimizer_.update(norm_, 1e-3, number, [](const Parameter&, const char*, const ckpt::Box&) {});
  }

  /// With all of the unit's values in place.
  const Parameter& whole(std::size_t parameter) {
    const Parameter& p = parameters_.all()[parameter];
    data_.need_values(p.unit, DataParallel::kNoUnit);
    return p;
  }
  Parameters& parameters() { return parameters_; }
  double norm() const { return norm_.grad_norm; }
  double words() const { return words_; }

 private:
  /// A micro-batch with this share of the step's gradient.
  void backward(std::size_t unit, int number, int first, int last, float share) {
    data_.begin_gradients(unit);
    for (Parameter& p : parameters_.all()) {
      if (p.unit != unit) continue;
      for_elements(p.placed.holds, p.spec->shape, [&](std::uint64_t i, std::uint64_t g) {
        for (int data = first; data < last; ++data)
          p.grad[i] += share * gradient(p.placed.tensor, g, number, data);
      });
    }
    data_.end_gradients(unit);
  }

  static Config::Optim hyper() {
    Config::Optim hyper;
    hyper.clip = 1.0;
    return hyper;
  }

  Parameters parameters_;
  Communicators comms_;
  kernels::Stream stream_{kernels::DeviceKind::cpu};
  DataParallel data_;
  Optimizer optimizer_;
  StepResult norm_;
  double words_ = 0;
};

int compare(Run& here, Run& alone, int rank, int ranks) {
  int failures = 0;
  const auto expect = [&](bool right, const std::string& what) {
    if (right) return;
    ++failures;
    fmt::print(stderr, "rank {}: {}\n", rank, what);
  };
  expect(std::abs(here.norm() - alone.norm()) < 1e-5 * alone.norm(),
         fmt::format("norm {} where {} is right", here.norm(), alone.norm()));
  expect(here.words() == ranks, "words are not summed over all ranks");
  std::vector<Parameter*> whole(here.parameters().model().tensors.size());
  for (Parameter& p : alone.parameters().all()) whole[p.placed.tensor] = &p;
  for (std::size_t at = 0; at < here.parameters().all().size(); ++at) {
    const Parameter& p = here.whole(at);
    const Parameter& right = *whole[p.placed.tensor];
    double worst = 0;
    const auto against = [&](const ckpt::Box& box, const float* mine, const float* all) {
      if (box.empty()) return;
      for_elements(box, p.spec->shape, [&](std::uint64_t i, std::uint64_t g) {
        worst = std::max(worst, std::abs(static_cast<double>(mine[i]) - all[g]));
      });
    };
    against(p.placed.holds, p.value.f32(), right.value.f32());
    against(p.optimizer_box, p.exp_avg, right.exp_avg);
    against(p.optimizer_box, p.exp_avg_sq, right.exp_avg_sq);
    expect(worst < 2e-6, fmt::format("{}: differs by {}", p.spec->name, worst));
  }
  return failures;
}

// What is said of memory before anything is allocated, and what is allocated then.
int accounts(const reshard::Layout& layout, int rank, Communicators& comms, kernels::ElementType type) {
  using kernels::MemoryUse;
  const ParameterMemory memory = parameter_memory(model(), layout, rank, type);
  const StateMemory said = state_memory(memory);
  kernels::reset_memory_peaks();
  const kernels::MemoryBytes before = kernels::memory_peaks();
  kernels::Stream stream{kernels::DeviceKind::cpu};
  Parameters parameters(model(), layout, rank, type);
  parameters.initialise(11);
  DataParallel data(parameters, *comms.data, stream);
  data.spread_values();
  const CopySum sum(parameters, comms, true);
  int failures = 0;
  const auto expect = [&](MemoryUse use, std::uint64_t bytes) {
    const auto i = static_cast<std::size_t>(use);
    const std::uint64_t found = kernels::memory_peaks()[i] - before[i];
    if (found == bytes) return;
    ++failures;
    fmt::print(stderr, "rank {}: memory of use {}: {} bytes where {} were said\n", rank, i, found, bytes);
  };
  expect(MemoryUse::param, said.param);
  expect(MemoryUse::grad, said.grad);
  expect(MemoryUse::optimizer, said.optimizer);
  expect(MemoryUse::activation, 0);
  expect(MemoryUse::buffers,
         said.buffers + passage_memory(memory, comms.data->size()).bytes() + CopySum::bytes(memory));
  // Values are the masters, as near as their type is.
  for (const Parameter& p : parameters.all()) {
    const auto count = static_cast<std::int64_t>(p.optimizer_box.elements());
    std::vector<float> wide(p.optimizer_box.elements());
    kernels::convert(stream, p.value_piece, wide.data(), count);
    for (std::size_t i = 0; i < wide.size(); ++i)
      if (std::abs(wide[i] - p.master[i]) > std::abs(p.master[i]) / 256) {
        ++failures;
        fmt::print(stderr, "rank {}: value of {} is {} where the master is {}\n", rank, p.spec->name, wide[i],
                   p.master[i]);
        break;
      }
  }
  return failures;
}

int check(const MpiRuntime& mpi, const reshard::Layout& layout, std::uint64_t round_elements) {
  Communicators comms = make_communicators(make_mpi_world(mpi), model(), layout);
  const int data = comms.data->rank();
  const int all = comms.data->size();
  int failures = 0;
  for (const kernels::ElementType type : {kernels::ElementType::f32, kernels::ElementType::bf16})
    failures += accounts(layout, mpi.rank(), comms, type);
  Run here(layout, mpi.rank(), std::move(comms), round_elements);
  Run alone(reshard::Layout{}, 0, make_communicators(make_self_communicator(), model(), {}), kRoundElements);
  for (int number = 1; number <= 3; ++number) {
    here.step(number, data, data + 1);
    alone.step(number, 0, all);
  }
  return failures + compare(here, alone, mpi.rank(), mpi.size());
}

}  // namespace
}  // namespace shardwright::trainer

int main(int, char** argv) {
  using namespace shardwright;
  const trainer::MpiRuntime mpi;
  int failures = 0;
  for (const std::uint64_t round_elements : {trainer::kRoundElements, std::uint64_t{701}})
    failures += trainer::check(mpi, reshard::parse_layout(argv[1]), round_elements);
  return failures == 0 ? 0 : 1;
}
