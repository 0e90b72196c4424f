#include "ckpt/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "ckpt/error.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::trace {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class TraceTest : public ::testing::Test {
 protected:
  SessionOptions options(int process = 3) {
    return {dir_ / ("part-" + std::to_string(process)), process, "rank " + std::to_string(process), now_us()};
  }

  std::string part(int process = 3) { return dir_ / ("part-" + std::to_string(process)); }

  /// The events of one phase ("X", "M", "i") of merged parts.
  std::vector<json> events(const std::string& phase, const std::vector<std::string>& parts) {
    merge_parts(parts, dir_ / "trace.json");
    std::vector<json> found;
    const json document = json::parse(contents(dir_ / "trace.json"));
    for (const json& event : document.at("traceEvents"))
      if (event.at("ph") == phase) found.push_back(event);
    return found;
  }

  TempDir dir_;
};

TEST_F(TraceTest, NothingIsRecordedWithoutASession) {
  { const Span before("before"); }
  Session session(options());
  EXPECT_EQ(session.stop().spans, 0u);
  { const Span after("after"); }
  EXPECT_TRUE(events("X", {part()}).empty());
}

TEST_F(TraceTest, SpansOfManyThreadsNestInTheirRows) {
  constexpr int kSpans = 301;
  constexpr int kWorkers = 5;
  Session session(options());
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kWorkers; ++i)
      threads.emplace_back([] {
        name_thread("worker");
        for (int n = 0; n < kSpans; ++n) {
          const Span outer("outer", "number", n);
          const Span inner("inner");
        }
      });
  }
  const Summary summary = session.stop();
  EXPECT_EQ(summary.spans, 2u * kSpans * kWorkers);
  EXPECT_EQ(summary.dropped, 0u);
  EXPECT_THAT(summary.error, IsEmpty());

  std::map<int, std::vector<json>> rows;
  for (const json& event : events("X", {part()})) rows[event.at("tid")].push_back(event);
  EXPECT_LE(rows.size(), std::size_t{kWorkers});
  int outer = 0;
  for (const auto& [tid, row] : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); i += 2) {  // written as they end
      const json &inside = row[i], &around = row[i + 1];
      ASSERT_EQ(inside.at("name"), "inner");
      ASSERT_EQ(around.at("name"), "outer");
      EXPECT_FALSE(inside.contains("args"));
      EXPECT_EQ(around.at("pid"), 3);
      EXPECT_EQ(around.at("args").at("number"), outer++ % kSpans);
      const double start = around.at("ts"), end = start + around.at("dur").get<double>();
      EXPECT_GE(start, 0);
      EXPECT_LE(start, inside.at("ts"));
      EXPECT_LE(inside.at("ts").get<double>() + inside.at("dur").get<double>(),
                end + 0.0021);  // three digits
    }
  }
  EXPECT_EQ(outer, kSpans * kWorkers);
}

TEST_F(TraceTest, RowsHaveTheNamesOfTheirThreads) {
  Session session(options());
  for (int n = 0; n < 3; ++n)
    std::jthread([] {
      name_thread("reader");
      const Span span("read");
    }).join();
  std::jthread([] { const Span span("write"); }).join();
  session.stop();
  std::map<std::string, std::vector<int>> rows;
  for (const json& event : events("M", {part()})) {
    if (event.at("name") == "process_name") {
      EXPECT_EQ(event.at("args").at("name"), "rank 3");
    }
    if (event.at("name") == "thread_name") rows[event.at("args").at("name")].push_back(event.at("tid"));
  }
  EXPECT_EQ(rows["reader"].size(), 1u) << "threads that come one after another share a row";
  EXPECT_EQ(rows["thread"].size(), 1u);
}

