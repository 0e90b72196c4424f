// layout_matrix MODEL sample|all, run by 8 ranks: a small model trained for six steps in every legal layout
// of up to 8 ranks, in each schedule, with and without sequence parallelism (or in a fixed sample of them),
// against the same six steps on one rank: equal fingerprints of all weights at step 0, losses within 1e-5,
// and whatever several ranks hold equal in each bit at the end. Exits 1 with a line for each difference.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/digest.h"
#include "ckpt/fingerprint.h"
#include "tests/tools/bug_case_models.h"
#include "tests/tools/temp_dir.h"
#include "trainer/communicator.h"
#include "trainer/optimizer.h"
#include "trainer/train_step.h"

namespace shardwright::trainer {
namespace {

constexpr std::int64_t kSteps = 6;
constexpr reshard::BatchShape kBatch{12, 1};
constexpr std::uint64_t kSeed = 7;
constexpr double kTolerance = 1e-5;
// In the sample, one configuration of this many; a prime, so that it meets all values of each axis.
constexpr std::size_t kSampled = 17;

/// The models of the bug cases; G1 with dropout and L2 with tied embeddings too.
std::optional<reshard::ModelConfig> model_config(const std::string& name) {
  std::map<std::string, reshard::ModelConfig> models{
      {"G1", g1_model()},           {"G1dropout", g1_model()}, {"L1", l1_model()}, {"L2", l2_model()},
      {"L2tied", tied(l2_model())}, {"U1", u1_model()},        {"T1", t1_model()}};
  models["G1dropout"].dropout = 0.1;
  const auto found = models.find(name);
  if (found == models.end()) return std::nullopt;
  return found->second;
}

struct Way {
  reshard::Layout layout;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  std::string text;
};

/// The order of ranks and the spread of layers vary along with the ways.
Way way(const reshard::ModelSpec& model, reshard::Layout layout, ScheduleKind schedule, bool spread,
        std::size_t number) {
  constexpr std::array kOrders{"tdp", "tpd", "dtp", "dpt", "ptd", "pdt"};
  layout.order = kOrders[number % kOrders.size()];
  if (number % 4 == 1) {
    layout.stages = reshard::stage_layers(layout, model);
    std::ranges::reverse(layout.stages);
  }
  return {
      layout, schedule, spread,
      fmt::format("{} {} [{}] {}{}", layout.string(), layout.order, fmt::join(layout.stages, ", "),
                  schedule == ScheduleKind::gpipe ? "gpipe" : "1f1b", spread ? " sequence parallel" : "")};
}

/// Every legal way to train the model on up to `ranks` ranks, in a fixed order.
std::vector<Way> ways(const reshard::ModelSpec& model, int ranks) {
  std::vector<Way> all;
  for (const int tp : {1, 2, 3, 4, 5}) {
    for (const int pp : {1, 2, 3, 4}) {
      for (const int dp : {1, 2, 3}) {
        for (const int zero : {0, 1}) {
          for (const int vpp : {1, 2}) {
            const reshard::Layout layout =
                reshard::parse_layout(fmt::format("t{}p{}d{}z{}v{}", tp, pp, dp, zero, vpp));
            if (layout.ranks() > ranks || !reshard::illegal(layout, model, kBatch).empty()) continue;
            for (const ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe}) {
              if (pp == 1 && schedule == ScheduleKind::gpipe) continue;
              for (const bool spread : {false, true}) {
                if (tp == 1 && spread) continue;
                all.push_back(way(model, layout, schedule, spread, all.size()));
              }
            }
          }
        }
      }
    }
  }
  return all;
}

struct Outcome {
  std::vector<std::string> fingerprints;  // of each tensor's values at step 0
  std::vector<std::string> ledger;        // what each step's sequences are, in their order in the run
  std::vector<double> losses;
  std::vector<std::string> different_copies;
};

/// Of each tensor of the model, whole, from the boxes that the ranks write.
std::vector<std::string> fingerprints(const Parameters& parameters, Communicator& world) {
  const std::size_t tensors = parameters.model().tensors.size();
  std::vector<ckpt::Fingerprint> own(tensors);
  for (const Parameter& p : parameters.all()) {
    const float* values = p.value + row_offset(p.placed.holds, p.placed.writes);
    own[p.placed.tensor] += ckpt::fingerprint(reinterpret_cast<const std::byte*>(values), sizeof(float),
                                              p.placed.writes, p.spec->shape);
  }
  std::string text(reinterpret_cast<const char*>(own.data()), tensors * sizeof own[0]);
  std::vector<ckpt::Fingerprint> sums(tensors);
  for (const std::string& other : world.all_gather(text)) {
    for (std::size_t t = 0; t < tensors; ++t) {
      ckpt::Fingerprint part;
      std::memcpy(&part, other.data() + t * sizeof part, sizeof part);
      sums[t] += part;
    }
  }
  std::vector<std::string> lines;
  for (std::size_t t = 0; t < tensors; ++t)
    lines.push_back(
        fmt::format("{} {} of {}", parameters.model().tensors[t].name, ckpt::to_hex(sums[t]), sums[t].count));
  return lines;
}

/// Names of tensors of which two ranks hold the same box with other bits.
std::vector<std::string> different_copies(const Parameters& parameters, Communicator& world) {
  std::string own;
  for (const Parameter& p : parameters.all()) {
    const ckpt::Box& box = p.placed.holds;
    own += fmt::format("{} {} {}\n", p.spec->name,
                       fmt::format("{}:{}", box.offset[0], box.offset.size() > 1 ? box.offset[1] : 0),
                       ckpt::to_hex(ckpt::fingerprint(reinterpret_cast<const std::byte*>(p.value),
                                                      sizeof(float), box, p.spec->shape)));
  }
  std::map<std::string, std::string> seen;
  std::vector<std::string> different;
  for (const std::string& text : world.all_gather(own)) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      const std::string line = text.substr(at, end - at);
      const std::size_t value = line.rfind(' ');
      const auto [place, fresh] = seen.emplace(line.substr(0, value), line.substr(value));
      if (!fresh && place->second != line.substr(value)) different.push_back(line.substr(0, value));
      at = end + 1;
    }
  }
  return different;
}

