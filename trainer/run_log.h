// What a run says: metrics.jsonl, events.jsonl and lines for people. Rank 0 speaks, the others are silent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ckpt/error.h"
#include "trainer/checkpointing.h"
#include "trainer/records.h"

namespace shardwright::trainer {

/// Calls never throw: the first failure (a full disk, say) is kept, so that the loop can end on all ranks at
/// once and in order.
class RunLog {
 public:
  RunLog(bool speaks, std::uint64_t generation) : speaks_(speaks), generation_(generation) {}

  /// Opens the run's records; until then only lines are said. Error(io | no_space).
  void open(const std::string& run_dir);
  void step(const StepRecord& record);
  /// Its line in the metrics, and one for people.
  void skipped(const SkipRecord& record);
  /// An event, and a line for people: `what` rose from what is usual.
  void spike(std::int64_t step, const char* what, double value, double usual);
  /// The same of the first loss after a resume, which is far above that of the checkpoint.
  void leap(std::int64_t step, double loss, double saved);
  void eval(std::int64_t step, double loss, std::int64_t tokens);
  void outcome(const ckpt::SaveOutcome& outcome);
  /// An event and a line: what came of all saves of a generation. Nothing if there was none.
  void saves(const SaveCounts& counts);
  /// `fields_json`: an object whose members join the event.
  void event(const std::string& event, const std::string& fields_json = "{}");
  /// An event with one path.
  void path_event(const std::string& event, const std::string& path);
  /// A line on standard output.
  void line(const std::string& text);
  const std::optional<Error>& failure() const { return failure_; }

 private:
  template <typename F>
  void keep_failure(F work);

  bool speaks_;
  std::uint64_t generation_;
  std::optional<Records> records_;
  std::optional<Error> failure_;
};

}  // namespace shardwright::trainer
