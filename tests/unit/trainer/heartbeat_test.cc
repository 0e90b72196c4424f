#include "trainer/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "trainer/heartbeat_listener.h"
#include "trainer/progress.h"

namespace shardwright::trainer {
namespace {

using testing::HasSubstr;

Heartbeat example() {
  Heartbeat h;
  h.rank = 3;
  h.generation = 12;
  h.phase = "step";
  h.progress = 99;
  h.step = 41;
  h.deadline_s = 120.5;
  return h;
}

TEST(Heartbeat, SurvivesTheWire) {
  Heartbeat h = example();
  h.kind = Heartbeat::Kind::fail;
  h.cause = "host";
  h.code = ErrorCode::no_space;
  h.message = "rank-00003.h5: no \"space\"\n\xff; more";
  h.path = "a b/ä";
  const auto back = decode(encode(h));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->kind, h.kind);
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->generation, 12U);
  EXPECT_EQ(back->phase, "step");
  EXPECT_EQ(back->progress, 99U);
  EXPECT_EQ(back->step, 41);
  EXPECT_EQ(back->deadline_s, 120.5);
  EXPECT_EQ(back->cause, "host");
  EXPECT_EQ(back->code, ErrorCode::no_space);
  EXPECT_THAT(back->message, HasSubstr("no \"space\"\n"));
  EXPECT_EQ(back->path, h.path);

  h = example();
  h.kind = Heartbeat::Kind::finish;
  h.status = 75;
  EXPECT_EQ(decode(encode(h))->status, 75);
  EXPECT_EQ(decode(encode(example()))->kind, Heartbeat::Kind::beat);
}

TEST(Heartbeat, ForeignTextIsNoMessage) {
  EXPECT_FALSE(decode(""));
  EXPECT_FALSE(decode("hello"));
  std::string strange = encode(example());
  const std::size_t step = strange.find(R"("step":)");
  ASSERT_NE(step, std::string::npos);
  EXPECT_FALSE(decode(strange.insert(step + 7, "1e60,\"old\":")));
  EXPECT_FALSE(decode("{}"));
  EXPECT_FALSE(decode(R"({"rank":"x"})"));
}

TEST(Heartbeat, LongMessagesAreCut) {
  Heartbeat h = example();
  h.kind = Heartbeat::Kind::fail;
  h.message = std::string(100000, '\x01');
  EXPECT_LT(encode(h).size(), 65536U);
  EXPECT_TRUE(decode(encode(h)));
}

TEST(HeartbeatListener, ReceivesWithTheSendersPid) {
  HeartbeatListener listener;
  HeartbeatSender sender(listener.address());
  EXPECT_EQ(sender.send(example()), HeartbeatSender::Result::sent);
  const auto all = listener.receive();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].rank, 3);
  EXPECT_EQ(all[0].pid, ::getpid());
  EXPECT_TRUE(listener.receive().empty());
}

TEST(HeartbeatSender, TellsAFullQueueFromNobody) {
  std::optional<HeartbeatListener> listener(std::in_place);
  HeartbeatSender sender(listener->address());
  HeartbeatSender::Result result = HeartbeatSender::Result::sent;
  for (int i = 0; i < 100000 && result == HeartbeatSender::Result::sent; ++i) result = sender.send(example());
  EXPECT_EQ(result, HeartbeatSender::Result::full);
  EXPECT_EQ(sender.send_surely(example(), 0.02), HeartbeatSender::Result::full);
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    listener->receive();
  });
  EXPECT_EQ(sender.send_surely(example(), 10), HeartbeatSender::Result::sent);
  reader.join();
  listener.reset();
  EXPECT_EQ(sender.send(example()), HeartbeatSender::Result::nobody);
}

ProgressOptions options(const std::string& address = {}) {
  ProgressOptions o;
  o.rank = 2;
  o.generation = 5;
  o.phase_deadline_s = 0.3;
  o.commit_deadline_s = 0.1;
  o.heartbeat_s = 0.3;
  o.heartbeat_address = address;
  return o;
}

/// Messages until one satisfies `wanted`, for at most five seconds.
template <typename Wanted>
std::optional<Heartbeat> wait_for(HeartbeatListener& listener, Wanted wanted) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (std::chrono::steady_clock::now() < end) {
    for (const Heartbeat& h : listener.receive())
      if (wanted(h)) return h;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::nullopt;
}

TEST(Progress, SendsPhaseStepAndCounter) {
  HeartbeatListener listener;
  Progress progress(options(listener.address()));
  EXPECT_TRUE(
      wait_for(listener, [](const Heartbeat& h) { return h.phase == "start" && h.deadline_s == 300; }));
  progress.enter(Phase::save_wait);
  progress.step_done(17);
  const auto h = wait_for(listener, [](const Heartbeat& m) { return m.phase == "save_wait"; });
  ASSERT_TRUE(h);
  EXPECT_EQ(h->rank, 2);
  EXPECT_EQ(h->generation, 5U);
  EXPECT_EQ(h->step, 17);
  EXPECT_EQ(h->progress, 2U);
  EXPECT_EQ(h->deadline_s, 30.1);
}

TEST(Progress, OnlyTheFirstLastWordsCount) {
  HeartbeatListener listener;
  Progress progress(options(listener.address()));
  progress.fail(Error(ErrorCode::damaged, "x: is damaged; y", "x"));
  progress.finish(1);
  const auto h = wait_for(listener, [](const Heartbeat& m) { return m.kind != Heartbeat::Kind::beat; });
  ASSERT_TRUE(h);
  EXPECT_EQ(h->kind, Heartbeat::Kind::fail);
  EXPECT_EQ(h->code, ErrorCode::damaged);
  for (const Heartbeat& m : listener.receive()) EXPECT_EQ(m.kind, Heartbeat::Kind::beat);
}

TEST(Progress, AdvancingKeepsThePhaseAlive) {
  ProgressOptions patient = options();
  patient.phase_deadline_s = 1.5;  // other tests may hold this one up for a while
  Progress progress(patient);
  progress.enter(Phase::step);
  for (int i = 0; i < 12; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    progress.advance();
  }
}

using ProgressDeathTest = testing::Test;

TEST(ProgressDeathTest, APhaseThatOutlastsItsDeadlineEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Progress progress(options());
        progress.enter(Phase::step);
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(70), "rank 2: step exceeded its deadline of 0.3 s");
}

TEST(ProgressDeathTest, AVanishedSupervisorEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::optional<HeartbeatListener> listener(std::in_place);
        Progress progress(options(listener->address()));
        listener.reset();
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(70), "rank 2: the supervisor was gone");
}

}  // namespace
}  // namespace shardwright::trainer
