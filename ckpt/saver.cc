#include "ckpt/saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/commit.h"
#include "ckpt/documents.h"
#include "ckpt/fault.h"
#include "ckpt/replicas.h"
#include "ckpt/retention.h"
#include "ckpt/run_dir.h"
#include "ckpt/shard_plan.h"
#include "ckpt/snapshot.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void failed_by(SaveOutcome& outcome, const std::exception& failure) {
  const auto* known = dynamic_cast<const Error*>(&failure);
  outcome.code = known != nullptr ? known->code() : ErrorCode::io;
  const bool memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
  outcome.reason = memory ? "not enough memory for a copy of what is saved" : failure.what();
}

/// A save on its way: all that it needs, captured at the call.
struct Job {
  SaveOutcome outcome;
  std::shared_ptr<Snapshot> snapshot;  // of items, then replicas; none if taking it failed
  std::size_t items = 0;
  Description description;
  Clock::time_point start;
};

}  // namespace

struct Saver::State {
  State(Env& e, SaverOptions o) : env(e), options(std::move(o)) {}

  std::string attempt_dir(std::uint64_t step, const std::string& attempt) const {
    return options.checkpoints_dir + "/" + step_dir_name(step) + ".tmp-" + attempt;
  }

  /// Where an attempt is moved to before it is removed.
  std::string trash_dir(std::uint64_t step, const std::string& attempt) const {
    return options.checkpoints_dir + "/" + step_dir_name(step) + ".trash-" + attempt;
  }

  bool still_mine() const {
    const Generation now = read_generation(env, options.run_dir);
    return now.number == options.generation && now.run == options.run;
  }

  SaveOutcome begin(std::uint64_t step, std::uint64_t save_number) const {
    SaveOutcome outcome;
    outcome.step = step;
    outcome.save_number = save_number;
    outcome.generation = options.generation;
    outcome.attempt = fmt::format("{}-{}", options.generation, save_number);
    outcome.path = options.checkpoints_dir + "/" + step_dir_name(step);
    return outcome;
  }

  /// Writes, publishes, and on rank 0 commits and prunes.
  void run(Job& job) {
    SaveOutcome& outcome = job.outcome;
    outcome.queue_s = seconds_since(job.start) - 1e-3 * outcome.snapshot_ms;
    const trace::Span span("save", "step", static_cast<std::int64_t>(outcome.step));
    const std::string directory = attempt_dir(outcome.step, outcome.attempt);
    bool created = false, published = false;
    try {
      if (!job.snapshot) throw Error(outcome.code, outcome.reason);
      if (given_up(outcome)) throw Error(ErrorCode::peer, directory + ": comes too late");
      env.create_dirs(directory);
      created = true;
      write(job, directory);
      published = true;
      if (options.rank == 0) commit(job, directory);
      outcome.result = SaveResult::committed;
    } catch (const std::exception& e) {
      failed_by(outcome, e);
      const std::lock_guard lock(mutex);
      if (!cancel_reason.empty()) outcome.reason = cancel_reason;
    }
    if (outcome.result == SaveResult::committed) {
      if (options.rank == 0) follow(outcome);
    } else if (outcome.code == ErrorCode::exists) {
      // The attempt is that of another process of this rank, which goes on with it.
    } else if (options.rank == 0) {
      if (options.gives_up_alone) give_up(outcome);
    } else if (!published) {
      if ((created && gone(directory)) || given_up(outcome))
        given_up_meanwhile(outcome, directory);
      else
        tell_failure(outcome, directory);
    }
    outcome.total_s = seconds_since(job.start);
    if (job.snapshot) outcome.copied_bytes = job.snapshot->copied_bytes();
    job.snapshot.reset();
  }

