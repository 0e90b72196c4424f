#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/peak.h"
#include "trainer/bench.h"
#include "trainer/optimizer.h"
#include "trainer/pipeline.h"

namespace shardwright::trainer {
namespace {

constexpr std::int64_t kBatch = 8;
constexpr std::int64_t kPositions = 256;

reshard::ModelSpec ten_million() {
  reshard::ModelConfig config;
  config.layers = 6;
  config.hidden = 384;
  config.heads = 6;
  config.vocab = 256;
  config.seq_len = kPositions;
  return reshard::build_model(config);
}

}  // namespace

TrainBench bench_train(int threads, int steps, const std::string& dtype, const std::string& recompute) {
  kernels::set_threads(threads);
  kernels::Stream stream(kernels::DeviceKind::cpu);
  const double before = kernels::peak_matmul_gflops(stream);

  const reshard::Layout layout;
  kernels::reset_memory_peaks();
  Parameters parameters(ten_million(), layout, 0, element_type_named(dtype));
  parameters.initialise(1);
  Communicators comms = make_communicators(make_self_communicator(), parameters.model(), layout);
  PipelineOptions options;
  options.batch = kBatch;
  options.positions = kPositions;
  options.recompute = recompute_named(recompute);
  DataParallel data(parameters, *comms.data, stream);
  data.spread_values();
  Pipeline pipeline(parameters, comms, data, stream, options);
  const Config::Optim hyper;
  Optimizer optimizer(parameters, comms, data, stream, hyper, false);
  MicroBatch batch;
  batch.batch = kBatch;
  batch.positions = kPositions;
  for (std::uint64_t i = 0; i < kBatch * kPositions; ++i) {
    const kernels::PhiloxWords words = kernels::philox(1, 0, i);
    batch.tokens.push_back(static_cast<std::int32_t>(words.w[0] % 256));
    batch.targets.push_back(static_cast<std::int32_t>(words.w[1] % 256));
  }
  const auto step = [&](std::int64_t number) {
    const auto start = std::chrono::steady_clock::now();
    parameters.zero_gradients();
    pipeline.train([&](std::int64_t) { return batch; }, 1.0F / static_cast<float>(kBatch * kPositions),
                   [](Action) {});
    optimizer.reduce_gradients();
    optimizer.update(optimizer.norm({}), hyper.lr, number,
                     [](const Parameter&, const char*, const ckpt::Box&) {});
    stream.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  step(1);  // makes the plans of the matrix products
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) seconds.push_back(step(i + 2));
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];

  TrainBench result;
  result.model = "gpt2 6 x 384";
  result.dtype = dtype;
  result.layout = layout.string();
  result.step_ms = median * 1e3;
  const double tokens_per_step = static_cast<double>(kBatch * kPositions);
  result.tokens_per_s = tokens_per_step / median;
  result.gflops = flops_per_token(parameters.model(), kPositions) * tokens_per_step / median * 1e-9;
  result.memory = kernels::memory_peaks();  // before the matrices of the ceiling
  // Clocks and neighbours change: the ceiling is the best of before and after.
  result.peak_gflops = std::max(before, kernels::peak_matmul_gflops(stream));
  result.share_of_peak = result.gflops / result.peak_gflops;
  return result;
}

}  // namespace shardwright::trainer
