#include "ckpt/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/manifest.h"
#include "ckpt/saver.h"
#include "ckpt/scan.h"
#include "ckpt/shard.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;

constexpr std::uint64_t kMaxStep = 9'999'999'999;
constexpr double kMaxDeadline = 1e7;  // four months
constexpr double kPatience = 1.25;    // how much longer than rank 0 the others wait
// Rank 0 finds out by itself who is late, and says so; only work that hangs is ended from outside.
constexpr double kGraceSeconds = 1;
constexpr double kCancelSeconds = 10;
constexpr milliseconds kFirstLook{5};
constexpr milliseconds kLongestLook{500};

double seconds_until(Clock::time_point when) { return std::max(0.0, Seconds(when - Clock::now()).count()); }

}  // namespace

std::string checkpoints_of(const std::string& run_directory) { return run_directory + "/checkpoints"; }

Run::Run(const std::string& directory, Env& env) : env_(env), directory_(directory), lock_(env, directory) {
  // A second lock where `prune` looks for one.
  checkpoints_lock_ = std::make_unique<RunLock>(env, checkpoints_of(directory));
  started_ = begin_generation(env, directory, checkpoints_of(directory));
}

std::optional<std::string> Run::newest() const {
  std::vector<PassedOver> passed_over;
  if (const auto found = newest_valid(env_, checkpoints_of(directory_), &passed_over)) return found->path;
  if (passed_over.empty()) return std::nullopt;
  throw Error(ErrorCode::damaged,
              fmt::format("{}: none of its {} checkpoints is valid; the newest: {}",
                          checkpoints_of(directory_), passed_over.size(), passed_over[0].reason),
              checkpoints_of(directory_));
}

std::vector<std::string> Run::go_on_from(std::optional<std::uint64_t> step) {
  return supersede_newer(env_, checkpoints_of(directory_), step.value_or(0), !step, started_.generation);
}

struct RunWriter::State {
  State(Env& e, SaverOptions o) : env(e), options(std::move(o)), saver(env, options) {}

  void begin(std::uint64_t new_step, const std::vector<SaveItem>& items, Description description, bool lent) {
    if (new_step > kMaxStep)
      throw Error(ErrorCode::usage, fmt::format("step {}: a step has at most ten digits", new_step));
    if (started)
      throw Error(ErrorCode::busy, final_dir() + ": this save was not waited for yet; wait before the next");
    for (std::string* document :
         {&description.training, &description.model, &description.config, &description.layout})
      if (document->empty()) *document = "{}";
    start = Clock::now();
    deadline = start + std::chrono::duration_cast<Clock::duration>(Seconds(options.save_deadline_s));
    saver.start({new_step, saves + 1, items, std::move(description), {}, lent});
    step = new_step;
    ++saves;
    started = true;
  }

  std::string attempt() const { return fmt::format("{}-{}", options.generation, saves); }
  std::string final_dir() const { return options.checkpoints_dir + "/" + step_dir_name(step); }
  std::string attempt_dir() const { return final_dir() + ".tmp-" + attempt(); }

  /// True once the directory of the step is this attempt's.
  bool committed() const {
    try {
      const Commit commit = read_commit(env, final_dir());
      return commit.attempt == attempt() && commit.run == options.run;
    } catch (const Error& e) {
      // None yet, or one from before that is about to be replaced and may be damaged: not this attempt's.
      if (e.code() == ErrorCode::io) throw;
      return false;
    }
  }

