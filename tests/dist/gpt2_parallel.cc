// gpt2_parallel LAYOUT: run by as many ranks as the layout has. Loss, every gradient that a rank holds, and
// after the data-parallel reduction the gradient that its optimizer owns, against the float64 model on the
// whole batch. What several tensor-parallel ranks hold must be equal in each bit. Exits 1 with a line for
// each difference.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/unit/trainer/gpt2_reference.h"
#include "trainer/communicator.h"
#include "trainer/model.h"
#include "trainer/optimizer.h"

namespace shardwright::trainer {
namespace {

constexpr double kTolerance = 1e-5;

class Check {
 public:
  Check(const MpiRuntime& mpi, const reshard::Layout& layout, const reshard::ModelSpec& spec)
      : layout_(layout), rank_(mpi.rank()), comms_(make_mpi_communicators(mpi, layout)), spec_(spec) {}

  /// `samples` sequences in micro-batches of `micro`, dealt to the data-parallel ranks in turn. Number of
  /// failures on this rank.
  int run(std::int64_t samples, std::int64_t micro, std::int64_t positions) {
    const TestBatch batch(spec_.config.vocab, samples, positions, true);
    const double scale = 1.0 / static_cast<double>(samples * positions);
    Gpt2Reference reference(spec_);
    const double expected = reference.run(batch.tokens, batch.targets, samples, positions, scale);

    Parameters parameters(spec_, layout_, rank_);
    fill_parameters(parameters);
    parameters.zero_gradients();
    kernels::Stream stream{kernels::DeviceKind::cpu};
    const auto model = make_gpt2(parameters, *comms_.tensor, stream, micro, positions);
    double loss = 0;
    for (std::int64_t first = comms_.data->rank() * micro; first < samples;
         first += micro * comms_.data->size()) {
      loss += model->forward(batch.part(batch.tokens, first, micro), batch.part(batch.targets, first, micro),
                             micro, positions);
      model->backward(static_cast<float>(scale));
    }
    expect_same_bits("the loss", &loss, sizeof loss);
    comms_.data->all_reduce_sum(std::span<double>(&loss, 1));
    expect(std::abs(loss - expected) <= 1e-6 * expected,
           fmt::format("loss {} where {} is right", loss, expected));
    for (const Parameter& p : parameters.all()) {
      if (p.placed.copies > 1)
        expect_same_bits(p.spec->name, p.grad, p.placed.holds.elements() * sizeof(float));
    }

    Optimizer optimizer(parameters, comms_, stream, {});
    optimizer.reduce_gradients();
    for (const Parameter& p : parameters.all()) {
      const double error = gradient_error(reference, p, p.optimizer_box, p.grad + p.optimizer_offset);
      expect(error < kTolerance, fmt::format("gradient of {}: relative error {}", p.spec->name, error));
      if (p.placed.copies > 1) {
        expect_same_bits("reduced " + p.spec->name, p.grad + p.optimizer_offset,
                         p.optimizer_box.elements() * sizeof(float));
      }
    }
    const double norm = optimizer.norm({}).grad_norm;
    expect(std::abs(norm - norm_of(reference.gradients)) <= kTolerance * norm,
           fmt::format("gradient norm {} where {} is right", norm, norm_of(reference.gradients)));
    return failures_;
  }

 private:
  void expect(bool good, const std::string& message) {
    if (good) return;
    fmt::print(stderr, "rank {} of {}, vocabulary {}: {}\n", rank_, layout_.string(), spec_.config.vocab,
               message);
    ++failures_;
  }

  void expect_same_bits(const std::string& what, const void* data, std::size_t bytes) {
    std::vector<std::byte> first(bytes);
    std::memcpy(first.data(), data, bytes);
    comms_.tensor->broadcast(first, 0);
    expect(std::memcmp(first.data(), data, bytes) == 0,
           what + " differs from that of tensor-parallel rank 0");
  }

  reshard::Layout layout_;
  int rank_;
  Communicators comms_;
  reshard::ModelSpec spec_;
  int failures_ = 0;
};

int run(const std::string& text) {
  MpiRuntime mpi;
  kernels::set_threads(1);
  const reshard::Layout layout = reshard::with_ranks(reshard::parse_layout(text), mpi.size());
  const std::int64_t heads = reshard::axis_size(layout, reshard::Axis::tp) == 3 ? 3 : 4;
  int failures = 0;
  // The second has uneven slices over any number of ranks, the last slices with nothing in
  // them.
  failures += Check(mpi, layout, test_model(4, 16 * heads, heads, 64 * heads, 97, 32)).run(6, 2, 32);
  failures += Check(mpi, layout, test_model(2, 12, heads, 23, 33, 7)).run(12, 2, 7);
  failures += Check(mpi, layout, test_model(2, 12, heads, 3, 2, 9)).run(6, 1, 9);
  // Large in what is copied, the position table, and small in all else.
  failures += Check(mpi, layout, test_model(1, 24, heads, 4, 33, 128)).run(6, 1, 128);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shardwright::trainer

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return shardwright::trainer::run(argv[1]);
}