  void write(Job& job, const std::string& directory) {
    SaveOutcome& outcome = job.outcome;
    ShardStats stats;
    const std::span<const SaveItem> all = job.snapshot->items();
    // First what is read fastest: the optimizer then finds it read, and need not copy it.
    const auto start = Clock::now();
    std::vector<ReplicaRecord> replicas =
        fingerprint_replicas(all.subspan(job.items), options.shard.threads, &signals.cancel);
    outcome.replicas_s = seconds_since(start);
    Part part = write_shard(env, directory, outcome.attempt, options.rank, outcome.step, all.first(job.items),
                            options.shard, &stats, &signals);
    part.replicas = std::move(replicas);
    outcome.raw_bytes = stats.raw_bytes;
    outcome.stored_bytes = stats.stored_bytes;
    outcome.encode_s = stats.encode_s;
    outcome.verify_s = stats.verify_s;
    outcome.chunk_wait_s = stats.chunk_wait_s;
    outcome.write_s = stats.write_s;
    outcome.fsync_s = stats.fsync_s;
    outcome.peak_host_bytes = stats.peak_host_bytes + job.snapshot->host_bytes();
    const std::string part_path = directory + "/" + part_name(options.rank);
    if (env.exists(part_path))
      throw Error(
          ErrorCode::exists,
          fmt::format("{}: exists already; another process writes as rank {} too, one for each rank is right",
                      part_path, options.rank),
          part_path);
    const trace::Span span("publish part");
    publish_part(env, directory, part);
  }

  void commit(Job& job, const std::string& directory) {
    const trace::Span span("commit");
    const auto start = Clock::now();
    CommitJob commit;
    commit.attempt_dir = directory;
    commit.final_dir = job.outcome.path;
    commit.commit.run = options.run;
    commit.commit.generation = options.generation;
    commit.commit.attempt = job.outcome.attempt;
    commit.commit.step = job.outcome.step;
    commit.description = std::move(job.description);
    commit.writers = options.writers;
    commit.deadline_s = std::max(
        0.0, std::min(options.commit_deadline_s, options.save_deadline_s - seconds_since(job.start)));
    commit.still_mine = [this] { return still_mine(); };
    commit.supersede_suffix = fmt::format(".superseded-{}", options.generation);
    CommitStats stats;
    commit_attempt(env, commit, &signals.cancel, &stats);
    job.outcome.parts_wait_s = stats.parts_wait_s;
    job.outcome.commit_s = seconds_since(start);
  }

  bool gone(const std::string& path) {
    try {
      return !env.exists(path);
    } catch (const std::exception&) {
      return false;  // what fails here fails again where it is reported
    }
  }

  /// Rank 0 removed the attempt while this rank was writing: to make it again would leave it there.
  static void given_up_meanwhile(SaveOutcome& outcome, const std::string& directory) {
    outcome.code = ErrorCode::peer;
    outcome.reason =
        directory + ": rank 0 gave the save up; its own error says why (here: " + outcome.reason + ")";
  }

  bool given_up(const SaveOutcome& outcome) {
    if (!options.gives_up_alone || options.rank == 0) return false;
    try {
      return env.exists(trash_dir(outcome.step, outcome.attempt));
    } catch (const std::exception&) {
      return false;  // as above
    }
  }

  /// What rank 0 does about a failed attempt where nobody else tells the others. They look for it, so that it
  /// goes is enough for those that have begun; for one that has not, something has to stay in its place.
  void give_up(SaveOutcome& outcome) {
    try {
      discard(outcome.attempt, outcome.step);
      env.create_dirs(trash_dir(outcome.step, outcome.attempt));
      abandoned.emplace_back(outcome.step, outcome.attempt);
    } catch (const std::exception& e) {
      outcome.reason += fmt::format(" (and what was written could not be removed: {})", e.what());
    }
  }

  /// After a commit, for which all ranks have ended what came before.
  void remove_abandoned() {
    for (const auto& [step, attempt] : std::exchange(abandoned, {}))
      for (const std::string& directory : {attempt_dir(step, attempt), trash_dir(step, attempt)})
        remove_checkpoint_dir(env, directory);
  }

