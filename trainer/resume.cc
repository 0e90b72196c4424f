#include "trainer/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "ckpt/checkpoint.h"
#include "ckpt/commit.h"
#include "ckpt/digest.h"
#include "ckpt/trace.h"
#include "ckpt/verify.h"
#include "trainer/agreement.h"
#include "trainer/loss_scale.h"

namespace shardwright::trainer {
namespace {

// What rank 0 tells the others: the checkpoint's path and the digest that its manifest must have.
struct Choice {
  bool fresh = true;
  std::string path;
  ckpt::ManifestDigest digest;
  bool supersede_all = false;
};

std::string encode(const Choice& choice) {
  return nlohmann::json{{"fresh", choice.fresh},
                        {"path", choice.path},
                        {"name", choice.digest.name},
                        {"bytes", choice.digest.bytes},
                        {"xxh3_128", ckpt::to_hex(choice.digest.xxh3_128)},
                        {"supersede_all", choice.supersede_all}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Choice decode(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  Choice choice;
  choice.fresh = json.at("fresh").get<bool>();
  choice.path = json.at("path").get<std::string>();
  choice.digest = {json.at("name").get<std::string>(), json.at("bytes").get<std::uint64_t>(),
                   ckpt::parse_digest(json.at("xxh3_128").get<std::string>())};
  choice.supersede_all = json.at("supersede_all").get<bool>();
  return choice;
}

// Rank 0's part: candidates in the order in which they are tried.
class Chooser {
 public:
  Chooser(ckpt::Env& env, const Config& config, const ResumeRequest& request)
      : env_(env), directory_(config.checkpoints_dir), request_(request) {}

  Choice first() {
    if (request_.mode == Resume::path) return named();
    if (request_.mode == Resume::never) {
      if (any_checkpoint())
        throw Error(
            ErrorCode::usage,
            fmt::format(
                "{}: has checkpoints, and --resume never would begin anew beside them; another [run] dir, or "
                "--resume auto",
                directory_),
            directory_);
      return {};
    }
    const std::optional<ckpt::Selection> newest = newest_valid();
    if (newest) return {false, newest->path, newest->commit.manifest, false};
    if (any_checkpoint()) throw none_valid();
    if (request_.mode == Resume::must)
      throw Error(ErrorCode::incomplete,
                  fmt::format("{}: no checkpoint to resume from; --resume auto starts fresh", directory_),
                  directory_);
    return {};
  }

  /// After the content of `failed` proved bad.
  Choice next(const Choice& failed, const std::string& reason) {
    passed_over_.push_back({failed.path, reason});
    if (request_.mode == Resume::path)
      throw Error(ErrorCode::damaged, fmt::format("{}: {}", failed.path, reason), failed.path);
    const std::uint64_t limit = *ckpt::parse_step_dir(std::filesystem::path(failed.path).filename().string());
    for (const ckpt::ScanEntry& entry : ckpt::scan(env_, directory_)) {
      if (entry.step >= limit || !is_candidate(entry)) continue;
      if (entry.status == ckpt::Status::valid)
        return {false, entry.path, ckpt::read_commit(env_, entry.path).manifest, false};
      passed_over_.push_back({entry.path, entry.reason});
    }
    throw none_valid();
  }

  const std::vector<ckpt::PassedOver>& passed_over() const { return passed_over_; }

 private:
  static bool is_candidate(const ckpt::ScanEntry& entry) {
    return ckpt::parse_step_dir(std::filesystem::path(entry.path).filename().string()).has_value();
  }

  std::optional<ckpt::Selection> newest_valid() {
    if (!env_.is_dir(directory_)) return std::nullopt;
    return ckpt::newest_valid(env_, directory_, &passed_over_);
  }

  // Superseded ones count: where only they are left, a fresh start would be a silent one.
  bool any_checkpoint() { return env_.is_dir(directory_) && !ckpt::scan(env_, directory_).empty(); }

  Error none_valid() {
    std::vector<std::string> reasons;
    for (const ckpt::PassedOver& p : passed_over_) reasons.push_back(p.reason);
    if (reasons.empty())  // only superseded ones are left
      for (const ckpt::ScanEntry& entry : ckpt::scan(env_, directory_)) reasons.push_back(entry.reason);
    return Error(
        ErrorCode::damaged,
        fmt::format(
            "{}: has checkpoints but none to go on from ({}); a repaired one, --resume PATH, or another "
            "[run] dir",
            directory_, fmt::join(reasons, "; ")),
        directory_);
  }

  Choice named() {
    const std::string path = ckpt::resolve_checkpoint(env_, request_.path);
    const ckpt::Commit commit = ckpt::read_commit(env_, path);
    const std::filesystem::path parent =
        std::filesystem::weakly_canonical(std::filesystem::path(path)).parent_path();
    const bool own = parent == std::filesystem::weakly_canonical(directory_) && is_step_name(path);
    return {false, path, commit.manifest, !own};
  }

  static bool is_step_name(const std::string& path) {
    return ckpt::parse_step_dir(std::filesystem::weakly_canonical(path).filename().string()).has_value();
  }

  ckpt::Env& env_;
  std::string directory_;
  const ResumeRequest& request_;
  std::vector<ckpt::PassedOver> passed_over_;
};

// Errors that say "this checkpoint is not whole", as opposed to "this request is wrong".
bool is_bad_content(ErrorCode code) {
  switch (code) {
    case ErrorCode::damaged:
    case ErrorCode::incomplete:
    case ErrorCode::missing:
    case ErrorCode::future_version:
    case ErrorCode::io:
      return true;
    default:
      return false;
  }
}

Choice broadcast_choice(Communicator& world, const std::function<Choice()>& choose) {
  Choice choice;
  together(world, [&] {
    if (world.rank() == 0) choice = choose();
  });
  return decode(world.broadcast(encode(choice), 0));
}

/// Error(usage) for what may not differ. Of a checkpoint that nobody has named, only if it is whole: one
/// whose files were mixed with another run's is damaged, whatever its manifest says.
void refuse(const Comparison& comparison, const std::string& path, ckpt::Env& env,
            const ResumeRequest& request) {
  try {
    refuse_changes(comparison, path);
  } catch (const Error&) {
    if (request.mode == Resume::path) throw;
    const ckpt::VerifyReport report = ckpt::verify(env, path, request.threads);
    if (report.ok()) throw;
    throw Error(ErrorCode::damaged, report.problems.front().message, path);
  }
}

}  // namespace

Start begin_from(ckpt::Env& env, Communicator& world, const Config& config, const ResumeRequest& request,
                 const TrainingState& initial, Parameters& parameters) {
  const trace::Span span("resume");
  Chooser chooser(env, config, request);
  Start start;
  start.state = initial;
  Choice choice = broadcast_choice(world, [&] { return chooser.first(); });
  while (!choice.fresh) {
    std::optional<Error> failure = failure_of_any(world, [&] {
      const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(env, choice.path, choice.digest);
      start.comparison = compare(checkpoint.manifest(), choice.path, config, parameters.model(), initial);
      if (!request.accept_changes) refuse(start.comparison, choice.path, env, request);
      const TrainingState stored = training_state_of(checkpoint.manifest(), choice.path);
      start.state = stored;
      start.state.seed = initial.seed;
      start.state.dtype = initial.dtype;
      adapt_loss_scale(start.state, stored.dtype, config.train);
      start.state.global_batch = initial.global_batch;
      start.state.data = initial.data;
      parameters.load(checkpoint, start.comparison.weights_only, {request.threads, world.rank()});
    });
    if (!failure) break;
    if (!is_bad_content(failure->code())) throw AgreedError(*failure);
    choice = broadcast_choice(world, [&] { return chooser.next(choice, failure->what()); });
  }
  start.fresh = choice.fresh;
  start.path = choice.path;
  start.supersede_all = choice.supersede_all;
  start.passed_over = chooser.passed_over();
  if (start.fresh) parameters.initialise(initial.seed);
  return start;
}

std::vector<std::string> supersede(ckpt::Env& env, Communicator& world, const Config& config,
                                   const Start& start, const ckpt::Generation& generation) {
  std::vector<std::string> renamed;
  together(world, [&] {
    if (world.rank() != 0 || start.fresh) return;
    renamed = ckpt::supersede_newer(env, config.checkpoints_dir, static_cast<std::uint64_t>(start.state.step),
                                    start.supersede_all, generation);
  });
  return renamed;
}

}  // namespace shardwright::trainer
