#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "ckpt/commit.h"
#include "ckpt/env.h"
#include "ckpt/error.h"
#include "ckpt/shard.h"
#include "ckpt/size_text.h"
#include "reshard/memory_budget.h"
#include "reshard/placement.h"
#include "trainer/bench.h"
#include "trainer/bench_state.h"
#include "trainer/mpirun_process.h"
#include "trainer/scratch_dir.h"

namespace shardwright::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

constexpr std::uint64_t kBytesOfParameter = 12;

std::uint64_t state_bytes(const reshard::ModelSpec& model) { return kBytesOfParameter * model.parameters(); }

/// The widest model that is not larger. Of few layers, so that its matrices are as large as those of the
/// models that a reshard takes long for.
reshard::ModelSpec model_of_size(const ReshardBenchOptions& options) {
  constexpr std::int64_t kHeads = 24;
  constexpr std::int64_t kWidthStep = 2 * kHeads;
  reshard::ModelConfig config;
  config.arch = "llama";
  config.layers = std::max({2, options.from.stage_count(), options.to.stage_count()});
  config.heads = kHeads;
  config.vocab = 8192;
  config.seq_len = 2048;
  config.tie_embeddings = false;
  const auto model = [&](std::int64_t width) {
    config.hidden = width * kWidthStep;
    return reshard::build_model(config);
  };
  if (state_bytes(model(1)) > options.raw_bytes)
    throw Error(ErrorCode::usage, fmt::format("--size: {} is too little for {} layers; at least {}",
                                              ckpt::size_text(options.raw_bytes), config.layers,
                                              ckpt::size_text(state_bytes(model(1)))));
  std::int64_t fits = 1, too_wide = 2;
  while (state_bytes(model(too_wide)) <= options.raw_bytes) too_wide *= 2;
  while (too_wide - fits > 1) {
    const std::int64_t middle = (fits + too_wide) / 2;
    (state_bytes(model(middle)) <= options.raw_bytes ? fits : too_wide) = middle;
  }
  return model(fits);
}

std::vector<ckpt::SaveItem> items_of(const reshard::ModelSpec& model, const reshard::Layout& layout,
                                     int rank) {
  std::vector<ckpt::SaveItem> items;
  for (const reshard::Placed& placed : reshard::placement(model, layout, rank)) {
    if (placed.writes.empty()) continue;
    const reshard::TensorSpec& tensor = model.tensors[placed.tensor];
    for (std::size_t kind = 0; kind < kStateKinds.size(); ++kind)
      items.push_back({tensor.name, kStateKinds[kind], ckpt::DType::f32, tensor.shape, placed.writes,
                       placed.chunk, std::make_shared<StateSource>(tensor.shape, placed.tensor, kind)});
  }
  return items;
}

/// A rank after the other, made chunk by chunk: memory does not grow with the model.
void make_checkpoint(ckpt::Env& env, const std::string& directory, const reshard::ModelSpec& model,
                     const reshard::Layout& layout, int threads) {
  ckpt::CommitJob job;
  job.attempt_dir = directory + ".tmp-0-0";
  job.final_dir = directory;
  job.commit.run = "00000000-0000-4000-8000-000000000000";
  job.commit.attempt = "0-0";
  job.description.training = R"({"step":0})";
  job.description.model = reshard::to_json(model.config);
  job.description.config = "{}";
  job.description.layout = reshard::to_json(layout, model);
  job.writers = layout.ranks();
  env.create_dirs(job.attempt_dir);
  ckpt::ShardOptions options;
  options.threads = threads;
  for (int rank = 0; rank < layout.ranks(); ++rank)
    ckpt::publish_part(env, job.attempt_dir,
                       ckpt::write_shard(env, job.attempt_dir, job.commit.attempt, rank, 0,
                                         items_of(model, layout, rank), options, nullptr));
  ckpt::commit_attempt(env, job);
}

