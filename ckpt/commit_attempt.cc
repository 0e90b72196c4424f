#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/replicas.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{10};
constexpr milliseconds kLongestWait{1000};

void give_up_if(const std::atomic<bool>* cancel, const std::string& directory) {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::peer, directory + ": the save was cancelled", directory);
}

/// Sleeps in short pieces, so that cancelling and the deadline are seen at once.
void pause(milliseconds length, Clock::time_point deadline, const std::atomic<bool>* cancel,
           const std::string& directory) {
  const auto until = std::min(Clock::now() + length, deadline);
  while (Clock::now() < until) {
    give_up_if(cancel, directory);
    std::this_thread::sleep_for(std::min<Clock::duration>(kFirstWait, until - Clock::now()));
  }
}

void check_part(const Part& part, int rank, const CommitJob& job) {
  const std::string path = job.attempt_dir + "/" + part_name(rank);
  if (part.rank != rank || part.attempt != job.commit.attempt || part.step != job.commit.step)
    throw Error(
        ErrorCode::damaged,
        fmt::format(
            "{}: belongs to rank {} of attempt {} at step {}; expected rank {} of attempt {} at step {}",
            path, part.rank, part.attempt, part.step, rank, job.commit.attempt, job.commit.step),
        path);
  if (!part.error.empty())
    throw Error(ErrorCode::peer, fmt::format("rank {}: its part of the save failed: {}", rank, part.error),
                path);
  if (part.has_file && part.file.name != shard_name(rank))
    throw Error(ErrorCode::damaged, fmt::format("{}: names the shard {}", path, part.file.name), path);
}

/// Opens the expected parts by name until all are there. Directory listings are not asked: on network file
/// systems they lag behind, while opening a name revalidates it.
std::vector<Part> collect_parts(Env& env, const CommitJob& job, const std::atomic<bool>* cancel) {
  const trace::Span span("wait for parts");
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(job.deadline_s));
  std::vector<Part> parts(static_cast<std::size_t>(job.writers));
  std::vector<int> awaited(parts.size());
  for (int rank = 0; rank < job.writers; ++rank) awaited[static_cast<std::size_t>(rank)] = rank;
  for (milliseconds wait = kFirstWait;; wait = std::min(2 * wait, kLongestWait)) {
    const std::size_t before = awaited.size();
    std::erase_if(awaited, [&](int rank) {
      give_up_if(cancel, job.attempt_dir);
      try {
        Part part = read_part(env, job.attempt_dir + "/" + part_name(rank));
        check_part(part, rank, job);
        parts[static_cast<std::size_t>(rank)] = std::move(part);
        return true;
      } catch (const Error& e) {
        if (e.code() != ErrorCode::missing) throw;
        return false;
      }
    });
    if (awaited.empty()) return parts;
    if (Clock::now() >= deadline)
      throw Error(ErrorCode::deadline,
                  fmt::format("{}: no part came from rank {} within {:.4g} s; the save is given up",
                              job.attempt_dir, fmt::join(awaited, ", "), job.deadline_s),
                  job.attempt_dir);
    if (awaited.size() < before) wait = kFirstWait;
    pause(wait, deadline, cancel, job.attempt_dir);
  }
}

void insist_mine(const CommitJob& job) {
  if (!job.still_mine())
    throw Error(ErrorCode::busy,
                job.attempt_dir + ": another generation of this run took over; nothing is committed",
                job.attempt_dir);
}

}  // namespace

Manifest commit_attempt(Env& env, const CommitJob& job, const std::atomic<bool>* cancel, CommitStats* stats) {
  const std::string parent = std::filesystem::path(job.final_dir).parent_path().string();
  if (job.supersede_suffix.empty() && env.exists(job.final_dir))
    throw Error(ErrorCode::exists,
                job.final_dir + ": is there already; choose another name or remove it first", job.final_dir);
  const Clock::time_point asked = Clock::now();
  const std::vector<Part> parts = collect_parts(env, job, cancel);
  if (stats != nullptr) stats->parts_wait_s = std::chrono::duration<double>(Clock::now() - asked).count();
  compare_replicas(parts);
  Manifest manifest = assemble(parts, job.description);
  check_training_step(job.final_dir, job.commit, manifest);
  if (job.before_commit) job.before_commit(manifest);
  Commit commit = job.commit;
  fault_point("manifest.write", 0, commit.step);
  {
    const trace::Span span("manifest");
    commit.manifest = write_manifest(env, job.attempt_dir, manifest);
  }
  give_up_if(cancel, job.attempt_dir);
  insist_mine(job);
  for (int rank = 0; rank < job.writers; ++rank) env.unlink(job.attempt_dir + "/" + part_name(rank));
  // The entries of shards and manifest, and the parts' removal, are durable before anything vouches for them.
  env.sync_dir(job.attempt_dir);
  write_commit(env, job.attempt_dir, commit, job.still_mine);
  fault_point("dir.rename", 0, commit.step);
  insist_mine(job);
  if (env.exists(job.final_dir)) {
    if (job.supersede_suffix.empty())
      throw Error(ErrorCode::exists, job.final_dir + ": appeared while it was being written", job.final_dir);
    env.rename(job.final_dir, free_name(env, job.final_dir + job.supersede_suffix));
    // Not asked again between the two renames: what was moved aside must get its successor. A crash here
    // leaves a whole attempt, which the next generation promotes.
  }
  env.rename(job.attempt_dir, job.final_dir);  // the commit point
  env.sync_dir(parent.empty() ? "." : parent);
  return manifest;
}

}  // namespace shardwright::ckpt
