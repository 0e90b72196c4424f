// Pipeline schedules as data: what a rank does in one optimizer step is a list of instructions, a pure
// function of its place in the pipeline and the number of micro-batches. One small runtime runs any of them,
// and a simulator in the tests proves them without one. Nothing here communicates.
//
// What the lists assume of the runtime:
// - receive_* starts a receive into the buffers of (chunk, micro) and does not wait; the forward or backward
//   of the same (chunk, micro) does.
// - send_* starts a send and does not wait. It may stay incomplete until the peer has started the matching
//   receive (nothing needs to be buffered on the way).
// - Messages between two ranks are matched in order, apart for each direction (inputs, gradients) and
//   receiving chunk.
// - The buffers of (chunk, micro) live in slot micro mod buffers_needed(chunk); an instruction that begins to
//   use a slot waits until all sends from it are complete. At the end of the list the runtime waits for all
//   sends.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace shardwright::trainer {

enum class ScheduleKind : std::uint8_t { gpipe, one_f_one_b };

/// "gpipe" or "1f1b", as in `parallel.schedule`; Error(usage) for anything else.
ScheduleKind parse_schedule_kind(std::string_view text);

/// Where a rank stands in its pipeline. Virtual stage s = chunk * ranks + rank holds the s-th part of the
/// model: what the last rank puts out of one chunk goes to the first rank's next.
struct PipelinePlace {
  int ranks = 1;
  int rank = 0;
  int chunks = 1;  // virtual stages of each rank; more than 1 needs more than 1 rank
};

enum class Action : std::uint8_t {
  receive_input,  // from the previous virtual stage; not in the first
  forward,
  send_output,       // to the next virtual stage; not in the last
  receive_gradient,  // from the next virtual stage; not in the last
  backward,
  send_gradient,  // to the previous virtual stage; not in the first
};

struct Instruction {
  Action action = Action::forward;
  int chunk = 0;
  std::int64_t micro = 0;  // from 0, the same number on all ranks
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// The instructions of one rank for one optimizer step: GPipe (Huang et al. 2019: all forward passes, then
/// all backward passes), or 1F1B (Narayanan et al. 2019 and 2021, with a flush: as few forward passes ahead
/// as keep the pipeline full, then one forward and one backward in turn). With chunks > 1 both are
/// interleaved (Narayanan et al. 2021): groups of `ranks` micro-batches pass through one chunk after the
/// other. A chunk's micro-batches run in order, forward and backward, in each schedule, so its gradients are
/// sums in the same order. Each receive stands right before the pass that needs it, each send right after the
/// pass that made it. Error(usage) for a place outside of its pipeline, micro_batches < 1, several chunks on
/// a single rank, or interleaving with micro_batches that `ranks` does not divide.
std::vector<Instruction> make_schedule(ScheduleKind kind, const PipelinePlace& place,
                                       std::int64_t micro_batches);

/// Forward passes alone (evaluation), in the order of GPipe's; any number of micro-batches. What a
/// micro-batch used is free after its last instruction.
std::vector<Instruction> make_forward_schedule(const PipelinePlace& place, std::int64_t micro_batches);

/// The same passes with each receive moved in front of the pass before the one that needs it, so that the
/// transfer runs during that pass (a gradient's not in front of its own forward pass). Needs at most one
/// buffer more. For lists of the two functions above. Interleaved 1F1B keeps the textbook's time only so:
/// with receives where they are needed, three or more chunks wait for slots that a gradient has not left yet.
std::vector<Instruction> with_early_receives(std::vector<Instruction> schedule);

/// The most micro-batches of one chunk whose buffers are alive at once. A micro-batch is alive from its first
/// instruction (receive_input, in the first stage forward) to its last (send_gradient, in the first stage
/// backward; without backward passes send_output, in the last stage forward). 0 if the list has none of the
/// chunk.
std::int64_t buffers_needed(std::span<const Instruction> schedule, int chunk);

/// buffers_needed() of make_schedule()'s list for each chunk, without the list: for plans of many layouts.
std::vector<std::int64_t> buffers_of_chunks(ScheduleKind kind, const PipelinePlace& place,
                                            std::int64_t micro_batches);

}  // namespace shardwright::trainer
