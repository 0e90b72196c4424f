#include "ckpt/saver.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/retention.h"
#include "ckpt/run_dir.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A save on its way: all that it needs, captured at the call.
struct Job {
  SaveOutcome outcome;
  std::shared_ptr<Snapshot> snapshot;  // none if taking it failed
  Description description;
  Clock::time_point start;
};

}  // namespace

struct Saver::State {
  State(Env& e, SaverOptions o) : env(e), options(std::move(o)) {}

  std::string attempt_dir(std::uint64_t step, const std::string& attempt) const {
    return options.checkpoints_dir + "/" + step_dir_name(step) + ".tmp-" + attempt;
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
    const std::string directory = attempt_dir(outcome.step, outcome.attempt);
    bool published = false;
    try {
      if (!job.snapshot) throw Error(ErrorCode::io, outcome.reason);
      write(job, directory);
      published = true;
      if (options.rank == 0) commit(job, directory);
      outcome.result = SaveResult::committed;
    } catch (const std::exception& e) {
      const std::lock_guard lock(mutex);
      outcome.reason = cancel_reason.empty() ? e.what() : cancel_reason;
    }
    if (outcome.result == SaveResult::committed) {
      if (options.rank == 0) follow(outcome);
    } else if (options.rank != 0 && !published) {
      tell_failure(outcome, directory);
    }
    outcome.total_s = seconds_since(job.start);
    job.snapshot.reset();
  }

  void write(Job& job, const std::string& directory) {
    SaveOutcome& outcome = job.outcome;
    env.create_dirs(directory);
    ShardStats stats;
    const Part part = write_shard(env, directory, outcome.attempt, options.rank, outcome.step,
                                  job.snapshot->items(), options.shard, &stats, &cancel);
    outcome.raw_bytes = stats.raw_bytes;
    outcome.stored_bytes = stats.stored_bytes;
    outcome.encode_s = stats.encode_s;
    outcome.write_s = stats.write_s;
    outcome.fsync_s = stats.fsync_s;
    outcome.peak_host_bytes = stats.peak_host_bytes + job.snapshot->host_bytes();
    publish_part(env, directory, part);
  }

  void commit(Job& job, const std::string& directory) {
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
    commit.deadline_s = options.commit_deadline_s;
    commit.still_mine = [this] { return still_mine(); };
    commit.supersede_suffix = fmt::format(".superseded-{}", options.generation);
    commit_attempt(env, commit, &cancel);
    job.outcome.commit_s = seconds_since(start);
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
      if (options.keep == 0) return;
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
    outcomes.push_back(std::move(job.outcome));
    snapshot.reset();
    running = false;
    changed.notify_all();
  }

  void loop() {
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
  std::atomic<bool> cancel{false};

  mutable std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::optional<Job> pending;
  bool running = false;
  bool stop = false;
  std::shared_ptr<Snapshot> snapshot;  // of the running save
  std::vector<SaveOutcome> outcomes;
  std::string cancel_reason;  // of the running save; empty: not cancelled by the caller
  std::jthread thread;
};

Saver::Saver(Env& env, SaverOptions options) : state_(std::make_unique<State>(env, std::move(options))) {
  if (state_->options.async) state_->thread = std::jthread([state = state_.get()] { state->loop(); });
}

Saver::~Saver() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->cancel = true;
    state_->stop = true;
    state_->changed.notify_all();
  }
  if (state_->thread.joinable()) state_->thread.join();
}

void Saver::start(SaveRequest request) {
  State& s = *state_;
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
    s.cancel = false;
    s.cancel_reason.clear();
  }
  try {
    fault_point("save.begin", s.options.rank, request.step);
    job.snapshot = copy_snapshot(request.items);
  } catch (const std::exception& e) {
    job.outcome.reason = e.what();
  }
  if (!s.options.async) {
    s.run(job);
    job.outcome.stall_ms = 1e3 * job.outcome.total_s;
    s.finish(std::move(job));
    return;
  }
  job.outcome.stall_ms = 1e3 * seconds_since(job.start);
  const std::lock_guard lock(s.mutex);
  s.snapshot = job.snapshot;
  s.pending = std::move(job);
  s.changed.notify_all();
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

void Saver::wait(double seconds) {
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
  state_->cancel = true;
}

void Saver::before_write(const std::string& tensor, const std::string& kind, const Box& box) {
  std::shared_ptr<Snapshot> snapshot;
  {
    const std::lock_guard lock(state_->mutex);
    snapshot = state_->snapshot;
  }
  if (snapshot) snapshot->before_write(tensor, kind, box);
}

std::vector<SaveOutcome> Saver::take_outcomes() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->outcomes, {});
}

void Saver::discard(const std::string& attempt, std::uint64_t step) {
  State& s = *state_;
  const std::string directory = s.attempt_dir(step, attempt);
  if (!s.env.exists(directory)) return;
  if (s.options.rank != 0) {
    for (const std::string& name : {part_name(s.options.rank), shard_name(s.options.rank)})
      if (!s.env.is_dir(directory + "/" + name))
        s.env.unlink(directory + "/" + name);  // else rank 0's to remove
    return;
  }
  if (!s.still_mine())
    throw Error(ErrorCode::busy,
                directory + ": another generation of this run took over; it removes this itself", directory);
  // Moved aside first, so that a rank that is late finds no attempt to add to.
  const std::string trash =
      free_name(s.env, s.options.checkpoints_dir + "/" + step_dir_name(step) + ".trash-" + attempt);
  s.env.rename(directory, trash);
  remove_checkpoint_dir(s.env, trash);
}

}  // namespace shardwright::ckpt
