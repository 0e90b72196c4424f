// `shardwright train` outside a launcher: starts the ranks, and when some are lost goes on with what remains.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "ckpt/fault.h"
#include "ckpt/run_dir.h"
#include "ckpt/scan.h"
#include "trainer/auto_plan.h"
#include "trainer/generation.h"
#include "trainer/heartbeat_listener.h"
#include "trainer/launcher.h"
#include "trainer/memory_need.h"
#include "trainer/plan_request.h"
#include "trainer/records.h"
#include "trainer/recovery.h"
#include "trainer/run_identity.h"
#include "trainer/run_trace.h"
#include "trainer/scratch_dir.h"
#include "trainer/stop_requests.h"
#include "trainer/thread_count.h"
#include "trainer/train.h"

namespace shardwright::trainer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr double kStartDeadline = 300;  // as the workers' own, see Progress

/// The event's members; text that is not UTF-8 gets replacement characters.
std::string members(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

void say(const std::string& line) { std::fputs(fmt::format("shardwright: {}\n", line).c_str(), stderr); }

/// The path of this program, for its workers.
std::string own_program() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw_errno(errno, "cannot read", "/proc/self/exe");
  return std::string(path.data(), static_cast<std::size_t>(length));
}

reshard::Layout first_layout(const Config& config, const reshard::ModelSpec& model,
                             const std::optional<int>& nproc) {
  const reshard::Layout layout = reshard::with_ranks(config.parallel.layout, nproc.value_or(0));
  reshard::check_layout(layout, model, config.batch());
  return layout;
}

std::string failure(const Verdict& verdict) {
  if (verdict.rank < 0) return verdict.detail;
  return fmt::format("rank {} {} ({})", verdict.rank, verdict.lost.empty() ? "hangs" : "lost",
                     verdict.detail);
}

class Supervisor {
 public:
  explicit Supervisor(const TrainOptions& options)
      : options_(options),
        config_(load_config(options.config_file, options.overrides)),
        model_(reshard::build_model(config_.model)),
        layout_(first_layout(config_, model_, options.nproc)),
        slots_(layout_.ranks()) {
    check_memory(model_, layout_, training_shape(config_), machine_memory());
    find_mpirun();
    allow_descriptors(slots_);
    check_file_size_limit();
    if (!options.trace.empty()) check_trace_file(options.trace);
    take_run();
  }
  ~Supervisor() {
    // No rank is left, however the run ended.
    if (!options_.trace.empty() && calls_ > 0)
      join_trace_parts(options_.trace, first_generation_, last_generation_);
  }
  Supervisor(const Supervisor&) = delete;

  int run();

 private:
  void take_run();
  ckpt::Generation begin();
  GenerationEnd run_ranks(const ckpt::Generation& generation);
  std::vector<std::string> worker_command() const;
  std::vector<std::string> resume_arguments() const;
  std::optional<ckpt::Selection> newest() const {
    return ckpt::newest_valid(env_, config_.checkpoints_dir, nullptr);
  }
  void record_lost(const ckpt::Generation& generation, const Verdict& verdict);
  void record_end(const ckpt::Generation& generation, const Verdict& verdict, const GenerationEnd& end);
  /// What follows the end of a generation: how to go on, or nothing if the run ended well. Throws what ends
  /// it badly.
  std::optional<Plan> after(const ckpt::Generation& generation, const Verdict& verdict,
                            const GenerationEnd& end, int restarts);
  [[noreturn]] void give_up(const ckpt::Generation& generation, const std::string& reason,
                            const Error& error);
  std::string logs(const ckpt::Generation& generation) const {
    return fs::path(log_path(config_.run_dir, generation.number, 0)).parent_path().string();
  }
  void event(const ckpt::Generation& generation, const std::string& name,
             const json& object = json::object()) {
    records_->event(generation.number, name, members(object));
  }

