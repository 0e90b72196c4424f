#include "trainer/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardwright::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RankState running() {
  RankState rank;
  rank.heard = true;
  rank.pid = 100;
  rank.phase = "step";
  rank.deadline_s = 120;
  return rank;
}

RankState ended(int order) {
  RankState rank = running();
  rank.end_order = order;
  return rank;
}

RankState finished(int status) {
  RankState rank = ended(1);
  rank.finished = status;
  return rank;
}

RankState failed(int order, const std::string& cause, ErrorCode code) {
  RankState rank = ended(order);
  rank.failure_order = order;
  rank.failure = Heartbeat{};
  rank.failure->kind = Heartbeat::Kind::fail;
  rank.failure->cause = cause;
  rank.failure->code = code;
  rank.failure->message = "the reason";
  return rank;
}

RankState silent() {
  RankState rank = running();
  rank.silent = true;
  return rank;
}

RankState stopped() {
  RankState rank = ended(3);
  rank.stopped = true;
  return rank;
}

Observed seen(std::vector<RankState> ranks) {
  Observed observed;
  observed.ranks = std::move(ranks);
  observed.mpirun_log = "logs/mpirun.log";
  return observed;
}

TEST(Judge, OneRankThatFinishedSpeaksForAll) {
  EXPECT_EQ(judge(seen({finished(0), ended(1), running()})).cause, EndCause::done);
  EXPECT_EQ(judge(seen({ended(1), finished(75), ended(2)})).cause, EndCause::preempted);
}

TEST(Judge, TheFirstDeathIsTheLostRankWithMpirunsWord) {
  Observed observed = seen({ended(2), ended(1), ended(3)});
  Verdict verdict = judge(observed);
  EXPECT_EQ(verdict.cause, EndCause::signal);
  EXPECT_THAT(verdict.lost, ElementsAre(1));

  observed.first_death = FirstDeath{2, 9, {}};  // all ended within one look: mpirun knows better
  verdict = judge(observed);
  EXPECT_EQ(verdict.cause, EndCause::signal);
  EXPECT_EQ(verdict.detail, "signal 9");
  EXPECT_THAT(verdict.lost, ElementsAre(2));

  observed.first_death = FirstDeath{0, {}, 3};
  verdict = judge(observed);
  EXPECT_EQ(verdict.cause, EndCause::exit);
  EXPECT_EQ(verdict.detail, "status 3");
  EXPECT_THAT(verdict.lost, ElementsAre(0));
}

TEST(Judge, ADeathBeforeTheFirstHeartbeatIsADeathToo) {
  Observed observed = seen({ended(1), RankState{}, ended(2)});
  observed.first_death = FirstDeath{1, 11, {}};
  EXPECT_THAT(judge(observed).lost, ElementsAre(1));
}

TEST(Judge, SilentRanksAreAllLost) {
  const Verdict verdict = judge(seen({running(), silent(), running(), silent()}));
  EXPECT_EQ(verdict.cause, EndCause::hang);
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.lost, ElementsAre(1, 3));
  EXPECT_THAT(verdict.detail, HasSubstr("no heartbeat"));
}

TEST(Judge, AStoppedRankIsWhyOthersHang) {
  const Verdict verdict = judge(seen({failed(1, "hang", ErrorCode::deadline), stopped(), ended(2)}));
  EXPECT_EQ(verdict.cause, EndCause::hang);
  EXPECT_THAT(verdict.lost, ElementsAre(1));
}

TEST(Judge, HangingRanksThatStillSendLoseNoSlot) {
  const Verdict verdict = judge(seen({ended(2), failed(1, "hang", ErrorCode::deadline), ended(3)}));
  EXPECT_EQ(verdict.cause, EndCause::hang);
  EXPECT_EQ(verdict.rank, 1);
  EXPECT_THAT(verdict.lost, IsEmpty());
  EXPECT_FALSE(verdict.error);

  // The one that is behind is at fault, whoever came to its deadline first.
  std::vector<RankState> ranks{failed(1, "hang", ErrorCode::deadline), ended(2), ended(3)};
  ranks[0].progress = ranks[2].progress = 12;
  ranks[1].progress = 11;
  EXPECT_EQ(judge(seen(ranks)).rank, 1);

  RankState stuck = running();
  stuck.stuck = true;
  EXPECT_EQ(judge(seen({running(), stuck})).cause, EndCause::hang);
  EXPECT_THAT(judge(seen({running(), stuck})).lost, IsEmpty());
}

TEST(Judge, AnOwnErrorIsTheCauseAndPeersErrorsFollowFromIt) {
  const Verdict verdict =
      judge(seen({failed(1, "exit", ErrorCode::peer), failed(2, "host", ErrorCode::io), ended(3)}));
  EXPECT_EQ(verdict.cause, EndCause::host);
  EXPECT_THAT(verdict.lost, ElementsAre(1));
  EXPECT_EQ(verdict.detail, "the reason");
  EXPECT_FALSE(verdict.error);
}

