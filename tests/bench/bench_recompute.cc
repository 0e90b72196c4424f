// bench_recompute [DTYPE [LENGTH...]]: a step of a GPT of 6 layers x 384 on one sequence of 256 to 4096
// tokens, on one thread, with each way of recomputation: the most memory that activations took, and processor
// seconds of forward and backward (after one that warms up). Processor time, because neighbours do not show
// in it.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void run(std::int64_t positions, const std::string& dtype, const std::string& recompute) {
  reshard::ModelConfig config;
  config.arch = "gpt2";
  config.layers = 6;
  config.hidden = 384;
  config.heads = 6;
  config.vocab = 256;
  config.seq_len = positions;
  const reshard::ModelSpec spec = reshard::build_model(config);
  const reshard::Layout layout;
  kernels::Stream stream(kernels::DeviceKind::cpu);
  Parameters parameters(spec, layout, 0, element_type_named(dtype));
  parameters.initialise(1);
  Communicators comms = make_communicators(make_self_communicator(), spec, layout);
  DataParallel data(parameters, *comms.data, stream);
  data.spread_values();
  kernels::reset_memory_peaks();
  PipelineOptions options;
  options.positions = positions;
  options.recompute = recompute_named(recompute);
  Pipeline pipeline(parameters, comms, data, stream, options);
  MicroBatch batch;
  batch.batch = 1;
  batch.positions = positions;
  for (std::int64_t i = 0; i < positions; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(i * 7 % 251));
    batch.targets.push_back(static_cast<std::int32_t>(i * 11 % 253));
  }
  const auto step = [&] {
    const double before = processor_seconds();
    pipeline.train([&](std::int64_t) { return batch; }, 1e-3F, [](Action) {});
    return processor_seconds() - before;
  };
  step();
  const double seconds = step();
  const std::size_t bytes = kernels::memory_peaks()[static_cast<std::size_t>(kernels::MemoryUse::activation)];
  std::puts(fmt::format("{:5} {} {:9} {:7.1f} MiB {:6.3f} s", positions, dtype, recompute,
                        static_cast<double>(bytes) / (1 << 20), seconds)
                .c_str());
}

}  // namespace
}  // namespace shardwright::trainer

int main(int argc, char** argv) {
  using namespace shardwright;
  const std::string dtype = argc > 1 ? argv[1] : "fp32";
  std::vector<std::int64_t> lengths;
  for (int i = 2; i < argc; ++i) lengths.push_back(std::stoll(argv[i]));
  if (lengths.empty()) lengths = {256, 512, 1024, 2048, 4096};
  kernels::set_threads(1);
  for (const std::int64_t positions : lengths)
    for (const char* recompute : {"none", "selective", "full"}) trainer::run(positions, dtype, recompute);
}
