// The loop of optimizer steps of one rank, from a loaded start to the last step, a signal, or a failure that
// all ranks share.
#pragma once

#include <cstdint>
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
#include "trainer/run_log.h"
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
  void step(std::int64_t number);
  void say(const StepRecord& record, bool always);
  void evaluate();
  void save(bool must);
  /// Stops the run, all ranks together, if an element that is about to be saved is not finite.
  void check_finite();
  [[noreturn]] void stop_for(const Error& error);

  LoopParts parts_;
  TrainingState state_;
  TrainStep train_step_;
  bool stop_ = false;  // agreed by all ranks
  double said_at_s_ = 0;
};

}  // namespace shardwright::trainer
