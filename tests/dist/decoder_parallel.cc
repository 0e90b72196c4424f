// decoder_parallel LAYOUT gpt2|bloom|llama [gpipe] [sequence_parallel] [selective|full] [bf16|f16]: run by as
// many ranks as the layout has. Loss, and after all reductions every gradient that a rank's optimizer owns,
// against the float64 model on the whole batch; with recomputation, against the same without in each bit.
// What several ranks of a copy hold must be equal in each bit. Exits 1 with a line for each difference.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/trainer/decoder_reference.h"
#include "trainer/communicator.h"
#include "trainer/optimizer.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

struct Ways {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  kernels::ElementType type = kernels::ElementType::f32;

  /// Of gradients, relative to the norm of a tensor.
  double tolerance() const {
    if (type == kernels::ElementType::f32) return 1e-5;
    return type == kernels::ElementType::bf16 ? 5e-2 : 1e-2;
  }
  double loss_tolerance() const { return tolerance() / 10; }
};

class Check {
 public:
  Check(const MpiRuntime& mpi, const reshard::Layout& layout, const Ways& ways,
        const reshard::ModelSpec& spec)
      : layout_(layout),
        ways_(ways),
        rank_(mpi.rank()),
        comms_(make_communicators(make_mpi_world(mpi), spec, layout)),
        spec_(spec) {}

  /// `samples` sequences in micro-batches of `micro`, dealt to the data-parallel ranks in turn. Number of
  /// failures on this rank.
  int run(std::int64_t samples, std::int64_t micro, std::int64_t positions) {
    const TestBatch batch(spec_.config.vocab, samples, positions, true);
    const double scale = 1.0 / static_cast<double>(samples * positions);
    DecoderReference reference(spec_);
    const double expected = reference.run(batch.tokens, batch.targets, samples, positions, scale);

    Parameters parameters(spec_, layout_, rank_, ways_.type);
    fill_parameters(parameters);
    parameters.zero_gradients();
    kernels::Stream stream{kernels::DeviceKind::cpu};
    DataParallel data(parameters, *comms_.data, stream);
    data.spread_values();
    PipelineOptions options;
    options.schedule = ways_.schedule;
    options.sequence_parallel = ways_.sequence_parallel;
    options.micro_batches = samples / (micro * comms_.data->size());
    options.batch = micro;
    options.positions = positions;
    options.recompute = ways_.recompute;
    Pipeline pipeline(parameters, comms_, data, stream, options);
    const auto source = [&](std::int64_t number) {
      return batch.micro_batch((number * comms_.data->size() + comms_.data->rank()) * micro, micro);
    };
    double evaluated = pipeline.evaluate(options.micro_batches, source, [](Action) {});
    double loss = pipeline.train(source, static_cast<float>(scale), [](Action) {});
    comms_.world->all_reduce_sum(std::span<double>(&loss, 1));
    comms_.world->all_reduce_sum(std::span<double>(&evaluated, 1));
    expect(std::abs(loss - expected) <= ways_.loss_tolerance() * expected,
           fmt::format("loss {} where {} is right", loss, expected));
    expect(evaluated == loss, fmt::format("evaluated loss {}, in training {}", evaluated, loss));

    Optimizer optimizer(parameters, comms_, data, stream, {}, ways_.sequence_parallel);
    optimizer.reduce_gradients();
    for (const Parameter& p : parameters.all()) {
      const double error = gradient_error(reference, p, p.optimizer_box, p.grad_piece);
      expect(error < ways_.tolerance(),
             fmt::format("gradient of {}: relative error {}", p.spec->name, error));
    }
    expect_equal_copies(parameters);
    const double norm = optimizer.norm({}).grad_norm;
    expect(std::abs(norm - norm_of(reference.gradients)) <= ways_.tolerance() * norm,
           fmt::format("gradient norm {} where {} is right", norm, norm_of(reference.gradients)));
    if (ways_.recompute != Recompute::none) {
      const std::vector<float> gradients = pieces(parameters);
      parameters.zero_gradients();
      options.recompute = Recompute::none;
      Pipeline keeping(parameters, comms_, data, stream, options);
      double kept_loss = keeping.train(source, static_cast<float>(scale), [](Action) {});
      comms_.world->all_reduce_sum(std::span<double>(&kept_loss, 1));
      optimizer.reduce_gradients();
      expect(kept_loss == loss, fmt::format("loss {}, without recomputation {}", loss, kept_loss));
      expect(gradients == pieces(parameters), "gradients differ from those without recomputation");
    }
    return failures_;
  }