/// The sequences that all copies of the model train on in one step, by number in the run: one line.
std::string ledger(const TrainStep& step, const std::vector<std::int64_t>& samples, std::int64_t first,
                   std::int64_t micro_batches, Communicators& comms) {
  std::string own;
  // One rank of each copy tells.
  const bool tells = comms.tensor->rank() == 0 && comms.pipeline->rank() == 0;
  for (std::int64_t micro = 0; tells && micro < micro_batches; ++micro) {
    const MicroBatch m = step.micro_batch(samples, first, micro);
    for (std::int64_t i = 0; i < m.batch; ++i) {
      const std::span row = std::span(m.tokens).subspan(static_cast<std::size_t>(i * m.positions),
                                                        static_cast<std::size_t>(m.positions));
      own += fmt::format("{:08} {:016x}\n", m.first_sequence + static_cast<std::uint64_t>(i),
                         ckpt::xxh3_64(std::as_bytes(row)));
    }
  }
  std::vector<std::string> rows;
  for (const std::string& text : comms.world->all_gather(own)) {
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
      rows.push_back(text.substr(at, text.find('\n', at) - at));
  }
  std::ranges::sort(rows);
  return fmt::format("{}", fmt::join(rows, ", "));
}

/// Six steps on the ranks of `world`.
Outcome train(const reshard::ModelSpec& model, const Way& way, std::unique_ptr<Communicator> world,
              const TokenData& data, Progress& progress) {
  const std::int64_t positions = model.config.seq_len;
  const int rank = world->rank();
  kernels::Stream stream{kernels::DeviceKind::cpu};
  Parameters parameters(model, way.layout, rank);
  parameters.initialise(kSeed);
  Communicators comms = make_communicators(std::move(world), model, way.layout);
  Outcome outcome;
  outcome.fingerprints = fingerprints(parameters, *comms.world);

  PipelineOptions options;
  options.schedule = way.schedule;
  options.sequence_parallel = way.sequence_parallel;
  options.micro_batches = reshard::micro_batches(way.layout, kBatch);
  options.batch = kBatch.micro_batch;
  options.positions = positions;
  options.seed = kSeed;
  Pipeline pipeline(parameters, comms, stream, options);
  Config::Optim hyper;
  hyper.lr = 3e-3;
  Optimizer optimizer(parameters, comms, stream, hyper, way.sequence_parallel);
  TrainStep step(pipeline, data, positions, kBatch, comms.data->rank(), comms.data->size());
  const SampleOrder order(data.samples(positions), kBatch.global_batch, kSeed);
  for (std::int64_t number = 1; number <= kSteps; ++number) {
    const std::int64_t first = (number - 1) * kBatch.global_batch;
    const std::vector<std::int64_t> samples = samples_of_step(order, first, kBatch.global_batch);
    outcome.ledger.push_back(ledger(step, samples, first, options.micro_batches, comms));
    parameters.zero_gradients();
    std::array<double, 1> loss{step.run(samples, first, rank, number, progress)};
    optimizer.reduce_gradients();
    const StepResult norm = optimizer.norm(loss);
    optimizer.update(norm, hyper.lr, number, [](const Parameter&, const char*, const ckpt::Box&) {});
    outcome.losses.push_back(loss[0] / static_cast<double>(kBatch.global_batch * positions));
  }
  outcome.different_copies = different_copies(parameters, *comms.world);
  return outcome;
}

