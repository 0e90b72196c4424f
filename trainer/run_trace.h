// The trace of a run (ckpt/trace.h): each rank of each generation writes a part beside the file, and who is
// left when they have ended joins them, so that a rank that is killed takes only its last moments with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ckpt/trace.h"
#include "trainer/communicator.h"

namespace shardwright::trainer {

/// Where a supervisor tells its workers the start of the time line, so that all generations share it.
inline constexpr const char* kTraceZeroVariable = "SHARDWRIGHT_TRACE_ZERO";

/// Error(io, missing, ...) if `file` cannot be made.
void check_trace_file(const std::string& file);

/// Joins the parts of generations `first` to `last` to `file`, and says on standard error why not, if not.
void join_trace_parts(const std::string& file, std::uint64_t first, std::uint64_t last);

/// Records this rank from its construction to finish() or its end; nothing if `file` is empty.
class RunTrace {
 public:
  /// Collective; AgreedError if a part cannot be made.
  RunTrace(const std::string& file, Communicator& world, std::uint64_t generation, bool supervised);
  /// Ends recording; without a supervisor rank 0 joins the parts. Collective.
  void finish();

 private:
  std::string file_;
  Communicator& world_;
  std::uint64_t generation_;
  bool supervised_;
  std::unique_ptr<trace::Session> session_;
};

}  // namespace shardwright::trainer
