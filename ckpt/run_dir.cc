#include "ckpt/run_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/checkpoint_name.h"
#include "ckpt/commit.h"
#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "ckpt/record_fields.h"
#include "ckpt/scan.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kMaxGenerationBytes = 4096;

/// A random (version 4) UUID.
std::string new_uuid() {
  std::random_device device;
  std::array<std::uint32_t, 4> word{};
  for (std::uint32_t& w : word) w = device();
  word[1] = (word[1] & 0xffff0fffu) | 0x00004000u;
  word[2] = (word[2] & 0x3fffffffu) | 0x80000000u;
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:04x}{:08x}", word[0], word[1] >> 16, word[1] & 0xffff,
                     word[2] >> 16, word[2] & 0xffff, word[3]);
}

std::string generation_path(const std::string& run_dir) { return run_dir + "/GENERATION"; }

void write_generation(Env& env, const std::string& run_dir, const Generation& generation) {
  const nlohmann::ordered_json json = {{"run", generation.run}, {"generation", generation.number}};
  replace_file(env, generation_path(run_dir), sign_record(json.dump()));
}

/// True if `path` could be selected once it had its final name.
bool whole(Env& env, const std::string& path) {
  try {
    check_structure(env, path);
    return true;
  } catch (const Error&) {
    return false;  // why does not matter: an attempt that cannot be promoted is removed
  }
}

/// What is left of a run whose GENERATION is lost.
class Evidence {
 public:
  Evidence(Env& env, const std::string& directory, const RecordedGeneration& recorded) {
    for (const std::string& entry : env.list(directory)) {
      const auto name = parse_checkpoint_name(entry);
      if (!name) continue;
      if (name->generation) saw(*name->generation);
      try {
        take(*name, read_commit(env, directory + "/" + entry));
      } catch (const Error&) {
        // Without a COMMIT that can be trusted it says nothing but its name.
      }
    }
    if (recorded)
      if (const auto generation = recorded()) saw(*generation);
  }

  /// The last generation, nothing if there is no trace of any.
  std::optional<Generation> last() const {
    if (!number_) return std::nullopt;
    return Generation{newest_ ? newest_->run : new_uuid(), *number_};
  }

 private:
  void saw(std::uint64_t generation) {
    // The next one still has to be a generation.
    if (generation < kEndOfGenerations - 1) number_ = std::max(number_.value_or(0), generation);
  }

  /// The run is that of the checkpoint which a start would go on from; of what was moved aside only if there
  /// is none.
  void take(const CheckpointName& name, Commit commit) {
    saw(commit.generation);
    const bool committed = name.state == NameState::committed;
    if (newest_ && std::pair(newest_committed_, newest_->step) >= std::pair(committed, commit.step)) return;
    newest_ = std::move(commit);
    newest_committed_ = committed;
  }

  std::optional<std::uint64_t> number_;
  std::optional<Commit> newest_;
  bool newest_committed_ = false;
};

/// Tidies the attempts that earlier generations left.
class Tidying {
 public:
  Tidying(Env& env, const std::string& directory, Started& started)
      : env_(env), directory_(directory), started_(started) {}

  /// Finished attempts of `previous` are promoted, if there was one.
  void run(const std::optional<Generation>& previous) {
    for (const std::string& entry : env_.list(directory_)) {
      const auto name = parse_checkpoint_name(entry);
      if (previous && name && name->state == NameState::attempt && may_promote(*name, *previous))
        promote(*name);
    }
    bool moved = false;
    for (const std::string& entry : env_.list(directory_)) {
      const auto name = parse_checkpoint_name(entry);
      if (!name || name->state != NameState::attempt) continue;
      env_.rename(path(entry), free_name(env_, path(step_dir_name(name->step) + ".trash-" + name->suffix)));
      moved = true;
    }
    if (moved) env_.sync_dir(directory_);
    for (const std::string& entry : env_.list(directory_)) {
      const auto name = parse_checkpoint_name(entry);
      if (!name || name->state != NameState::trash) continue;
      remove_checkpoint_dir(env_, path(entry));
      started_.removed.push_back(path(entry));
    }
    // Of a start that was killed in the middle of naming its newest.
    if (env_.exists(path("LATEST.new"))) env_.unlink(path("LATEST.new"));
  }

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  bool may_promote(const CheckpointName& name, const Generation& previous) const {
    if (!whole(env_, path(name.text))) return false;
    const Commit commit = read_commit(env_, path(name.text));
    if (commit.run != previous.run || commit.step != name.step || commit.attempt != name.suffix) return false;
    return commit.generation == previous.number ||
           (commit.generation < previous.number && promotion_interrupted(name.step, commit.generation));
  }