  void discard(const std::string& attempt, std::uint64_t step) {
    const std::string directory = attempt_dir(step, attempt);
    if (!env.exists(directory)) return;
    if (options.rank != 0) {
      for (const std::string& name : {part_name(options.rank), shard_name(options.rank)})
        if (!env.is_dir(directory + "/" + name))
          env.unlink(directory + "/" + name);  // else rank 0's to remove
      return;
    }
    if (!still_mine())
      throw Error(ErrorCode::busy,
                  directory + ": another generation of this run took over; it removes this itself",
                  directory);
    // Moved aside first, so that a rank that is late finds no attempt to add to.
    const std::string trash = free_name(env, trash_dir(step, attempt));
    env.rename(directory, trash);
    remove_checkpoint_dir(env, trash);
  }

  /// A failing rank says so in place of its part, so that rank 0 need not wait for the deadline. If even that
  /// fails, its caller may tell rank 0's (cancel), else the deadline it is; the outcome carries the first
  /// reason.
  void tell_failure(SaveOutcome& outcome, const std::string& directory) {
    Part part;
    part.attempt = outcome.attempt;
    part.rank = options.rank;
    part.step = outcome.step;
    part.error = outcome.reason;
    try {
      env.create_dirs(directory);
      publish_part(env, directory, part);
    } catch (const std::exception& e) {
      outcome.reason += fmt::format(" (and rank 0 could not be told: {})", e.what());
    }
  }

  /// What comes after the commit point. The checkpoint stands whatever happens here, so a failure is a
  /// remark.
  void follow(SaveOutcome& outcome) {
    try {
      write_latest(env, options.checkpoints_dir, step_dir_name(outcome.step));
      remove_abandoned();
      if (options.keep == 0) return;
      const trace::Span span("prune");
      RetentionJob job;
      job.checkpoints_dir = options.checkpoints_dir;
      job.keep = options.keep;
      job.attempt = outcome.attempt;
      job.still_mine = [this] { return still_mine(); };
      outcome.retired = retire(env, job);
    } catch (const std::exception& e) {
      outcome.reason = fmt::format("committed, but what follows failed: {}", e.what());
    }
  }

  void finish(Job job) {
    const std::lock_guard lock(mutex);
    job.outcome.stall_ms += waited_ms;
    job.outcome.before_write_ms = waited_ms;
    outcomes.push_back(std::move(job.outcome));
    snapshot.reset();
    running = false;
    changed.notify_all();
  }

  void loop() {
    trace::name_thread("save");
    for (;;) {
      std::optional<Job> job;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return pending.has_value() || stop; });
        if (!pending) return;
        job = std::exchange(pending, std::nullopt);
      }
      run(*job);
      finish(*std::move(job));
    }
  }

  Env& env;
  const SaverOptions options;
  std::vector<std::pair<std::uint64_t, std::string>> abandoned;  // steps and attempts, of the saving thread
  SaveSignals signals;
  CopyBuffer copies;  // of the running save

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::optional<Job> pending;
  bool running = false;
  bool stop = false;
  std::shared_ptr<Snapshot> snapshot;  // of the running save
  double waited_ms = 0;                // by before_write(), for the running save
  std::vector<SaveOutcome> outcomes;
  std::string cancel_reason;            // of the running save; empty: not cancelled by the caller
  std::optional<std::uint64_t> window;  // the step of the last save, until before_write() is called after it
  std::jthread thread;
};

Saver::Saver(Env& env, SaverOptions options) : state_(std::make_unique<State>(env, std::move(options))) {
  if (state_->options.async) state_->thread = std::jthread([state = state_.get()] { state->loop(); });
}

Saver::~Saver() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->signals.cancel = true;
    state_->stop = true;
    state_->changed.notify_all();
  }
  if (state_->thread.joinable()) state_->thread.join();
}