/// Calls `use` with all bytes of a directory's files, a block at a time.
template <typename Use>
void each_block(ckpt::Env& env, const std::string& directory, const Use& use) {
  std::vector<std::byte> block(4u << 20);
  for (const std::string& name : env.list(directory)) {
    const auto file = env.open(directory + "/" + name);
    const std::uint64_t bytes = file->size();
    for (std::uint64_t at = 0; at < bytes; at += block.size()) {
      const auto part = std::span(block).first(std::min<std::uint64_t>(block.size(), bytes - at));
      file->read(at, part);
      use(std::span<const std::byte>(part));
    }
  }
}

/// All files of a directory as one, as `cat DIR/* | dd bs=4M conv=fsync` writes them.
void copy_durably(ckpt::Env& env, const std::string& directory, const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) throw_errno(errno, "cannot be made", path);
  const auto fail = [&](const char* what) {
    const int error = errno;
    ::close(file);
    throw_errno(error, what, path);
  };
  each_block(env, directory, [&](std::span<const std::byte> part) {
    while (!part.empty()) {
      const ssize_t written = ::write(file, part.data(), part.size());
      if (written <= 0) fail("cannot be written");
      part = part.subspan(static_cast<std::size_t>(written));
    }
  });
  if (::fsync(file) != 0) fail("cannot be made durable (fsync)");
  ::close(file);
}

/// The same by the way that shards are written, which does not leave the disk idle until the fsync. Returns
/// their bytes.
std::uint64_t copy_early(ckpt::Env& env, const std::string& directory, const std::string& path) {
  std::uint64_t written = 0;
  const auto copy = env.create(path);
  each_block(env, directory, [&](std::span<const std::byte> part) {
    copy->write(written, part);
    written += part.size();
  });
  copy->sync();
  return written;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (std::string& s : strings) all.push_back(s.data());
  all.push_back(nullptr);
  return all;
}

/// In the child, between fork and exec: system calls only.
[[noreturn]] void become(pid_t parent, const char* program, const char* output, const char* errors,
                         char* const* arguments, char* const* environment) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  const int out = ::open(output, kFlags, 0600);
  const int err = ::open(errors, kFlags, 0600);
  if (out < 0 || err < 0 || ::dup2(out, STDOUT_FILENO) < 0 || ::dup2(err, STDERR_FILENO) < 0) ::_exit(127);
  ::execve(program, arguments, environment);
  ::_exit(127);
}

