// Failures on request, honoured in release builds: what is tested is what is shipped.
//
//   SHARDWRIGHT_FAULT=<point>[:rank=R][:step=S][:nth=N][:gen=G]=kill|stop|exit|eio|enospc|delay(ms)|nan|flip
//
// rank and step choose whose visits of the point count; nth (from 1) chooses one of those visits, without it
// each does. It applies to the first generation of a call unless gen is given; generations count from 0
// within the call, and a supervisor tells its workers theirs in SHARDWRIGHT_CALL_GENERATION.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::ckpt {

/// Names of all fault points of the program, in the order a run meets them.
const std::vector<std::string>& fault_point_names();

/// Checks the variable's syntax, so that a typing error is refused at start: Error(usage) names the mistake
/// and the nearest point. Does nothing if it is unset.
void check_fault_variable();

/// Replaces what the environment asked for, with the same syntax; empty asks for nothing. Error(usage) as
/// above.
void set_fault(const std::string& request);

/// Marks a place where a failure can be injected. `rank` is the writer or worker, `step` the step in work.
/// kill: SIGKILL to itself; stop: SIGSTOP; exit: _exit(1); eio, enospc: throws the Error that the system call
/// would have caused; delay: sleeps. Costs one load when nothing is asked. Thread-safe.
void fault_point(std::string_view name, int rank = 0, std::optional<std::uint64_t> step = std::nullopt);

/// The same at a place where a value is at hand: `value`, or with the action nan, which only such points
/// have, a NaN.
double faulty_value(std::string_view name, double value, int rank, std::uint64_t step);

/// The same at a place where memory is at hand, as a memory that fails: the action flip, which only such
/// points have, changes the lowest bit of the first byte.
void faulty_memory(std::string_view name, std::span<std::byte> memory, int rank, std::uint64_t step);

}  // namespace shardwright::ckpt