void Saver::start(SaveRequest request) {
  State& s = *state_;
  const trace::Span span("snapshot", "step", static_cast<std::int64_t>(request.step));
  Job job;
  job.start = Clock::now();
  job.outcome = s.begin(request.step, request.save_number);
  job.description = std::move(request.description);
  {
    const std::lock_guard lock(s.mutex);
    if (s.running)
      throw Error(ErrorCode::busy,
                  job.outcome.path + ": the previous save is still running; wait for it or skip");
    s.running = true;
    s.signals.cancel = false;
    s.signals.hurry = !s.options.async;
    s.window = request.step;
    s.cancel_reason.clear();
    s.waited_ms = 0;
  }
  try {
    fault_point("save.begin", s.options.rank, request.step);
    if (s.options.rank == 0) check_documents(job.description, request.step);
    job.items = request.items.size();
    std::vector<SaveItem> all = std::move(request.items);
    all.insert(all.end(), request.replicas.begin(), request.replicas.end());
    plan_shard(all);  // nothing is read by way of an item that cannot be written
    job.snapshot = s.options.lazy || request.lazy ? lazy_snapshot(all)
                                                  : copy_snapshot(all, s.options.shard.threads, s.copies);
  } catch (const std::exception& e) {
    failed_by(job.outcome, e);
  }
  job.outcome.snapshot_ms = 1e3 * seconds_since(job.start);
  if (!s.options.async) {
    s.run(job);
    job.outcome.stall_ms = 1e3 * job.outcome.total_s;
    s.finish(std::move(job));
    return;
  }
  job.outcome.stall_ms = job.outcome.snapshot_ms;
  const std::lock_guard lock(s.mutex);
  s.snapshot = job.snapshot;
  s.pending = std::move(job);
  s.changed.notify_all();
}

void Saver::let_go() {
  std::shared_ptr<Snapshot> snapshot;
  {
    const std::lock_guard lock(state_->mutex);
    snapshot = state_->snapshot;
  }
  if (snapshot) snapshot->let_go();
}

void Saver::skip(std::uint64_t step, std::uint64_t save_number, const std::string& reason) {
  SaveOutcome outcome = state_->begin(step, save_number);
  outcome.result = SaveResult::skipped;
  outcome.reason = reason;
  const std::lock_guard lock(state_->mutex);
  state_->outcomes.push_back(std::move(outcome));
}

bool Saver::busy() const {
  const std::lock_guard lock(state_->mutex);
  return state_->running;
}

void Saver::hurry() { state_->signals.hurry = true; }

void Saver::wait(double seconds) {
  hurry();
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                [this] { return !state_->running; }))
    throw Error(ErrorCode::deadline,
                fmt::format("rank {}: its save is still running after {} s", state_->options.rank, seconds),
                state_->options.checkpoints_dir);
}

void Saver::cancel(const std::string& reason) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->running) return;
  state_->cancel_reason = reason;
  state_->signals.cancel = true;
}

void Saver::before_write(const std::string& tensor, const std::string& kind, const Box& box) {
  std::shared_ptr<Snapshot> snapshot;
  std::optional<std::uint64_t> window;
  {
    const std::lock_guard lock(state_->mutex);
    snapshot = state_->snapshot;
    window = std::exchange(state_->window, std::nullopt);
  }
  if (window) {
    try {
      fault_point("save.window", state_->options.rank, *window);
    } catch (const Error& e) {
      cancel(e.what());
    }
  }
  if (!snapshot) return;
  const trace::Span span("before_write");
  const auto start = Clock::now();
  snapshot->before_write(tensor, kind, box);
  const std::lock_guard lock(state_->mutex);
  state_->waited_ms += 1e3 * seconds_since(start);
}

std::vector<SaveOutcome> Saver::take_outcomes() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->outcomes, {});
}

bool Saver::given_up(const std::string& attempt, std::uint64_t step) const {
  const State& s = *state_;
  return !s.env.exists(s.attempt_dir(step, attempt)) || s.env.exists(s.trash_dir(step, attempt));
}

void Saver::discard(const std::string& attempt, std::uint64_t step) { state_->discard(attempt, step); }

}  // namespace shardwright::ckpt