/// Runs it to its end; the exit status, or 128 plus the signal. Error(deadline) after `seconds`.
int run_program(const std::string& program, std::vector<std::string> arguments, const std::string& output,
                const std::string& errors, double seconds) {
  std::vector<std::string> variables;
  for (char** entry = ::environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  variables = clean_environment(variables, {});
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> variable_pointers = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno(errno, "cannot start a process", program);
  if (pid == 0)
    become(parent, program.c_str(), output.c_str(), errors.c_str(), argument_pointers.data(),
           variable_pointers.data());
  const ProcessHandle process(pid);
  pollfd wait{process.fd(), POLLIN, 0};
  const auto start = Clock::now();
  int ready = 0;
  do {
    const double left = std::clamp(seconds - seconds_since(start), 0.0, 1e6);
    ready = ::poll(&wait, 1, static_cast<int>(1e3 * left));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (ready <= 0)
    throw Error(ErrorCode::deadline, fmt::format("{}: not done after {:.0f} s", program, seconds));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// One reshard; its report. `seconds` is filled with what the whole process took.
nlohmann::json reshard_once(ckpt::Env& env, const ReshardBenchOptions& options, const std::string& source,
                            const std::string& target, int jobs, double& seconds) {
  const std::string output = target + ".json", errors = target + ".errors";
  constexpr double kLeastRate = 1e6;  // bytes a second; slower is a hang
  const double deadline = 120 + static_cast<double>(options.raw_bytes) / kLeastRate;
  const auto start = Clock::now();
  const int status =
      run_program(options.program,
                  {"shardwright", "reshard", source, target, "--layout", options.to.string(), "--jobs",
                   std::to_string(jobs), "--max-memory", std::to_string(options.max_memory_bytes), "--json"},
                  output, errors, deadline);
  seconds = seconds_since(start);
  if (status != 0) {
    std::string said = ckpt::read_file(env, errors);
    said = said.substr(0, said.find('\n'));
    throw Error(ErrorCode::io, fmt::format("reshard: ended with status {}: {}", status,
                                           said.empty() ? "it said nothing" : said));
  }
  ckpt::remove_checkpoint_dir(env, target);
  return nlohmann::json::parse(ckpt::read_file(env, output));
}

}  // namespace

ReshardBench bench_reshard(const ReshardBenchOptions& options) {
  ckpt::Env& env = ckpt::posix_env();
  if (options.max_memory_bytes < reshard::kMinMemory)
    throw Error(ErrorCode::usage,
                fmt::format("--max-memory: {} is too little; at least {}",
                            ckpt::size_text(options.max_memory_bytes), ckpt::size_text(reshard::kMinMemory)));
  const reshard::ModelSpec model = model_of_size(options);
  reshard::check_layout(options.from, model);
  reshard::check_layout(options.to, model);
  if (!options.keep.empty() && env.exists(options.keep))
    throw Error(ErrorCode::exists,
                fmt::format("--keep: {} is there already; a name that is not", options.keep));
  const ScratchDir scratch(options.directory);
  const std::string source = options.keep.empty() ? scratch.path() + "/source" : options.keep;
  const std::string target = scratch.path() + "/target";
  make_checkpoint(env, source, model, options.from, options.jobs.back());

  ReshardBench bench;
  bench.from_json = reshard::to_json(options.from, model);
  bench.to_json = reshard::to_json(options.to, model);
  bench.model_json = reshard::to_json(model.config);
  bench.raw_bytes = state_bytes(model);
  std::vector<double> copies, early_copies, ratios, early_ratios;
  std::vector<std::vector<double>> reshards(options.jobs.size());
  nlohmann::json report;
  for (int round = 0; round < options.rounds; ++round) {
    const std::string copy = scratch.path() + "/copy";
    auto start = Clock::now();
    copy_durably(env, source, copy);
    copies.push_back(seconds_since(start));
    env.unlink(copy);
    start = Clock::now();
    bench.stored_bytes = copy_early(env, source, copy);
    early_copies.push_back(seconds_since(start));
    env.unlink(copy);
    for (std::size_t i = 0; i < options.jobs.size(); ++i) {
      double seconds = 0;
      report = reshard_once(env, options, source, target, options.jobs[i], seconds);
      reshards[i].push_back(seconds);
    }
    bench.peak_rss_bytes = std::max(bench.peak_rss_bytes, report["peak_rss_bytes"].get<std::uint64_t>());
    ratios.push_back(reshards.back().back() / copies.back());
    early_ratios.push_back(reshards.back().back() / early_copies.back());
  }
  bench.copy_s = median(copies);
  bench.copy_least_s = std::ranges::min(copies);
  bench.copy_most_s = std::ranges::max(copies);
  bench.reshard_s = median(reshards.back());
  bench.reshard_least_s = std::ranges::min(reshards.back());
  bench.reshard_most_s = std::ranges::max(reshards.back());
  bench.ratio_to_copy = median(ratios);
  bench.early_copy_s = median(early_copies);
  bench.ratio_to_early_copy = median(early_ratios);
  bench.seconds_per_gb = bench.reshard_s / (static_cast<double>(bench.stored_bytes) / 1e9);
  bench.read_per_needed = report["read_bytes"].get<double>() / report["needed_bytes"].get<double>();
  const auto chunks = [&](const char* which) { return report["chunks"][which].get<double>(); };
  bench.passed_through_share = chunks("passed_through") / (chunks("passed_through") + chunks("recoded"));
  for (std::size_t i = 0; i < options.jobs.size(); ++i)
    bench.scaling.push_back({options.jobs[i], median(reshards[i])});
  return bench;
}

}  // namespace shardwright::trainer
