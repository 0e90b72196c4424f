// bench_pipeline LAYOUT [gpt2|llama [HIDDEN]]: run by as many ranks as the layout has. Time of a training step of a model of
// 8 layers for each schedule, receives started right before they are needed or one computation earlier.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "trainer/communicator.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

constexpr std::int64_t kPositions = 128;
constexpr std::int64_t kMicroBatches = 8;
constexpr int kSteps = 9;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int run(const std::string& text, const std::string& arch, std::int64_t hidden) {
  const MpiRuntime mpi;
  kernels::set_threads(1);
  const reshard::Layout layout = reshard::parse_layout(text);
  reshard::ModelConfig config;
  config.arch = arch;
  config.layers = 8;
  config.hidden = hidden;
  config.heads = 8;
  config.vocab = 512;
  config.seq_len = kPositions;
  config.tie_embeddings = false;
  const reshard::ModelSpec model = reshard::build_model(config);
  Communicators comms = make_communicators(make_mpi_world(mpi), model, layout);
  Parameters parameters(model, layout, mpi.rank());
  parameters.initialise(1);
  kernels::Stream stream{kernels::DeviceKind::cpu};
  DataParallel data(parameters, *comms.data, stream);
  data.spread_values();
  MicroBatch batch;
  batch.batch = 1;
  batch.positions = kPositions;
  for (std::int32_t i = 0; i < kPositions; ++i) {
    batch.tokens.push_back(i);
    batch.targets.push_back(i + 1);
  }
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe}) {
    for (const bool early : {false, true}) {
      PipelineOptions options;
      options.schedule = kind;
      options.early_receives = early;
      options.micro_batches = kMicroBatches;
      options.positions = kPositions;
      Pipeline pipeline(parameters, comms, data, stream, options);
      std::vector<double> ms;
      for (int step = 0; step <= kSteps; ++step) {
        parameters.zero_gradients();
        comms.world->barrier();
        const double start = now_s();
        pipeline.train([&](std::int64_t) { return batch; }, 1e-3F, [](Action) {});
        comms.world->barrier();
        if (step > 0) ms.push_back(1e3 * (now_s() - start));
      }
      std::ranges::sort(ms);
      if (mpi.rank() == 0)
        fmt::print("{} {} {:>5} receives {:>8}: median {:.1f} ms a step, best {:.1f}\n", arch, layout.string(),
                   kind == ScheduleKind::gpipe ? "gpipe" : "1f1b", early ? "early" : "in place",
                   ms[ms.size() / 2], ms.front());
    }
  }
  return 0;
}

}  // namespace
}  // namespace shardwright::trainer

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return shardwright::trainer::run(argv[1], argc > 2 ? argv[2] : "gpt2", argc > 3 ? std::atoll(argv[3]) : 384);
}
