// metrics.jsonl and events.jsonl of a run: appended, one JSON object a line, as the contract says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/saver.h"
#include "ckpt/scan.h"
#include "kernels/device.h"

namespace shardwright::trainer {

struct StepRecord {
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t samples = 0;
  double tokens_per_s = 0;
  double step_ms = 0;
  double ckpt_stall_ms = 0;
  std::string layout;
  int ranks = 0;
  double loss_scale = 1;                 // of the step
  std::int64_t skipped_steps = 0;        // so far
  kernels::MemoryBytes memory{};         // peaks since the start; of each kind the rank's that has the most
  std::vector<std::int64_t> sample_ids;  // written if not empty
};

/// {"param","grad","optimizer","activation","buffers","total"}: JSON of bytes by use.
std::string memory_json(const kernels::MemoryBytes& bytes);

/// A batch that was passed over: no optimizer step was made of it.
struct SkipRecord {
  std::int64_t step = 0;  // the one that it would have been
  std::uint64_t generation = 0;
  double loss = 0;  // NaN if it was not computed again
  double grad_norm = 0;
  std::int64_t samples = 0;  // after it
  double loss_scale = 1;
  std::string reason;  // overflow | nonfinite | rollback
  std::vector<std::int64_t> sample_ids;
};

/// Appends whole lines with one write each; a torn last line is ended at opening. Thread-safe. Errors are
/// thrown.
class Records {
 public:
  /// Opens <run_dir>/metrics.jsonl and events.jsonl.
  explicit Records(const std::string& run_dir);
  ~Records();
  void step(const StepRecord& record);
  void skipped(const SkipRecord& record);
  void eval(std::int64_t step, double loss, std::int64_t tokens);
  void checkpoint(const ckpt::SaveOutcome& outcome);
  /// `fields_json` is a JSON object whose members join "time", "generation", "event".
  void event(std::uint64_t generation, const std::string& event, const std::string& fields_json = "{}");

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The highest generation that a line of events.jsonl or metrics.jsonl names; nothing if none does. Lines
/// that are damaged are passed over.
std::optional<std::uint64_t> recorded_generation(const std::string& run_dir);

/// The last step that metrics.jsonl tells of in this generation, 0 if none.
std::int64_t recorded_step(const std::string& run_dir, std::uint64_t generation);

/// JSON number that parses back to the same value; non-finite ones as the strings of the contract.
std::string json_number(double value);

}  // namespace shardwright::trainer
