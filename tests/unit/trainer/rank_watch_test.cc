#include "trainer/rank_watch.h"

#include <gtest/gtest.h>

namespace shardwright::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Watch : public testing::Test {
 protected:
  Watch() : watch_({3, 7, 10, 300, [this](int pid) { return pid == stopped_; }}, now_) {}

  Heartbeat beat(int rank, std::uint64_t progress = 0) const {
    Heartbeat h;
    h.rank = rank;
    h.generation = 7;
    h.phase = "step";
    h.progress = progress;
    h.deadline_s = 20;
    h.pid = 100 + rank;
    return h;
  }
  void all_beat(std::uint64_t progress = 0) {
    for (int rank = 0; rank < 3; ++rank) watch_.hear(beat(rank, progress), now_);
  }
  /// Half a second at a time, as the supervisor looks; the ranks in `sending` send.
  void pass(double time_s, const std::vector<int>& sending, bool progress) {
    for (int i = 0; i < static_cast<int>(time_s * 2); ++i) {
      now_ += milliseconds(500);
      if (progress) ++progress_;
      for (const int rank : sending) watch_.hear(beat(rank, progress_), now_);
      watch_.tick(now_);
    }
  }

  WatchClock::time_point now_ = WatchClock::now();
  int stopped_ = 0;
  std::uint64_t progress_ = 0;
  RankWatch watch_;
};

TEST_F(Watch, HealthyRanksAreNoTrouble) {
  all_beat();
  pass(100, {0, 1, 2}, true);
  EXPECT_TRUE(watch_.all_heard());
  EXPECT_FALSE(watch_.trouble());
}

TEST_F(Watch, SilenceIsTroubleAfterHeartbeatS) {
  all_beat();
  pass(9.5, {0, 2}, true);
  EXPECT_FALSE(watch_.trouble());
  pass(1, {0, 2}, true);
  EXPECT_TRUE(watch_.trouble());
  EXPECT_TRUE(watch_.ranks()[1].silent);
  EXPECT_FALSE(watch_.ranks()[0].silent);
}

TEST_F(Watch, NoSilenceCountsWhileTheWatcherItselfSlept) {
  all_beat();
  pass(5, {0, 1, 2}, true);
  now_ += seconds(3600);
  watch_.tick(now_);
  EXPECT_FALSE(watch_.trouble());
  pass(11, {0, 1}, true);
  EXPECT_TRUE(watch_.ranks()[2].silent);
}

TEST_F(Watch, NoProgressIsStuckAfterTheDeadlineAndAMargin) {
  all_beat();
  pass(29, {0, 1, 2}, false);
  EXPECT_FALSE(watch_.trouble());
  pass(2, {0, 1, 2}, false);
  EXPECT_TRUE(watch_.ranks()[0].stuck);
  EXPECT_FALSE(watch_.ranks()[0].silent);
}

TEST_F(Watch, ARankThatNeverComesIsTrouble) {
  watch_.hear(beat(0), now_);
  pass(299, {0}, true);
  EXPECT_FALSE(watch_.trouble());
  pass(2, {0}, true);
  EXPECT_TRUE(watch_.never_came());
}

TEST_F(Watch, OnlyEndsWithoutFinishAreTrouble) {
  all_beat();
  Heartbeat last = beat(1);
  last.kind = Heartbeat::Kind::finish;
  watch_.hear(last, now_);
  watch_.end(1);
  EXPECT_FALSE(watch_.trouble());
  watch_.end(0);
  EXPECT_TRUE(watch_.trouble());
  EXPECT_EQ(watch_.ranks()[0].end_order, 2);
}

TEST_F(Watch, AStoppedRankIsFoundWhenAnotherHangs) {
  all_beat();
  stopped_ = 102;
  Heartbeat last = beat(0);
  last.kind = Heartbeat::Kind::fail;
  last.cause = "hang";
  watch_.hear(last, now_);
  EXPECT_TRUE(watch_.ranks()[2].stopped);
  EXPECT_FALSE(watch_.ranks()[1].stopped);
}

TEST_F(Watch, MessagesOfOtherGenerationsAndStrangersAreDropped) {
  Heartbeat old = beat(1);
  old.generation = 6;
  watch_.hear(old, now_);
  watch_.hear(beat(3), now_);
  watch_.hear(beat(-1), now_);
  EXPECT_FALSE(watch_.ranks()[1].heard);
  EXPECT_TRUE(watch_.hear(beat(1), now_));
  EXPECT_FALSE(watch_.hear(beat(1), now_));
}

}  // namespace
}  // namespace shardwright::trainer