  /// The end of this process' own work, in time or cancelled.
  SaveOutcome own_outcome() {
    try {
      saver.wait(seconds_until(deadline) + kGraceSeconds);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::deadline) throw;
      saver.cancel(late());
      try {
        saver.wait(kCancelSeconds);
      } catch (...) {
        saver.let_go();
        throw;
      }
    }
    return saver.take_outcomes().back();
  }

  std::string late() const {
    return fmt::format("{}: not committed within {} s; the save is given up", attempt_dir(),
                       options.save_deadline_s);
  }

  /// On ranks other than 0, whose part is published: waits until rank 0 has committed or given up.
  void await_commit() {
    const auto last =
        start + std::chrono::duration_cast<Clock::duration>(Seconds(options.save_deadline_s * kPatience));
    for (milliseconds look = kFirstLook;; look = std::min(2 * look, kLongestLook)) {
      // In this order: a rename between the two must not look like a removal.
      const bool given_up = saver.given_up(attempt(), step);
      if (committed()) return;
      if (given_up)
        throw Error(ErrorCode::peer, attempt_dir() + ": rank 0 gave the save up; its own error says why",
                    attempt_dir());
      if (Clock::now() >= last)
        throw Error(ErrorCode::deadline,
                    fmt::format("{}: rank 0 has not committed it within {} s, and may be gone", attempt_dir(),
                                options.save_deadline_s * kPatience),
                    attempt_dir());
      std::this_thread::sleep_for(std::min<Clock::duration>(look, last - Clock::now()));
    }
  }

  /// After the commit. Rank 0 unlinks the parts that it waited for, so one that is left is most likely of a
  /// rank that it does not count; but an unlink may have come to nothing on the way, so the manifest decides.
  /// What it does not list is taken out again.
  void insist_counted() {
    const std::string part = "/" + part_name(options.rank);
    if (env.exists(final_dir() + part)) {
      const Part own = read_part(env, final_dir() + part);
      const bool is_counted = counted(own);
      // Without a shard of its own, one of that name is another process'.
      if (!is_counted && own.has_file) env.unlink(final_dir() + "/" + shard_name(options.rank));
      env.unlink(final_dir() + part);
      if (!is_counted) refuse_uncounted();
    } else if (env.exists(attempt_dir() + part)) {  // it came too late
      env.unlink(attempt_dir() + "/" + shard_name(options.rank));
      env.unlink(attempt_dir() + part);
      refuse_uncounted();
    }
  }

  bool counted(const Part& part) const {
    const Manifest manifest = read_manifest(env, final_dir(), read_commit(env, final_dir()).manifest);
    if (part.has_file)
      return std::any_of(manifest.files.begin(), manifest.files.end(),
                         [&](const FileRecord& file) { return file.name == shard_name(options.rank); });
    return std::all_of(part.boxes.begin(), part.boxes.end(), [&](const BoxRecord& box) {
      return std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                         [&](const TensorEntry& tensor) { return tensor.name == box.tensor; });
    });
  }

  [[noreturn]] void refuse_uncounted() const {
    throw Error(
        ErrorCode::usage,
        fmt::format(
            "{}: committed without rank {}, because rank 0 counts fewer writers than {}, or "
            "another process writes as this rank too; the same number everywhere, and one of each rank",
            final_dir(), options.rank, options.writers),
        final_dir());
  }

  Env& env;
  SaverOptions options;
  Saver saver;
  std::uint64_t saves = 0;
  bool started = false;
  std::uint64_t step = 0;
  Clock::time_point start, deadline;
};

RunWriter::RunWriter(const std::string& directory, std::uint64_t generation, const RunWriterOptions& options,
                     Env& env) {
  if (options.writers < 1 || options.rank < 0 || options.rank >= options.writers)
    throw Error(ErrorCode::usage,
                fmt::format("rank {} of {} writers; ranks count from 0 and end below the writers",
                            options.rank, options.writers));
  if (!(options.deadline_s > 0 && options.deadline_s <= kMaxDeadline))
    throw Error(ErrorCode::usage, fmt::format("a deadline of {} s; more than 0 and at most {} is right",
                                              options.deadline_s, kMaxDeadline));
  const Generation now = read_generation(env, directory);
  if (now.number != generation)
    throw Error(ErrorCode::busy,
                fmt::format("{}: the run is in generation {}; this process belongs to generation {}",
                            directory, now.number, generation),
                directory);
  SaverOptions o;
  o.checkpoints_dir = checkpoints_of(directory);
  o.run_dir = directory;
  o.run = now.run;
  o.generation = generation;
  o.rank = options.rank;
  o.writers = options.writers;
  o.shard = options.shard;
  o.commit_deadline_s = o.save_deadline_s = options.deadline_s;
  o.keep = options.keep;
  o.gives_up_alone = true;
  state_ = std::make_unique<State>(env, std::move(o));
}

RunWriter::RunWriter(RunWriter&&) noexcept = default;
RunWriter::~RunWriter() = default;

void RunWriter::start(std::uint64_t step, const std::vector<SaveItem>& items, Description description) {
  state_->begin(step, items, std::move(description), false);
}

void RunWriter::start_lent(std::uint64_t step, const std::vector<SaveItem>& items, Description description) {
  state_->begin(step, items, std::move(description), true);
}

void RunWriter::before_write(const std::string& tensor, const std::string& kind, const Box& box) {
  state_->saver.before_write(tensor, kind, box);
}

std::string RunWriter::wait() {
  State& s = *state_;
  if (!s.started) throw Error(ErrorCode::usage, "no save was started; start one before waiting for it");
  s.started = false;
  const SaveOutcome own = s.own_outcome();
  if (own.result != SaveResult::committed) {
    const ErrorCode code = own.reason.starts_with(s.late()) ? ErrorCode::deadline : own.code;
    throw Error(code, own.reason, own.path);
  }
  if (s.options.rank != 0) {
    s.await_commit();
    s.insist_counted();
  }
  return own.path;
}

std::string RunWriter::save(std::uint64_t step, const std::vector<SaveItem>& items, Description description) {
  start_lent(step, items, std::move(description));
  return wait();
}

}  // namespace shardwright::ckpt