  const TrainOptions options_;
  const Config config_;
  const reshard::ModelSpec model_;
  reshard::Layout layout_;
  int slots_;
  ckpt::Env& env_ = ckpt::posix_env();
  std::vector<std::unique_ptr<ckpt::RunLock>> locks_;
  std::unique_ptr<Records> records_;
  StopRequests stops_;
  HeartbeatListener listener_;
  ScratchDir session_{fs::temp_directory_path().string()};
  ScratchDir shared_memory_{env_.is_dir("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()};
  std::uint64_t first_generation_ = 0, last_generation_ = 0;  // of this call
  const std::int64_t trace_zero_us_ = trace::now_us();
  int calls_ = 0;  // generations begun by this call
};

void Supervisor::take_run() {
  env_.create_dirs(config_.run_dir);
  env_.create_dirs(config_.checkpoints_dir);
  locks_.push_back(std::make_unique<ckpt::RunLock>(env_, config_.run_dir));
  // A lock of this process on the same file would keep itself out.
  if (!fs::equivalent(config_.run_dir, config_.checkpoints_dir))
    locks_.push_back(std::make_unique<ckpt::RunLock>(env_, config_.checkpoints_dir));
  records_ = std::make_unique<Records>(config_.run_dir);
  // Ranks whose mpirun is killed become our children, so that none is left as a zombie.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

ckpt::Generation Supervisor::begin() {
  const ckpt::Generation generation = next_generation(env_, config_);
  if (calls_++ == 0) first_generation_ = generation.number;
  last_generation_ = generation.number;
  return generation;
}

std::vector<std::string> Supervisor::resume_arguments() const {
  const bool first = calls_ == 1;
  switch (options_.resume) {
    case Resume::automatic:
      return {"--resume", "auto"};
    case Resume::must:
      return {"--resume", "must"};
    case Resume::never:
      return {"--resume", first ? "never" : "auto"};
    case Resume::path:
      break;
  }
  // Until this call has saved a checkpoint of its own, it has to start from the same one again.
  const auto own = first ? std::nullopt : newest();
  if (own && own->commit.generation >= first_generation_) return {"--resume", "auto"};
  return {"--resume", options_.resume_path};
}

std::vector<std::string> Supervisor::worker_command() const {
  std::vector<std::string> command{own_program(), "train", options_.config_file};
  std::vector<Override> overrides = options_.overrides;
  const std::vector<Override> layout = layout_overrides(layout_);
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  for (const auto& [key, value] : overrides) command.insert(command.end(), {"--set", key + "=" + value});
  for (const std::string& argument : resume_arguments()) command.push_back(argument);
  if (options_.stop_after)
    command.insert(command.end(), {"--stop-after", std::to_string(*options_.stop_after)});
  if (options_.accept_changes) command.push_back("--accept-changes");
  if (!options_.trace.empty()) command.insert(command.end(), {"--trace", options_.trace});
  return command;
}

GenerationEnd Supervisor::run_ranks(const ckpt::Generation& generation) {
  GenerationOptions options;
  options.generation = generation.number;
  options.heartbeat_s = config_.elastic.heartbeat_s;
  options.start_deadline_s = std::max(kStartDeadline, config_.elastic.phase_deadline_s);
  options.mark = fmt::format("{}={}", kHeartbeatVariable, listener_.address());
  env_.create_dirs(logs(generation));
  options.mpirun = {layout_.ranks(),
                    worker_command(),
                    {{kRunVariable, generation.run},
                     {kGenerationVariable, std::to_string(generation.number)},
                     {kCallGenerationVariable, std::to_string(calls_ - 1)},
                     {kHeartbeatVariable, listener_.address()},
                     {kTraceZeroVariable, std::to_string(trace_zero_us_)}},
                    logs(generation) + "/mpirun.log",
                    session_.path(),
                    shared_memory_.path()};
  event(generation, "generation_start", {{"ranks", layout_.ranks()}, {"layout", layout_.string()}});
  GenerationEnd end = run_generation(options, listener_, stops_);
  session_.clear();
  shared_memory_.clear();
  return end;
}

void Supervisor::record_lost(const ckpt::Generation& generation, const Verdict& verdict) {
  std::vector<int> ranks = verdict.lost;
  // Ranks that hang are not gone for good, and a number that is not finite is no rank's fault, but it was
  // seen there.
  const bool seen_there = verdict.cause == EndCause::nonfinite || verdict.cause == EndCause::hang;
  if (ranks.empty() && seen_there && verdict.rank >= 0) ranks.push_back(verdict.rank);
  for (const int rank : ranks)
    event(generation, "rank_lost",
          {{"rank", rank}, {"cause", name(verdict.cause)}, {"detail", verdict.detail}});
}

void Supervisor::record_end(const ckpt::Generation& generation, const Verdict& verdict,
                            const GenerationEnd& end) {
  const auto kept = newest();
  const std::int64_t saved = kept ? static_cast<std::int64_t>(kept->commit.step) : 0;
  // Heartbeats are many short steps behind; the metrics may be lost with their disk.
  const std::int64_t done = std::max(end.steps, recorded_step(config_.run_dir, generation.number));
  event(generation, "generation_end",
        {{"cause", name(verdict.cause)},
         {"lost_steps", std::max<std::int64_t>(0, done - saved)},
         {"seconds", end.seconds}});
}

void Supervisor::give_up(const ckpt::Generation& generation, const std::string& reason, const Error& error) {
  event(generation, "given_up", {{"reason", reason}});
  throw Error(error);
}

int Supervisor::run() {
  ckpt::Generation generation = begin();
  event(generation, "run_start", {{"run", generation.run}});
  for (int restarts = 0;; ++restarts) {
    const GenerationEnd end = run_ranks(generation);
    const Verdict verdict = judge(end.observed);
    record_lost(generation, verdict);
    const std::optional<Plan> plan = after(generation, verdict, end, restarts);
    if (!plan) return verdict.cause == EndCause::done ? 0 : exit_status(ErrorCode::preempted);
    layout_ = *plan->layout;
    slots_ = plan->slots;
    const int idle = slots_ - layout_.ranks();
    say(fmt::format("{}; going on with {} rank{} ({}){}", failure(verdict), layout_.ranks(),
                    layout_.ranks() == 1 ? "" : "s", layout_.string(),
                    idle > 0 ? fmt::format("; {} that remain stay idle", idle) : ""));
    const ckpt::Generation next = begin();
    record_end(generation, verdict, end);  // now that a save which was all but committed counts
    generation = next;
  }
}

std::optional<Plan> Supervisor::after(const ckpt::Generation& generation, const Verdict& verdict,
                                      const GenerationEnd& end, int restarts) {
  const bool stopped = stops_.count() > 0;
  Plan plan;
  if (verdict.cause != EndCause::done && verdict.cause != EndCause::preempted && !verdict.error && !stopped)
    plan = plan_recovery(config_, model_, layout_, verdict, slots_, restarts);
  if (plan.layout) return plan;

  record_end(generation, verdict, end);
  if (verdict.cause == EndCause::done) {
    event(generation, "done");
    return std::nullopt;
  }
  if (verdict.cause == EndCause::preempted) {
    event(generation, "preempted");
    say("stopped by a signal; run the same command again to go on");
    return std::nullopt;
  }
  if (verdict.error) give_up(generation, verdict.detail, *verdict.error);
  std::string reason = fmt::format("{}, and {}", failure(verdict), plan.reason);
  std::string advice = "logs are in " + logs(generation);
  if (stopped) {
    reason = fmt::format("stopped by {} before its last checkpoint was saved ({})", stops_.first(),
                         stops_.count() > 1 ? "a second signal came" : failure(verdict));
    advice = "run the same command again to go on from the newest checkpoint";
  }
  give_up(generation, reason,
          Error(ErrorCode::given_up, fmt::format("{}: {}; {}", config_.run_dir, reason, advice),
                config_.run_dir));
}

}  // namespace

int run_supervisor(const TrainOptions& options) {
  ckpt::check_fault_variable();
  threads_asked();
  if (!options.plan) return Supervisor(options).run();
  const AutoPlan plan = choose_layout(options.config_file, options.overrides, options.nproc);
  say(plan.text);
  TrainOptions planned = options;
  planned.overrides.insert(planned.overrides.end(), plan.overrides.begin(), plan.overrides.end());
  return Supervisor(planned).run();
}

}  // namespace shardwright::trainer
