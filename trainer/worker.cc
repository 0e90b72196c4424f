// One rank from its start to its exit status: everything that comes before the first step and after the last.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/saver.h"
#include "kernels/device.h"
#include "trainer/agreement.h"
#include "trainer/checkpointing.h"
#include "trainer/launcher.h"
#include "trainer/loss_scale.h"
#include "trainer/progress.h"
#include "trainer/resume.h"
#include "trainer/run_identity.h"
#include "trainer/run_log.h"
#include "trainer/run_trace.h"
#include "trainer/stop_signals.h"
#include "trainer/thread_count.h"
#include "trainer/train.h"
#include "trainer/training_loop.h"

namespace shardwright::trainer {
namespace {

// Everything that a rank needs before it may touch the run's directory, checked on all ranks.
struct Prepared {
  Config config;
  reshard::ModelSpec model;
  std::unique_ptr<TokenData> train_data;
  std::unique_ptr<TokenData> valid_data;
  std::optional<SampleOrder> order;
};

Prepared prepare(const Config& given, int ranks) {
  Prepared p;
  p.config = given;
  p.config.parallel.layout = reshard::with_ranks(given.parallel.layout, ranks);
  p.model = reshard::build_model(given.model);
  p.config.model = p.model.config;
  reshard::check_layout(p.config.parallel.layout, p.model, p.config.batch());
  const std::int64_t positions = p.config.model.seq_len;
  p.train_data = std::make_unique<TokenData>(
      TokenData::open(p.config.data.train, p.config.data.format, p.config.model.vocab));
  p.order.emplace(p.train_data->samples(positions), p.config.train.global_batch, p.config.train.seed);
  if (!p.config.data.valid.empty()) {
    p.valid_data = std::make_unique<TokenData>(
        TokenData::open(p.config.data.valid, p.config.data.format, p.config.model.vocab));
    if (p.valid_data->samples(positions) == 0)
      throw Error(ErrorCode::usage, fmt::format("data.valid: {} tokens; at least {} make one sample",
                                                p.valid_data->tokens(), positions + 1));
  }
  return p;
}

PipelineOptions pipeline_options(const Config& config) {
  PipelineOptions options;
  options.schedule = parse_schedule_kind(config.parallel.schedule);
  options.sequence_parallel = config.parallel.sequence_parallel;
  options.micro_batches = reshard::micro_batches(config.parallel.layout, config.batch());
  options.batch = config.train.micro_batch;
  options.positions = config.model.seq_len;
  options.seed = config.train.seed;
  options.recompute = recompute_named(config.parallel.recompute);
  return options;
}

std::optional<OffloadOptions> offload_options(const Config& config) {
  if (config.parallel.offload != "nvme") return std::nullopt;
  const std::string& directory = config.parallel.offload_dir;
  // Without saves beside steps nothing reads what a step overwrites.
  const bool beside = config.checkpoint.every > 0 && config.checkpoint.async;
  return OffloadOptions{.directory = directory.empty() ? config.run_dir : directory, .two_copies = beside};
}

void say_start(RunLog& log, const Start& start, const Config& config) {
  for (const ckpt::PassedOver& p : start.passed_over)
    log.line(fmt::format("passed over {}: {}", p.path, p.reason));
  if (start.fresh)
    log.line(fmt::format("no checkpoint in {}: starting fresh", config.checkpoints_dir));
  else
    log.line(fmt::format("resuming from {} after step {}", start.path, start.state.step));
  for (const Difference& d : start.comparison.permitted) log.line("changed " + d.line());
  for (const Difference& d : start.comparison.refused) log.line("accepted change of " + d.line());
  if (start.comparison.weights_only) log.line("weights only: moments start at zero");
}

void record_start(RunLog& log, const Start& start) {
  if (start.fresh) return;
  nlohmann::json passed = nlohmann::json::array();
  for (const ckpt::PassedOver& p : start.passed_over)
    passed.push_back({{"path", p.path}, {"reason", p.reason}});
  const auto dump = [](const nlohmann::json& json) {
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  log.event("resume", dump({{"step", start.state.step}, {"path", start.path}, {"passed_over", passed}}));
  for (const Difference& d : start.comparison.refused)
    log.event("change_accepted", dump({{"field", d.field}, {"stored", d.stored}, {"here", d.here}}));
}

int train(const TrainOptions& options, const Prepared& prepared, const RunIdentity& identity,
          Communicator& world, const MpiRuntime& mpi, Progress& progress) {
  ckpt::Env& env = ckpt::posix_env();
  const Config& config = prepared.config;
  const reshard::Layout& layout = config.parallel.layout;
  const int threads = threads_per_rank(mpi.local_ranks());
  kernels::set_threads(threads);

  const std::uint64_t generation = identity.generation.number;
  Communicators comms = make_communicators(make_mpi_world(mpi), prepared.model, layout);
  RunLog log(world.rank() == 0, generation);

  TrainingState initial;
  initial.seed = config.train.seed;
  initial.dtype = config.train.dtype;
  initial.loss_scale = first_loss_scale(config.train);
  initial.global_batch = config.train.global_batch;
  initial.data = world.broadcast(world.rank() == 0 ? prepared.train_data->digest() : std::string(), 0);

  progress.enter(Phase::load);
  std::optional<Parameters> own;
  together(world, [&] {
    own.emplace(prepared.model, layout, world.rank(), element_type_named(config.train.dtype),
                offload_options(config));
  });
  Parameters& parameters = *own;
  const ResumeRequest request{options.resume, options.resume_path, options.accept_changes, threads};
  const Start start = begin_from(env, world, config, request, initial, parameters);
  say_start(log, start, config);

  const std::int64_t last = std::min(config.train.steps, options.stop_after.value_or(config.train.steps));
  // A state taken from elsewhere becomes this run's own by a save, even where no step is left.
  const bool to_adopt = start.supersede_all && start.state.step == last;
  if (!start.fresh && start.state.step >= last && !to_adopt) {
    log.line(fmt::format("already at step {}: nothing to do", start.state.step));
    return 0;
  }

  const std::vector<std::string> superseded = supersede(env, world, config, start, identity.generation);
  together(world, [&] {
    if (world.rank() != 0) return;
    ckpt::replace_file(env, config.run_dir + "/config.toml", to_toml(config));
    log.open(config.run_dir);
  });
  if (!identity.supervised) {
    const nlohmann::json ranks{{"ranks", world.size()}, {"layout", layout.string()}};
    log.event("run_start");
    log.event("generation_start", ranks.dump());
  }
  record_start(log, start);
  for (const std::string& path : superseded) {
    log.path_event("superseded", path);
    log.line("superseded " + path);
  }

  kernels::Stream stream(kernels::DeviceKind::cpu);
  DataParallel data(parameters, *comms.data, stream);
  data.spread_values();
  Pipeline pipeline(parameters, comms, data, stream, pipeline_options(config));
  Optimizer optimizer(parameters, comms, data, stream, config.optim, config.parallel.sequence_parallel);

  ckpt::SaverOptions saver;
  saver.checkpoints_dir = config.checkpoints_dir;
  saver.run_dir = config.run_dir;
  saver.run = identity.generation.run;
  saver.generation = generation;
  saver.rank = world.rank();
  saver.writers = world.size();
  saver.shard.codec = config.checkpoint.codec;
  saver.shard.threads = config.checkpoint.workers > 0 ? config.checkpoint.workers : threads;
  saver.shard.priority =
      config.checkpoint.priority == "low" ? ckpt::WorkerPriority::low : ckpt::WorkerPriority::normal;
  saver.shard.verify_writes = config.checkpoint.verify_writes;
  saver.commit_deadline_s = config.checkpoint.commit_deadline_s;
  saver.keep = config.checkpoint.keep;
  saver.async = config.checkpoint.async;
  saver.lazy = true;
  Checkpointing checkpointing(env, saver, config.checkpoint, world, progress,
                              [&](const ckpt::SaveOutcome& outcome) { log.outcome(outcome); });

  // For a rollback: what this run has saved itself, whatever it started from.
  const auto last_checkpoint = [&] {
    progress.enter(Phase::load);
    const ResumeRequest newest{Resume::must, "", true, threads};
    const Start back = begin_from(env, world, config, newest, initial, parameters);
    data.spread_values();
    record_start(log, back);
    say_start(log, back, config);
    return back.state;
  };
  TrainingLoop loop({config, comms, parameters, pipeline, optimizer, *prepared.train_data, *prepared.order,
                     prepared.valid_data.get(), checkpointing, progress, log, generation, last_checkpoint},
                    start.state);
  const LoopEnd end = loop.run(last);
  progress.enter(Phase::exit);
  if (end == LoopEnd::preempted) {
    if (!identity.supervised) log.event("preempted");
    log.line(fmt::format("stopped by a signal after step {}: run again to go on", loop.state().step));
    return exit_status(ErrorCode::preempted);
  }
  if (!identity.supervised) log.event("done");
  log.line(fmt::format("done at step {} of {}  loss {:.4f}", loop.state().step, config.train.steps,
                       loop.state().loss.value_or(0)));
  return 0;
}

/// train() and what goes around it, for as long as all ranks leave in order.
int join_and_train(const TrainOptions& options, const Config& given,
                   const std::optional<Supervised>& supervised, Communicator& world, const MpiRuntime& mpi,
                   Progress& progress) {
  std::optional<Prepared> prepared;
  together(world, [&] {
    prepared = prepare(given, world.size());
    if (!options.trace.empty() && world.rank() == 0) check_trace_file(options.trace);
  });
  const RunIdentity identity = join_run(ckpt::posix_env(), world, prepared->config, supervised);
  RunTrace trace(options.trace, world, identity.generation.number, identity.supervised);
  try {
    const int status = train(options, *prepared, identity, world, mpi, progress);
    trace.finish();
    return status;
  } catch (const AgreedError&) {
    trace.finish();
    throw;
  }
}

const char* cause(const Error& error) {
  switch (error.code()) {
    case ErrorCode::nonfinite:
      return "nonfinite";
    case ErrorCode::io:
    case ErrorCode::no_space:
      return "host";
    default:
      return "exit";
  }
}

}  // namespace

int run_worker(const TrainOptions& options) {
  catch_stop_signals();
  const std::optional<Supervised> supervisor = supervised();
  const int rank = launcher_rank();
  Config config;
  std::optional<Error> config_error;
  try {
    ckpt::check_fault_variable();
    threads_asked();
    config = load_config(options.config_file, options.overrides);
    if (supervisor) redirect_to_log(config.run_dir, supervisor->generation, rank);
  } catch (const Error& error) {
    config_error = error;
  }

  ProgressOptions watch;
  watch.rank = rank;
  watch.phase_deadline_s = config.elastic.phase_deadline_s;
  watch.commit_deadline_s = config.checkpoint.commit_deadline_s;
  watch.heartbeat_s = config.elastic.heartbeat_s;
  if (supervisor) {
    watch.generation = supervisor->generation;
    watch.heartbeat_address = supervisor->heartbeat_address;
  }
  Progress progress(watch);
  const MpiRuntime mpi;
  try {
    const std::unique_ptr<Communicator> world = make_mpi_world(mpi);
    together(*world, [&] {
      if (config_error) throw *config_error;
    });
    const int status = join_and_train(options, config, supervisor, *world, mpi, progress);
    progress.finish(status);
    return status;
  } catch (const AgreedError& error) {
    // All ranks are here: one of them tells, and all leave in order.
    if (mpi.rank() == 0) {
      progress.fail(error, cause(error));
      throw Error(error);
    }
    progress.finish(exit_status(error.code()));
    return exit_status(error.code());
  } catch (const std::exception& failure) {
    const auto* known = dynamic_cast<const Error*>(&failure);
    const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
    const std::string text = memory ? kNoMemory : failure.what();
    const Error error = known != nullptr ? *known : Error(ErrorCode::io, text);
    std::fputs(fmt::format("shardwright: error: rank {}: {}\n", mpi.rank(), error.what()).c_str(), stderr);
    progress.fail(error, cause(error));
    mpi.leave(1);
  }
}

}  // namespace shardwright::trainer
