#include "trainer/progress.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "trainer/heartbeat.h"

namespace shardwright::trainer {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kBeatEvery = std::chrono::milliseconds(500);
constexpr double kSlowPhaseDeadline = 300;
constexpr double kSaveWaitMargin = 30;
constexpr double kLastWordsWait = 2;

}  // namespace

const char* name(Phase phase) {
  static constexpr const char* kNames[] = {"start", "load", "step", "save_wait", "eval", "exit"};
  return kNames[static_cast<int>(phase)];
}

struct Progress::State {
  explicit State(ProgressOptions o) : options(std::move(o)) {
    if (!options.heartbeat_address.empty()) sender.emplace(options.heartbeat_address);
    phase_began = Clock::now();
  }

  double deadline(Phase of) const {
    if (of == Phase::start || of == Phase::load)
      return std::max(options.phase_deadline_s, kSlowPhaseDeadline);
    if (of == Phase::save_wait)
      return std::max(options.phase_deadline_s, options.commit_deadline_s + kSaveWaitMargin);
    return options.phase_deadline_s;
  }

  /// Needs the mutex.
  Heartbeat message(Heartbeat::Kind kind) const {
    Heartbeat h;
    h.kind = kind;
    h.rank = options.rank;
    h.generation = options.generation;
    h.phase = name(phase);
    h.progress = progress;
    h.step = step;
    h.deadline_s = deadline(phase);
    return h;
  }

  void moved() {
    ++progress;
    phase_began = Clock::now();
  }

  void watch();
  [[noreturn]] void leave(const std::string& line, Heartbeat last_words);

  const ProgressOptions options;
  std::optional<HeartbeatSender> sender;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  bool last_words_said = false;
  Phase phase = Phase::start;
  Clock::time_point phase_began;
  std::uint64_t progress = 0;
  std::int64_t step = 0;
  std::thread thread;
};

void Progress::State::leave(const std::string& line, Heartbeat last_words) {
  const std::string text = line + "\n";
  // Nothing can be done about an error here, and nothing may be waited for: the process must end.
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  last_words.cause = "hang";
  last_words.code = ErrorCode::deadline;
  last_words.message = line;
  if (sender) sender->send_surely(last_words, kLastWordsWait);
  ::_exit(kWatchdogStatus);
}

void Progress::State::watch() {
  auto last_tick = Clock::now();
  auto last_beat = last_tick - kBeatEvery;
  auto last_answer = last_tick;
  std::unique_lock lock(mutex);
  while (!stopping) {
    const auto now = Clock::now();
    // A process that did not run for a while (the machine or the job was suspended) did not use its time up.
    const auto asleep = now - last_tick - kTick;
    if (asleep > std::chrono::seconds(1)) {
      phase_began += asleep;
      last_answer += asleep;
    }
    last_tick = now;
    if (Seconds(now - phase_began).count() > deadline(phase))
      leave(fmt::format("rank {}: {} exceeded its deadline of {} s", options.rank, name(phase),
                        deadline(phase)),
            message(Heartbeat::Kind::fail));
    if (sender && now - last_beat >= kBeatEvery) {
      last_beat = now;
      if (sender->send(message(Heartbeat::Kind::beat)) != HeartbeatSender::Result::nobody) last_answer = now;
      if (Seconds(now - last_answer).count() > options.heartbeat_s)
        leave(fmt::format("rank {}: the supervisor was gone for {} s", options.rank, options.heartbeat_s),
              message(Heartbeat::Kind::fail));
    }
    wake.wait_for(lock, kTick);
  }
}

Progress::Progress(ProgressOptions options) : state_(std::make_unique<State>(std::move(options))) {
  // Signals are the main thread's: a thread inherits the mask it is made under.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  state_->thread = std::thread([state = state_.get()] { state->watch(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Progress::~Progress() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

void Progress::enter(Phase phase) {
  const std::lock_guard lock(state_->mutex);
  state_->phase = phase;
  state_->moved();
}

void Progress::advance() {
  const std::lock_guard lock(state_->mutex);
  state_->moved();
}

void Progress::step_done(std::int64_t step) {
  const std::lock_guard lock(state_->mutex);
  state_->step = step;
  state_->moved();
}

void Progress::fail(const Error& error, const std::string& cause) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->sender || std::exchange(state_->last_words_said, true)) return;
  Heartbeat h = state_->message(Heartbeat::Kind::fail);
  h.cause = cause;
  h.code = error.code();
  h.message = error.what();
  h.path = error.path();
  state_->sender->send_surely(h, kLastWordsWait);
}

void Progress::finish(int status) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->sender || std::exchange(state_->last_words_said, true)) return;
  Heartbeat h = state_->message(Heartbeat::Kind::finish);
  h.status = status;
  state_->sender->send_surely(h, kLastWordsWait);
}

}  // namespace shardwright::trainer