 private:
  static std::vector<float> pieces(const Parameters& parameters) {
    std::vector<float> all;
    for (const Parameter& p : parameters.all())
      all.insert(all.end(), p.grad_piece, p.grad_piece + p.optimizer_box.elements());
    return all;
  }
  void expect(bool good, const std::string& message) {
    if (good) return;
    std::fputs(fmt::format("rank {} of {}, {} with vocabulary {}: {}\n", rank_, layout_.string(),
                           spec_.config.arch, spec_.config.vocab, message)
                   .c_str(),
               stderr);
    ++failures_;
  }

  /// Each tensor from the first of its holders to the others.
  void expect_equal_copies(const Parameters& parameters) {
    for (const auto& [group, is_in] :
         {std::pair{comms_.tied.get(), &is_tied}, std::pair{comms_.kv.get(), &is_kv},
          std::pair{comms_.tensor.get(), &is_replicated}}) {
      if (group == nullptr || group->size() == 1) continue;
      for (const Parameter& p : parameters.all()) {
        if (!is_in(p)) continue;
        const auto own = std::as_bytes(std::span(p.grad_piece, p.optimizer_box.elements()));
        std::vector<std::byte> first(own.begin(), own.end());
        group->broadcast(first, 0);
        expect(std::memcmp(first.data(), own.data(), own.size()) == 0,
               p.spec->name + " differs from its copy");
      }
    }
  }
  static bool is_tied(const Parameter& p) { return p.placed.stage_copies > 1; }
  static bool is_replicated(const Parameter& p) { return p.spec->replicated(); }
  static bool is_kv(const Parameter& p) { return p.placed.copies > 1 && !is_tied(p) && !is_replicated(p); }

  reshard::Layout layout_;
  Ways ways_;
  int rank_;
  Communicators comms_;
  reshard::ModelSpec spec_;
  int failures_ = 0;
};

int run(const std::string& text, const std::string& arch, const Ways& ways) {
  MpiRuntime mpi;
  kernels::set_threads(1);
  const reshard::Layout layout = reshard::with_ranks(reshard::parse_layout(text), mpi.size());
  const std::int64_t heads = reshard::axis_size(layout, reshard::Axis::tp) == 3 ? 3 : 4;
  int failures = 0;
  const auto check = [&](const TestShape& shape, bool tied, std::int64_t samples, std::int64_t micro) {
    failures +=
        Check(mpi, layout, ways, test_model(arch.c_str(), shape, tied)).run(samples, micro, shape.seq_len);
  };
  if (arch == "llama") {
    // KV heads as many, fewer and one.
    check({4, 16 * heads, heads, heads, 43 * heads, 97, 32}, false, 12, 2);
    check({5, 8 * heads, heads, heads == 4 ? 2 : 3, 37, 33, 7}, true, 12, 1);
    check({4, 12 * heads, heads, 1, 23, 5, 9}, false, 12, 1);
  } else {
    // The second and third have uneven slices over any number of ranks, the last slices with nothing in
    // them.
    check({4, 16 * heads, heads, heads, 64 * heads, 97, 32}, true, 12, 2);
    check({4, 12, heads, heads, 23, 33, 7}, true, 12, 1);
    // (BLOOM without positions would see two kinds of rows only, and gradients that nearly cancel.)
    check({5, 12, heads, heads, 3, arch == "bloom" ? 3 : 2, 9}, false, 12, 1);
    // GPT-2: large in what is copied, the position table, and small in all else.
    check({4, 24, heads, heads, 4, 33, 128}, true, 12, 1);
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shardwright::trainer

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  using shardwright::kernels::ElementType;
  using shardwright::trainer::Recompute;
  shardwright::trainer::Ways ways;
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "gpipe") ways.schedule = shardwright::trainer::ScheduleKind::gpipe;
    if (word == "sequence_parallel") ways.sequence_parallel = true;
    if (word == "selective") ways.recompute = Recompute::selective;
    if (word == "full") ways.recompute = Recompute::full;
    if (word == "bf16") ways.type = ElementType::bf16;
    if (word == "f16") ways.type = ElementType::f16;
  }
  return shardwright::trainer::run(argv[1], argv[2], ways);
}
