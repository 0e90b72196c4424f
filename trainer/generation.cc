#include "trainer/generation.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "trainer/process_handle.h"
#include "trainer/process_mark.h"
#include "trainer/rank_watch.h"

namespace shardwright::trainer {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kTickMs = 50;
// mpirun ends the others and says who was first as soon as one rank has ended; it gets this long for that.
constexpr double kSettle = 3;
// All ranks are through, but mpirun is not.
constexpr double kMpirunEnd = 5;
constexpr double kKill = 30;
// For the last lines, to a reader that is slow.
constexpr int kReaderPatienceMs = 2000;

class Watcher {
 public:
  Watcher(const GenerationOptions& options, HeartbeatListener& listener, StopRequests& stops)
      : options_(options),
        listener_(listener),
        stops_(stops),
        began_(WatchClock::now()),
        watch_({options.mpirun.ranks, options.generation, options.heartbeat_s, options.start_deadline_s,
                is_stopped},
               began_),
        processes_(static_cast<std::size_t>(options.mpirun.ranks)),
        mpirun_(options.mpirun) {}

  /// Returns when there is nothing more to see, or to wait for.
  void watch() {
    while (!over()) {
      wait();
      mpirun_.pump();
      listen();
      see_ends();
      watch_.tick(WatchClock::now());
      pass_signal_down();
    }
    mpirun_.pump(kReaderPatienceMs);
    listen();
  }

  GenerationEnd end() {
    GenerationEnd end;
    Observed& seen = end.observed;
    seen.ranks = watch_.ranks();
    seen.never_came = watch_.never_came();
    seen.heartbeat_s = options_.heartbeat_s;
    seen.mpirun_log = options_.mpirun.log;
    if (mpirun_.ended()) {
      seen.mpirun_status = mpirun_.status();
      seen.first_death = parse_first_death(mpirun_.text());
    }
    end.steps = watch_.steps();
    end.seconds = Seconds(WatchClock::now() - began_).count();
    return end;
  }

 private:
  static bool passed(std::optional<WatchClock::time_point> since, double seconds) {
    return since && Seconds(WatchClock::now() - *since).count() > seconds;
  }

  bool over() {
    if (mpirun_.ended() || stops_.count() > 1) return true;
    const auto now = WatchClock::now();
    const bool ending = std::any_of(watch_.ranks().begin(), watch_.ranks().end(), [](const RankState& r) {
      return r.failure || (r.ended() && !r.finished);
    });
    if (watch_.trouble() && !ending) return true;  // silent, stuck, or never came: nobody else will end it
    if (ending && !ending_since_) ending_since_ = now;
    if (watch_.all_ended() && !all_ended_since_) all_ended_since_ = now;
    return passed(ending_since_, kSettle) || passed(all_ended_since_, kMpirunEnd);
  }

  void wait() {
    std::vector<pollfd> fds{
        {listener_.fd(), POLLIN, 0}, {stops_.fd(), POLLIN, 0}, {mpirun_.end_fd(), POLLIN, 0}};
    // The output's end stays readable once the ranks have closed it; mpirun's own end follows soon.
    if (!watch_.all_ended()) fds.push_back({mpirun_.output_fd(), POLLIN, 0});
    for (const ProcessHandle& process : processes_) fds.push_back({process.fd(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), kTickMs) < 0 && errno != EINTR)
      throw_errno(errno, "cannot wait for", "ranks");
  }

  void listen() {
    for (const Heartbeat& message : listener_.receive()) {
      if (!watch_.hear(message, WatchClock::now())) continue;
      ProcessHandle& process = processes_[static_cast<std::size_t>(message.rank)];
      process = ProcessHandle(message.pid);
      if (!process.holds()) watch_.end(message.rank);
    }
  }

  void see_ends() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      if (!processes_[rank].ended()) continue;
      listen();  // its last words may have come since
      watch_.end(static_cast<int>(rank));
      processes_[rank] = ProcessHandle();
    }
  }

  void pass_signal_down() {
    if (passed_down_ || stops_.count() == 0 || !watch_.all_heard()) return;
    mpirun_.signal(SIGUSR1);
    passed_down_ = true;
  }

  const GenerationOptions& options_;
  HeartbeatListener& listener_;
  StopRequests& stops_;
  WatchClock::time_point began_;
  RankWatch watch_;
  std::vector<ProcessHandle> processes_;  // by rank; nothing before its first message and after its end
  MpirunProcess mpirun_;
  std::optional<WatchClock::time_point> ending_since_, all_ended_since_;
  bool passed_down_ = false;
};

}  // namespace

GenerationEnd run_generation(const GenerationOptions& options, HeartbeatListener& listener,
                             StopRequests& stops) {
  std::optional<GenerationEnd> end;
  std::exception_ptr failure;
  try {
    Watcher watcher(options, listener, stops);
    watcher.watch();
    end = watcher.end();
  } catch (...) {
    failure = std::current_exception();
  }
  // The watcher's end killed mpirun; what it started may be anywhere.
  end_processes_marked(options.mark, kKill);
  if (failure) std::rethrow_exception(failure);
  return *end;
}

}  // namespace shardwright::trainer
