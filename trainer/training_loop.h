// The loop of optimizer steps of one rank, from a loaded start to the last step, a signal, or a failure that
// all ranks share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "ckpt/env.h"
#include "trainer/checkpointing.h"
#include "trainer/communicator.h"
#include "trainer/config.h"
#include "trainer/data.h"
#include "trainer/optimizer.h"
#include "trainer/parameters.h"
#include "trainer/pipeline.h"
#include "trainer/progress.h"
#include "trainer/replicas.h"
#include "trainer/run_log.h"
#include "trainer/spike_watch.h"
#include "trainer/train_step.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {

/// What a loop works on. References outlive it.
struct LoopParts {
  const Config& config;
  Communicators& comms;
  Parameters& parameters;
  Pipeline& pipeline;
  Optimizer& optimizer;
  const TokenData& train_data;
  const SampleOrder& order;
  const TokenData* valid_data;  // null: no evaluation
  Checkpointing& checkpointing;
  Progress& progress;
  RunLog& log;
  std::uint64_t generation;
  /// Loads the newest valid checkpoint of this run and returns its state. Collective. AgreedError if there is
  /// none.
  std::function<TrainingState()> last_checkpoint;
};

enum class LoopEnd : std::uint8_t { done, preempted };

class TrainingLoop {
 public:
  TrainingLoop(LoopParts parts, const TrainingState& start);

  /// Trains up to and including step `last` and makes the last save. On return all saves have ended and the
  /// last is valid. Throws AgreedError: nonfinite, an error of rank 0's records, the last save not valid.
  /// Collective.
  LoopEnd run(std::int64_t last);
  const TrainingState& state() const { return state_; }

 private:
  /// Tries to make the optimizer step of this number with the next batch. False if the batch was passed over,
  /// or the run went back to a checkpoint.
  bool step(std::int64_t number);
  /// The policy for a batch of which loss or gradient norm is not finite.
  void pass_over(std::int64_t number, double loss, const StepResult& norm,
                 const std::vector<std::int64_t>& samples);
  void skip(std::int64_t number, double loss, double grad_norm, const char* reason,
            const std::vector<std::int64_t>& samples);
  /// Back to the last checkpoint; the batch that begins at `samples` will be passed over.
  void go_back(const Error& why, std::int64_t samples);
  void watch_spikes(std::int64_t number, double loss, double grad_norm);
  void say(const StepRecord& record, bool always);
  /// Peaks by use, of each the largest over all ranks. Collective.
  kernels::MemoryBytes largest_peaks();
  void evaluate();
  /// No checkpoint if an element that is about to be saved is not finite: the policy then decides.
  void save(bool must);
  /// A tensor with an element, of those about to be saved, that is not finite; empty if there is none. All
  /// ranks agree.
  std::string not_finite();
  [[noreturn]] void stop_for(const Error& error);

  LoopParts parts_;
  TrainingState state_;
  TrainStep train_step_;
  std::vector<Replica> replicas_;  // compared when this rank saves; none if they are not to be
  SpikeWatch loss_spikes_;
  SpikeWatch norm_spikes_;
  std::optional<double> loss_of_checkpoint_;  // until the first step after a resume
  std::set<std::int64_t> bad_batches_;        // first samples of those to pass over after a rollback
  std::int64_t skips_in_row_ = 0;
  std::int64_t rollbacks_ = 0;
  std::int64_t saved_step_ = -1;
  bool stop_ = false;                           // agreed by all ranks
  std::optional<kernels::MemoryBytes> memory_;  // after the first step, which allocates the last
  double said_at_s_ = 0;
};

}  // namespace shardwright::trainer