  /// An earlier start was killed between moving a step aside and giving its successor the name: the step is
  /// superseded by that attempt or by a later start, and no checkpoint has its name. Finishing it is the only
  /// way not to lose both.
  bool promotion_interrupted(std::uint64_t step, std::uint64_t generation) const {
    if (env_.exists(path(step_dir_name(step)))) return false;
    for (const std::string& entry : env_.list(directory_)) {
      const auto name = parse_checkpoint_name(entry);
      if (name && name->state == NameState::superseded && name->step == step &&
          name->generation.value_or(0) >= generation)
        return true;
    }
    return false;
  }

  void promote(const CheckpointName& name) {
    const std::string final_path = path(step_dir_name(name.step));
    if (env_.exists(final_path)) {
      env_.rename(final_path,
                  free_name(env_, final_path + fmt::format(".superseded-{}", started_.generation.number)));
      env_.sync_dir(directory_);
    }
    env_.rename(path(name.text), final_path);
    env_.sync_dir(directory_);
    write_latest(env_, directory_, step_dir_name(name.step));
    started_.promoted.push_back(final_path);
  }

  Env& env_;
  std::string directory_;
  Started& started_;
};

}  // namespace

RunLock::RunLock(Env& env, const std::string& directory) {
  env.create_dirs(directory);
  lock_ = env.lock(directory + "/run.lock");
}

Generation read_generation(Env& env, const std::string& run_dir) {
  const std::string path = generation_path(run_dir);
  const std::string text = open_record(read_file(env, path, kMaxGenerationBytes), path);
  try {
    const nlohmann::json json = parse_object(text);
    return {run_field(json), generation_field(json)};
  } catch (const Error& e) {
    throw Error(ErrorCode::damaged, fmt::format("{}: not the fields of a GENERATION ({})", path, e.what()),
                path);
  }
}

Started begin_generation(Env& env, const std::string& run_dir, const std::string& checkpoints_dir,
                         const RecordedGeneration& recorded) {
  env.create_dirs(run_dir);
  env.create_dirs(checkpoints_dir);
  Started started;
  std::optional<Generation> previous;
  std::string lost;
  try {
    previous = read_generation(env, run_dir);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::missing && e.code() != ErrorCode::damaged) throw;
    previous = Evidence(env, checkpoints_dir, recorded).last();
    lost = e.code() == ErrorCode::missing ? generation_path(run_dir) + ": not there" : e.what();
  }
  // From here on no committer or pruner of the previous generation may rename anything.
  started.generation = previous ? Generation{previous->run, previous->number + 1} : Generation{new_uuid(), 0};
  if (!lost.empty() && previous)
    started.recovered =
        fmt::format("{}; going on as generation {} of run {}, after all that is recorded here", lost,
                    started.generation.number, started.generation.run);
  write_generation(env, run_dir, started.generation);
  Tidying(env, checkpoints_dir, started).run(previous);
  return started;
}

std::vector<std::string> supersede_newer(Env& env, const std::string& checkpoints_dir, std::uint64_t step,
                                         bool all, const Generation& generation) {
  std::vector<std::string> moved;
  for (const std::string& entry : env.list(checkpoints_dir)) {
    const auto its_step = parse_step_dir(entry);
    if (!its_step || (!all && *its_step <= step)) continue;
    const std::string from = checkpoints_dir + "/" + entry;
    const std::string to = free_name(env, from + fmt::format(".superseded-{}", generation.number));
    env.rename(from, to);
    moved.push_back(to);
  }
  if (!moved.empty()) env.sync_dir(checkpoints_dir);
  return moved;
}

}  // namespace shardwright::ckpt
