#include "trainer/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include "ckpt/error.h"
#include "ckpt/trace.h"

namespace shardwright::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(50);
// Besides the commit's deadline: how long a rank may go on writing a shard of an attempt that is lost
// already.
constexpr double kSettleMargin = 300;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Checkpointing::Checkpointing(ckpt::Env& env, ckpt::SaverOptions options,
                             const Config::CheckpointSection& section, Communicator& world,
                             Progress& progress, std::function<void(const ckpt::SaveOutcome&)> on_outcome)
    : options_(options),
      section_(section),
      world_(world),
      progress_(progress),
      on_outcome_(std::move(on_outcome)),
      saver_(env, options) {}

void Checkpointing::put_words(std::span<double> words) {
  // Busy is asked first: a save that ends in between is told with the next words, never lost.
  words[0] = saver_.busy() ? 1 : 0;
  collect_outcomes();
  // Only rank 0 knows what came of an attempt: it has seen all parts. Bits are exact in a double, and few
  // saves end in a step.
  words[1] = static_cast<double>(ended_failed_.size());
  words[2] = 0;
  for (std::size_t i = 0; i < ended_failed_.size(); ++i)
    if (ended_failed_[i]) words[2] += std::ldexp(1.0, static_cast<int>(i));
  ended_failed_.clear();
  words[3] = own_failure_.empty() ? 0 : 1;
}

void Checkpointing::take_words(std::span<const double> sums) {
  any_busy_ = sums[0] > 0;
  if (sums[3] > 0) tell_failures();
  const std::size_t ended = static_cast<std::size_t>(sums[1]);
  const std::uint64_t failed = static_cast<std::uint64_t>(sums[2]);
  for (std::size_t i = 0; i < ended && !pending_.empty(); ++i) {
    const Pending done = pending_.front();
    pending_.pop_front();
    last_failure_.clear();
    if ((failed >> i & 1) == 0) continue;
    last_failure_ = fmt::format("checkpoint of step {}: {}", done.step, reason_.empty() ? "failed" : reason_);
    failed_.push_back(done);
  }
  if (!any_busy_) discard_failed();
}

void Checkpointing::collect_outcomes() {
  for (const ckpt::SaveOutcome& outcome : saver_.take_outcomes()) {
    if (world_.rank() != 0) {
      if (outcome.result == ckpt::SaveResult::failed) {
        own_failure_ = outcome.reason;
        // Not fmt::print: that throws where the log cannot be written, and a full disk is what is told here.
        std::fputs(
            fmt::format("rank {}: checkpoint of step {}: {}\n", world_.rank(), outcome.step, outcome.reason)
                .c_str(),
            stderr);
      }
      continue;
    }
    on_outcome_(outcome);
    const bool failed = outcome.result == ckpt::SaveResult::failed;
    ++(failed                                        ? counts_.failed
       : outcome.result == ckpt::SaveResult::skipped ? counts_.skipped
                                                     : counts_.committed);
    if (outcome.result == ckpt::SaveResult::skipped) continue;
    ended_failed_.push_back(failed);
    if (failed) reason_ = outcome.reason;
  }
}

// A rank that fails may be unable to leave a part that says so; without this rank 0 would wait for its
// deadline.
void Checkpointing::tell_failures() {
  const std::vector<std::string> reasons = world_.all_gather(std::exchange(own_failure_, {}));
  if (world_.rank() != 0) return;
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    saver_.cancel(fmt::format("rank {}: {}", rank, reasons[rank]));
    return;
  }
}

void Checkpointing::discard_failed() {
  for (const Pending& attempt : std::exchange(failed_, {})) {
    try {
      saver_.discard(attempt.attempt, static_cast<std::uint64_t>(attempt.step));
    } catch (const Error& error) {
      // Left over files are in nobody's way: the next generation tidies them.
      std::fputs(fmt::format("rank {}: files of a failed checkpoint stay: {}\n", world_.rank(), error.what())
                     .c_str(),
                 stderr);
    }
  }
}

void Checkpointing::due(std::int64_t step, std::vector<ckpt::SaveItem> items,
                        std::vector<ckpt::SaveItem> replicas, ckpt::Description description, bool must) {
  const std::uint64_t number = save_number_++;
  const std::uint64_t at = static_cast<std::uint64_t>(step);
  if (any_busy_ && !must && section_.on_busy == "skip") {
    saver_.skip(at, number, "the previous save was still in work");
    saver_.hurry();  // or the next ones would be skipped as well
    return;
  }
  if (any_busy_) {
    const Clock::time_point asked = Clock::now();
    settle();
    ++counts_.waits;
    counts_.wait_ms += ms_since(asked);
  }
  const Clock::time_point start = Clock::now();
  progress_.enter(Phase::save_wait);
  pending_.push_back({step, fmt::format("{}-{}", options_.generation, number)});
  saver_.start({at, number, std::move(items), std::move(description), std::move(replicas)});
  any_busy_ = true;
  stall_ms_ += ms_since(start);
}

void Checkpointing::settle() {
  const trace::Span span("wait for checkpoint");
  const Clock::time_point start = Clock::now();
  progress_.enter(Phase::save_wait);
  saver_.hurry();
  auto pause = kFirstPause;
  for (;;) {
    double words[kWords];
    put_words(words);
    world_.all_reduce_sum(std::span<double>(words));
    take_words(words);
    if (!any_busy_ && pending_.empty()) break;
    if (ms_since(start) > 1e3 * (section_.commit_deadline_s + kSettleMargin))
      throw Error(ErrorCode::deadline,
                  fmt::format("rank {}: a save has not ended after {:.0f} s; a file system that answers",
                              world_.rank(), ms_since(start) / 1e3));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
    progress_.advance();
  }
  stall_ms_ += ms_since(start);
}

void Checkpointing::before_write(const std::string& tensor, const std::string& kind, const ckpt::Box& box) {
  const Clock::time_point start = Clock::now();
  saver_.before_write(tensor, kind, box);
  stall_ms_ += ms_since(start);
}

double Checkpointing::take_stall_ms() { return std::exchange(stall_ms_, 0.0); }

}  // namespace shardwright::trainer
