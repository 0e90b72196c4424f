#include "trainer/evaluate.h"

#include <fmt/format.h>

#include <cmath>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "ckpt/scan.h"
#include "kernels/device.h"
#include "reshard/reshard.h"
#include "trainer/compatibility.h"
#include "trainer/sample_loss.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {
namespace {

constexpr std::int64_t kEvalBatch = 8;

}  // namespace

EvalReport evaluate(const std::string& checkpoint, const std::vector<std::string>& files,
                    const std::string& format, int threads) {
  ckpt::Env& env = ckpt::posix_env();
  const ckpt::Checkpoint open = ckpt::Checkpoint::open(env, ckpt::resolve_checkpoint(env, checkpoint));
  const reshard::ModelSpec spec = reshard::model_of(open.manifest(), open.path());
  check_types(open.manifest(), open.path(), true);
  const std::int64_t positions = spec.config.seq_len;
  const TokenData data = TokenData::open(files, format, spec.config.vocab);
  if (data.samples(positions) == 0)
    throw Error(ErrorCode::usage,
                fmt::format("{}: {} tokens; at least {} make one sample", files.empty() ? "data" : files[0],
                            data.tokens(), positions + 1));
  kernels::set_threads(threads);
  kernels::Stream stream(kernels::DeviceKind::cpu);
  Parameters parameters(spec, reshard::Layout{}, 0);
  open.load(parameters.load_items(true), {threads, 0});
  Communicators comms = make_communicators(make_self_communicator(), spec, reshard::Layout{});
  PipelineOptions options;
  options.batch = kEvalBatch;
  options.positions = positions;
  DataParallel data_parallel(parameters, *comms.data, stream);
  data_parallel.spread_values();
  Pipeline pipeline(parameters, comms, data_parallel, stream, options);

  EvalReport report;
  report.step = open.commit().step;
  report.tokens = data.samples(positions) * positions;
  report.loss = loss_over_share(pipeline, data, positions, kEvalBatch, 0, 1, [] {}) /
                static_cast<double>(report.tokens);
  report.perplexity = std::exp(report.loss);
  return report;
}

}  // namespace shardwright::trainer