TEST(Judge, WhatTryingAgainCannotHelpEndsTheRun) {
  for (const ErrorCode code : {ErrorCode::usage, ErrorCode::missing, ErrorCode::mismatch, ErrorCode::damaged,
                               ErrorCode::no_space, ErrorCode::future_version, ErrorCode::busy}) {
    const Verdict verdict = judge(seen({ended(2), failed(1, "exit", code)}));
    ASSERT_TRUE(verdict.error) << name(code);
    EXPECT_EQ(verdict.error->code(), code);
    EXPECT_THAT(verdict.lost, IsEmpty());
  }
  const Verdict verdict = judge(seen({failed(1, "nonfinite", ErrorCode::nonfinite), ended(2)}));
  EXPECT_EQ(verdict.cause, EndCause::nonfinite);
  ASSERT_TRUE(verdict.error);
  EXPECT_EQ(exit_status(verdict.error->code()), 1);
}

TEST(Judge, AnErrorAllAgreedOnEndsTheRunEvenIfItIsIo) {
  const Verdict verdict = judge(seen({failed(1, "host", ErrorCode::io), finished(1), finished(1)}));
  EXPECT_EQ(verdict.cause, EndCause::error);
  ASSERT_TRUE(verdict.error);
  EXPECT_EQ(verdict.error->code(), ErrorCode::io);
  EXPECT_STREQ(verdict.error->what(), "the reason");
}

TEST(Judge, MpirunThatCouldNotStartIsAnErrorThatNamesItsLog) {
  Observed observed = seen({RankState{}, RankState{}});
  observed.mpirun_status = 1;
  const Verdict verdict = judge(observed);
  ASSERT_TRUE(verdict.error);
  EXPECT_THAT(verdict.error->what(), HasSubstr("logs/mpirun.log"));
}

TEST(Judge, MpirunKilledFromOutsideLosesNoRank) {
  Observed observed = seen({ended(1), ended(2)});
  observed.mpirun_status = 128 + 9;
  EXPECT_THAT(judge(observed).lost, IsEmpty());
  EXPECT_FALSE(judge(observed).error);
}

class PlanRecovery : public testing::Test {
 protected:
  PlanRecovery() {
    reshard::ModelConfig model;
    model.layers = 4, model.hidden = 64, model.heads = 4, model.vocab = 97, model.seq_len = 32;
    config_.model = model;
    config_.train.global_batch = 12;
    config_.train.micro_batch = 1;
    model_ = reshard::build_model(model);
  }
  Plan plan(const std::string& layout, const Verdict& verdict, int slots, int restarts = 0) {
    return plan_recovery(config_, model_, reshard::parse_layout(layout), verdict, slots, restarts);
  }
  static Verdict lost(std::vector<int> ranks) {
    return {EndCause::signal, ranks.front(), "signal 9", ranks, {}};
  }
  static Verdict hang() { return {EndCause::hang, 0, "", {}, {}}; }

  Config config_;
  reshard::ModelSpec model_;
};

TEST_F(PlanRecovery, ShrinksToTheLargestLegalLayout) {
  Plan next = plan("t1d6z1", lost({2}), 6);
  ASSERT_TRUE(next.layout);
  EXPECT_EQ(next.slots, 5);
  EXPECT_EQ(next.layout->string(), "t1p1d4z1");  // 5 does not divide the global batch: one idles
  // The idle one replaces the next that is lost.
  next = plan("t1d4z1", lost({0}), 5);
  ASSERT_TRUE(next.layout);
  EXPECT_EQ(next.slots, 4);
  EXPECT_EQ(next.layout->string(), "t1p1d4z1");
}

TEST_F(PlanRecovery, AHangKeepsTheLayout) {
  const Plan next = plan("t2d2z1", hang(), 4);
  ASSERT_TRUE(next.layout);
  EXPECT_EQ(next.slots, 4);
  EXPECT_EQ(next.layout->string(), "t2p1d2z1");
}

TEST_F(PlanRecovery, RestartKeepsTheLayout) {
  config_.elastic.on_failure = "restart";
  const Plan next = plan("t2d2z1", lost({1}), 4);
  ASSERT_TRUE(next.layout);
  EXPECT_EQ(next.layout->string(), "t2p1d2z1");
}

TEST_F(PlanRecovery, GivesUpWithAReason) {
  EXPECT_THAT(plan("t1d1", lost({0}), 1).reason, HasSubstr("0 ranks"));
  config_.elastic.min_ranks = 3;
  EXPECT_FALSE(plan("t1d3", lost({0}), 3).layout);
  EXPECT_THAT(plan("t1d3", lost({0}), 3).reason, HasSubstr("min_ranks"));
  EXPECT_THAT(plan("t1d6", lost({0}), 6, 10).reason, HasSubstr("max_restarts"));
  EXPECT_TRUE(plan("t1d6", lost({0}), 6, 9).layout);
  config_.elastic.enabled = false;
  EXPECT_THAT(plan("t1d6", lost({0}), 6).reason, HasSubstr("enabled"));
}

TEST(LayoutOverrides, SetEveryDegree) {
  reshard::Layout layout = reshard::parse_layout("t2p2d3z1");
  layout.stages = {1, 3};
  EXPECT_THAT(
      layout_overrides(layout),
      ElementsAre(Override{"parallel.tp", "2"}, Override{"parallel.pp", "2"}, Override{"parallel.dp", "3"},
                  Override{"parallel.vpp", "1"}, Override{"parallel.zero", "1"},
                  Override{"parallel.stages", "[1, 3]"}, Override{"parallel.rank_order", "tdp"}));
}

}  // namespace
}  // namespace shardwright::trainer
