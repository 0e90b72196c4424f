// Runs this rank's stages by a list of instructions: receives, computes, sends. What is done in which order
// is the schedule's (schedule.h); here is only how.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "trainer/communicator.h"
#include "trainer/decoder.h"
#include "trainer/schedule.h"

namespace shardwright::trainer {

struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool early_receives = false;  // one computation before they are needed
  bool sequence_parallel = false;
  std::int64_t micro_batches = 1;  // of an optimizer step
  std::int64_t batch = 1;          // sequences of a micro-batch at most
  std::int64_t positions = 0;      // of a sequence at most
  std::uint64_t seed = 0;          // of dropout masks
  Recompute recompute = Recompute::none;
};

/// A rank's share of the model with all that runs it. Every call is collective over the ranks of one copy of
/// the model (same dp index); main thread only.
class Pipeline {
 public:
  /// The micro-batch of a number; asked for once per stage that this rank runs, the same on all ranks.
  using Source = std::function<MicroBatch(std::int64_t micro)>;
  /// Told of each forward and backward before it starts.
  using Observer = std::function<void(Action)>;

  Pipeline(Parameters& parameters, Communicators& comms, DataParallel& data, kernels::Stream& stream,
           const PipelineOptions& options);

  /// Forward and backward of a step's micro-batches; adds scale * gradient of the sum of losses to the
  /// parameters' gradients. Returns what this rank adds to the sum of losses over all ranks: one rank of a
  /// copy has the sum, the others have 0.
  double train(const Source& source, float scale, const Observer& observer);
  /// Forward of any number of micro-batches, nothing dropped; the result as above.
  double evaluate(std::int64_t micro_batches, const Source& source, const Observer& observer);

 private:
  /// Micro-batches in work in one stage; a buffer's transfers end before it is used again.
  struct Transfers {
    std::unique_ptr<Transfer> input, output, output_gradient, input_gradient;
  };
  struct Run {
    const Source& source;
    float scale;
    bool training;
    double loss = 0;
  };
  void execute(const Instruction& instruction, Run& run);
  /// Makes the buffer of a micro-batch ready for it.
  void begin(int chunk, std::int64_t micro, const Source& source);
  double run(const std::vector<Instruction>& schedule, Run run, const Observer& observer);

  Communicator& pipeline_;
  Communicator& tensor_;
  TensorGroup group_;
  DecoderShape shape_;
  Workspace work_;
  std::vector<Instruction> schedule_;              // of a step
  std::vector<DecoderStage> stages_;               // by chunk
  std::vector<std::vector<Transfers>> transfers_;  // by chunk and buffer
};

}  // namespace shardwright::trainer