std::vector<std::string> differences(const Outcome& found, const Outcome& right) {
  std::vector<std::string> lines;
  for (std::size_t t = 0; t < right.fingerprints.size(); ++t)
    if (found.fingerprints[t] != right.fingerprints[t])
      lines.push_back(
          fmt::format("step 0: {} where {} is right", found.fingerprints[t], right.fingerprints[t]));
  for (std::size_t i = 0; i < right.ledger.size(); ++i)
    if (found.ledger[i] != right.ledger[i])
      lines.push_back(
          fmt::format("step {}: sequences {} where {} are right", i + 1, found.ledger[i], right.ledger[i]));
  for (std::size_t i = 0; i < right.losses.size(); ++i)
    if (!(std::abs(found.losses[i] - right.losses[i]) <= kTolerance * right.losses[i]))
      lines.push_back(
          fmt::format("step {}: loss {} where {} is right", i + 1, found.losses[i], right.losses[i]));
  for (const std::string& copy : found.different_copies) lines.push_back("copies differ: " + copy);
  return lines;
}

/// Tokens with some order in them, so that a loss falls.
std::string write_tokens(const std::string& path, std::int64_t vocab) {
  std::ofstream file(path, std::ios::binary);
  std::uint64_t token = 1;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const bool jump = kernels::philox(kSeed, 1, i).w[0] % 4 == 0;
    token = (jump ? kernels::philox(kSeed, 2, i).w[0] : token * 5 + 1) % static_cast<std::uint64_t>(vocab);
    const std::array<char, 2> bytes{static_cast<char>(token & 0xFF), static_cast<char>(token >> 8)};
    file.write(bytes.data(), bytes.size());
  }
  return path;
}

int run(const std::string& name, bool all) {
  ProgressOptions watch;
  watch.phase_deadline_s = 300;
  Progress progress(watch);
  const MpiRuntime mpi;
  kernels::set_threads(1);
  const auto config = model_config(name);
  if (!config) return 2;
  const reshard::ModelSpec model = reshard::build_model(*config);
  const std::unique_ptr<Communicator> world = make_mpi_world(mpi);
  const TempDir directory;
  const TokenData data =
      TokenData::open({write_tokens(directory / "tokens.bin", config->vocab)}, "u16", config->vocab);

  const Way alone{reshard::Layout{}, ScheduleKind::one_f_one_b, false, "alone"};
  const Outcome right = train(model, alone, make_self_communicator(), data, progress);
  int failures = right.losses.back() < right.losses.front() ? 0 : 1;
  std::size_t tried = 0;
  const std::vector<Way> list = ways(model, mpi.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!all && i % kSampled != (name.size() + 3) % kSampled && i + 1 != list.size()) continue;
    const Way& way = list[i];
    ++tried;
    std::unique_ptr<Communicator> part = world->split(mpi.rank() < way.layout.ranks() ? 0 : -1, mpi.rank());
    if (part != nullptr) {
      for (const std::string& line : differences(train(model, way, std::move(part), data, progress), right)) {
        std::fputs(fmt::format("{} {}: rank {}: {}\n", name, way.text, mpi.rank(), line).c_str(), stderr);
        ++failures;
      }
    }
    progress.advance();
  }
  if (mpi.rank() == 0) fmt::print("{}: {} of {} ways to train\n", name, tried, list.size());
  std::vector<std::int64_t> most{failures};
  world->all_reduce_max(std::span(most));
  return most[0] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shardwright::trainer

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return shardwright::trainer::run(argv[1], std::string(argv[2]) == "all");
}