// A thread has its row from the start of its first span: in a row that it took at the end, spans of one that
// left it meanwhile would overlap.
TEST_F(TraceTest, ASpanEndsInTheRowInWhichItBegan) {
  Session session(options());
  std::barrier began(2), left(2);
  std::jthread longer([&] {
    name_thread("worker of two");
    const Span span("long");
    began.arrive_and_wait();
    left.arrive_and_wait();
  });
  std::jthread([&] {
    name_thread("worker of two");
    began.arrive_and_wait();
    const Span span("short");
  }).join();
  left.arrive_and_wait();
  longer.join();
  session.stop();
  const std::vector<json> spans = events("X", {part()});
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_NE(spans[0].at("tid"), spans[1].at("tid"));
}

TEST_F(TraceTest, WhatFindsNoRoomIsCounted) {
  constexpr std::uint64_t kMade = 7 * kWaitingSpans + 11;
  Session session(options());
  for (std::uint64_t n = 0; n < kMade; ++n) const Span span("short");
  const Summary summary = session.stop();
  EXPECT_EQ(summary.spans + summary.dropped, kMade);
  std::uint64_t told = 0;
  for (const json& event : events("i", {part()})) told += event.at("args").at("spans").get<std::uint64_t>();
  EXPECT_EQ(told, summary.dropped);
}

TEST_F(TraceTest, ThreadsBeyondTheBoundAreCounted) {
  constexpr int kMore = 3;
  Session session(options());
  std::barrier all(static_cast<std::ptrdiff_t>(kThreads) + kMore);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < kThreads + kMore; ++i)
      threads.emplace_back([&] {
        { const Span span("crowd"); }
        all.arrive_and_wait();  // so that no row is free again
      });
  }
  const Summary summary = session.stop();
  EXPECT_EQ(summary.spans + summary.dropped, kThreads + kMore);
  EXPECT_GE(summary.dropped, static_cast<std::uint64_t>(kMore));
}

TEST_F(TraceTest, ProcessesShareOneTimeLine) {
  SessionOptions first = options(0), second = options(1);
  second.zero_us = first.zero_us;
  Session one(first);
  { const Span span("early"); }
  one.stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  Session two(second);
  { const Span span("late"); }
  two.stop();
  std::map<std::string, json> found;
  for (const json& event : events("X", {part(0), part(1)})) found[event.at("name")] = event;
  EXPECT_EQ(found.at("early").at("pid"), 0);
  EXPECT_EQ(found.at("late").at("pid"), 1);
  // 5 ms apart, by a clock that another program may be setting.
  EXPECT_GT(found.at("late").at("ts").get<double>(), found.at("early").at("ts").get<double>() + 1000);
  EXPECT_FALSE(std::filesystem::exists(part(0))) << "parts are removed";
}

TEST_F(TraceTest, WhatAKilledProcessLeavesIsReadable) {
  Session session(options());
  { const Span span("whole"); }
  session.stop();
  const std::string whole = contents(part());
  // Cut anywhere: all lines but the torn one are there.
  for (std::size_t length : {whole.size() - 1, whole.size() - 2, whole.size() - 9, whole.size() / 2}) {
    std::ofstream(part()) << whole.substr(0, length);
    EXPECT_EQ(events("X", {part()}).size(), length == whole.size() - 1 ? 1u : 0u) << length;
  }
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsSaid) {
  SessionOptions nowhere = options();
  nowhere.part = dir_ / "none/part";
  EXPECT_THROW(Session{nowhere}, Error);
  SessionOptions full = options();
  full.part = "/dev/full";
  Session session(full);
  { const Span span("lost"); }
  EXPECT_THAT(session.stop().error, HasSubstr("/dev/full: cannot write (No space left on device)"));
  EXPECT_THROW(merge_parts({dir_ / "missing"}, dir_ / "trace.json"), Error);
}

TEST_F(TraceTest, SessionsComeAndGoWhileThreadsWork) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!stop) std::jthread([] { const Span outer("outer"), inner("inner"); }).join();
    });
  for (int n = 0; n < 7; ++n) {
    Session session(options(n));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // longer than between two writes
    const Summary summary = session.stop();
    EXPECT_EQ(events("X", {part(n)}).size(), summary.spans);
  }
  stop = true;
}

}  // namespace
}  // namespace shardwright::trace
