// One reshard at work: everything between taking the target's lock and giving it back.
#pragma once

#include <memory>
#include <string>

#include "ckpt/checkpoint.h"
#include "ckpt/chunk_cache.h"
#include "ckpt/env.h"
#include "ckpt/manifest.h"
#include "ckpt/shard.h"
#include "reshard/memory_budget.h"
#include "reshard/process_group.h"
#include "reshard/reshard.h"
#include "reshard/target_plan.h"

namespace shardwright::reshard {

/// Target ranks are written at once, as many as memory allows, so that each source chunk is read once for all
/// of them. Of several processes, each writes a run of neighbouring ranks. A finished shard that an
/// interrupted try of the same attempt left is kept.
class Executor {
 public:
  /// All but `target` outlive this object.
  Executor(ckpt::Env& env, const ReshardOptions& options, std::shared_ptr<const ckpt::Checkpoint> source,
           const TargetPlan& plan, const std::string& target);

  /// Writes, proves and commits; fills what the report says of that. Errors of reshard().
  void run(ReshardReport& report);

 private:
  void lead(ReshardReport& report);
  void follow();
  void remove_leftovers();
  void sort_out(ReshardReport& report);
  bool finish_commit(ReshardReport& report);
  ProcessWork write();
  void add_work(const ProcessWork& work, ReshardReport& report) const;
  bool was_committed() const;
  void commit(ReshardReport& report);
  std::uint64_t needed_bytes() const;
  ckpt::Codec source_codec() const;
  void accept(const ckpt::Manifest& target, ReshardReport& report) const;
  void give_up(const Error& why) const;

  ckpt::Env& env_;
  const ReshardOptions& options_;
  std::shared_ptr<const ckpt::Checkpoint> source_;
  const TargetPlan& plan_;
  MemoryBudget memory_;
  std::string target_;
  std::string layout_json_;
  std::string attempt_;
  std::string attempt_dir_;
  std::string lock_path_;
  std::string group_dir_;
  std::unique_ptr<ProcessGroup> group_;
};

/// Error(exists) if the target is there, Error(usage) if it lies in the source.
void check_target(ckpt::Env& env, const std::string& source, const std::string& target);

}  // namespace shardwright::reshard
