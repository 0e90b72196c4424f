#include "trainer/rank_watch.h"

#include <algorithm>

namespace shardwright::trainer {
namespace {

using Seconds = std::chrono::duration<double>;

// The rank's own watchdog acts at the deadline; this much later it has failed to.
constexpr double kStuckMargin = 10;
constexpr auto kLongestTick = std::chrono::seconds(1);

double seconds(WatchClock::time_point from, WatchClock::time_point to) { return Seconds(to - from).count(); }

}  // namespace

RankWatch::RankWatch(WatchOptions options, WatchClock::time_point now)
    : options_(std::move(options)),
      ranks_(static_cast<std::size_t>(options_.ranks)),
      began_(now),
      last_tick_(now) {}

bool RankWatch::hear(const Heartbeat& message, WatchClock::time_point now) {
  if (message.generation != options_.generation || message.rank < 0 || message.rank >= options_.ranks)
    return false;
  RankState& rank = ranks_[static_cast<std::size_t>(message.rank)];
  const bool first = !rank.heard;
  if (first || message.progress != rank.progress) rank.progress_since = now;
  rank.heard = true;
  rank.pid = message.pid;
  rank.last_heard = now;
  rank.phase = message.phase;
  rank.deadline_s = message.deadline_s;
  rank.progress = message.progress;
  rank.step = message.step;
  if (message.kind == Heartbeat::Kind::finish) rank.finished = message.status;
  if (message.kind == Heartbeat::Kind::fail && !rank.failure) {
    rank.failure = message;
    rank.failure_order = ++failures_;
    // A rank that hangs is at fault only if no other is stopped: that one makes all others wait. Looked at
    // now, because mpirun ends them all in a moment.
    if (message.cause == "hang" && options_.is_stopped)
      for (RankState& other : ranks_)
        if (other.heard && !other.ended() && options_.is_stopped(other.pid)) other.stopped = true;
  }
  return first;
}

void RankWatch::end(int rank) {
  RankState& state = ranks_[static_cast<std::size_t>(rank)];
  if (!state.ended()) state.end_order = ++ends_;
}

void RankWatch::tick(WatchClock::time_point now) {
  const auto asleep = now - last_tick_;
  last_tick_ = now;
  for (RankState& rank : ranks_) {
    if (!rank.heard || rank.ended()) continue;
    if (asleep > kLongestTick) {
      rank.last_heard += asleep;
      rank.progress_since += asleep;
    }
    if (seconds(rank.last_heard, now) > options_.heartbeat_s) rank.silent = true;
    if (seconds(rank.progress_since, now) > rank.deadline_s + kStuckMargin) rank.stuck = true;
  }
  if (!all_heard() && seconds(began_, now) > options_.start_deadline_s) never_came_ = true;
}

bool RankWatch::all_heard() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& r) { return r.heard; });
}

bool RankWatch::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& r) { return r.ended(); });
}

bool RankWatch::trouble() const {
  return never_came_ || std::any_of(ranks_.begin(), ranks_.end(), [](const RankState& r) {
           return r.failure || r.silent || r.stuck || (r.ended() && !r.finished);
         });
}

std::int64_t RankWatch::steps() const {
  std::int64_t most = 0;
  for (const RankState& rank : ranks_) most = std::max(most, rank.step);
  return most;
}

}  // namespace shardwright::trainer
