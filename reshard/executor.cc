#include "reshard/executor.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "ckpt/chunk_codec.h"
#include "ckpt/commit.h"
#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "reshard/peak_memory.h"
#include "reshard/proof.h"

namespace shardwright::reshard {
namespace {

// The same source and options always make the same name, so that another try finds what an interrupted one
// left.
std::string attempt_name(const ckpt::Commit& commit, const std::string& layout_json,
                         const ReshardOptions& options) {
  const std::string text =
      fmt::format("{} {} {} {}", to_hex(commit.manifest.xxh3_128), layout_json, to_string(options.conversion),
                  options.codec ? name(*options.codec) : "kept");
  return fmt::format("r-{:016x}", ckpt::xxh3_64(std::as_bytes(std::span(text))));
}

// Counts the bytes that pass and tells whoever watches.
struct Progress {
  ProcessGroup& group;
  std::uint64_t all = 0;
  const std::function<void(std::uint64_t, std::uint64_t)>& tell;
  std::mutex mutex = {};

  void passed(std::uint64_t bytes) {
    const std::lock_guard lock(mutex);  // so that what is told grows
    group.count(bytes);
    if (tell) tell(std::min(group.counted(), all), all);
  }
};

class WatchedSource : public ckpt::Source {
 public:
  WatchedSource(std::shared_ptr<const ckpt::Source> source, std::size_t element_size, Progress& progress)
      : source_(std::move(source)), element_size_(element_size), progress_(progress) {}
  void read(const ckpt::Box& region, std::byte* dst) const override {
    source_->read(region, dst);
    progress_.passed(region.elements() * element_size_);
  }
  bool read_stored(const ckpt::Box& region, const ckpt::Dims& chunk, ckpt::StoredChunk& out) const override {
    if (!source_->read_stored(region, chunk, out)) return false;
    progress_.passed(region.elements() * element_size_);
    return true;
  }

 private:
  std::shared_ptr<const ckpt::Source> source_;
  std::size_t element_size_;
  Progress& progress_;
};

// Target files that may be open beside all else that a process has open.
std::size_t most_open_files() {
  constexpr std::uint64_t kOthers = 96;
  constexpr std::uint64_t kMost = 512;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(limit.rlim_cur, kOthers + 1, kOthers + kMost) -
                                  kOthers);
}

}  // namespace

void check_target(ckpt::Env& env, const std::string& source, const std::string& target) {
  if (env.exists(target)) {
    throw Error(ErrorCode::exists, fmt::format("{}: is there already; a name that is not", target), target);
  }
  const auto inside =
      std::filesystem::weakly_canonical(target).lexically_relative(std::filesystem::weakly_canonical(source));
  if (!inside.empty() && *inside.begin() != "..") {
    throw Error(ErrorCode::usage,
                fmt::format("{}: lies inside the source {}; a place outside it", target, source), target);
  }
}

Executor::Executor(ckpt::Env& env, const ReshardOptions& options,
                   std::shared_ptr<const ckpt::Checkpoint> source, const TargetPlan& plan,
                   const std::string& target)
    : env_(env),
      options_(options),
      source_(std::move(source)),
      plan_(plan),
      memory_(memory_budget(options.max_memory_bytes, plan.raw_bytes, options.jobs)),
      target_(target),
      layout_json_(to_json(plan.layout, plan.model)),
      attempt_(attempt_name(source_->commit(), layout_json_, options)),
      attempt_dir_(target + ".tmp-" + attempt_),
      lock_path_(target + ".lock"),
      group_dir_(attempt_dir_ + ".group") {}

void Executor::run(ReshardReport& report) {
  env_.create_dirs(ckpt::parent_path(target_));
  group_ = std::make_unique<ProcessGroup>(env_, group_dir_, options_.process, options_.times);
  if (group_->leads())
    lead(report);
  else
    follow();
}

void Executor::lead(ReshardReport& report) {
  std::unique_ptr<ckpt::FileLock> lock;
  try {
    group_->gather();
    lock = env_.lock(lock_path_);
    // Whoever held the lock before may have finished, and removed the file that this lock is on.
    check_target(env_, options_.source, target_);
    if (!env_.exists(lock_path_)) {
      lock.reset();
      throw Error(ErrorCode::busy,
                  fmt::format("{}: another process just ended its work on it; try again", target_), target_);
    }
    remove_leftovers();
    if (!finish_commit(report)) {
      sort_out(report);
      group_->begin();
      add_work(write(), report);
      for (const ProcessWork& work : group_->collect()) add_work(work, report);
      commit(report);
    }
    group_->end();
    group_->leave([&] { env_.unlink(lock_path_); });
  } catch (const Error& e) {
    group_->fail(e);
    group_->leave([&] {
      if (lock) give_up(e);
    });
    throw;
  }
}

void Executor::follow() {
  try {
    group_->follow();
    if (!was_committed()) group_->deliver(write());
    group_->await_end();
  } catch (const Error& e) {
    // The leader may have committed and gone before this process saw it.
    if (was_committed()) return;
    group_->fail(e);
    group_->withdraw();
    throw;
  }
}

// By this attempt, whoever did it.
bool Executor::was_committed() const {
  try {
    return ckpt::read_commit(env_, target_).attempt == attempt_;
  } catch (const Error&) {
    return false;
  }
}

void Executor::add_work(const ProcessWork& work, ReshardReport& report) const {
  report.read_bytes += work.read_bytes;
  report.chunks_read += work.chunks_read;
  report.chunks_passed_through += work.chunks_passed_through;
  report.chunks_recoded += work.chunks_recoded;
  report.peak_rss_bytes = std::max(report.peak_rss_bytes, work.peak_rss_bytes);
}

// What interrupted tries with other options left at this target, and what of this attempt cannot be used.
void Executor::remove_leftovers() {
  const std::string parent = ckpt::parent_path(target_);
  const std::string prefix = std::filesystem::path(target_).filename().string() + ".tmp-";
  for (const std::string& entry : env_.list(parent)) {
    const bool own =
        entry == prefix + attempt_ || (options_.process.count > 1 && entry == prefix + attempt_ + ".group");
    if (!entry.starts_with(prefix + "r-") || own) continue;
    if (group_lives(env_, parent + "/" + entry))
      throw Error(
          ErrorCode::busy,
          fmt::format("{}: processes of an earlier try still live; wait for them, or end them", target_),
          target_);
    ckpt::remove_checkpoint_dir(env_, parent + "/" + entry);
  }
}

// A try that ended between COMMIT and the last rename has all that it needs. True if there was one.
bool Executor::finish_commit(ReshardReport& report) {
  if (!env_.is_dir(attempt_dir_) || !env_.exists(attempt_dir_ + "/COMMIT")) return false;
  try {
    const ckpt::Commit commit = ckpt::read_commit(env_, attempt_dir_);
    if (commit.attempt != attempt_) return false;
    const ckpt::Manifest manifest = ckpt::read_manifest(env_, attempt_dir_, commit.manifest);
    accept(manifest, report);
    report.shards_kept = manifest.files.size();
    group_->count(plan_.raw_bytes);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return false;  // not whole: made anew
  }
  env_.rename(attempt_dir_, target_);
  env_.sync_dir(ckpt::parent_path(target_));
  return true;
}

// Keeps the shards of this attempt that are finished, and clears the place for the others.
void Executor::sort_out(ReshardReport& report) {
  env_.create_dirs(attempt_dir_);
  const std::vector<std::string> found = env_.list(attempt_dir_);
  if (found.empty()) return;
  std::set<std::string> useless(found.begin(), found.end());
  const auto cache = std::make_shared<ckpt::ChunkCache>(source_, 0);
  for (int rank = 0; rank < plan_.layout.ranks(); ++rank) {
    if (!useless.contains(ckpt::part_name(rank))) continue;
    const std::vector<ckpt::SaveItem> items = target_items(plan_, cache, rank);
    if (!ckpt::finished_shard(env_, attempt_dir_, attempt_, rank, source_->commit().step, items)) continue;
    useless.erase(ckpt::part_name(rank));
    useless.erase(ckpt::shard_name(rank));
    ++report.shards_kept;
    group_->count(plan_.ranks[static_cast<std::size_t>(rank)].bytes);
  }
  for (const std::string& entry : useless) env_.unlink(attempt_dir_ + "/" + entry);
}

// This process's share of what is missing.
ProcessWork Executor::write() {
  const ckpt::Commit& from = source_->commit();
  const auto cache = std::make_shared<ckpt::ChunkCache>(source_, memory_.cache);
  const ckpt::ShardOptions shard{.codec = options_.codec.value_or(source_codec()),
                                 .threads = memory_.threads,
                                 .keep_stored = !options_.codec,
                                 .max_in_flight_bytes = memory_.in_flight};
  Progress progress{*group_, plan_.raw_bytes, options_.progress};
  ProcessWork work;

  const auto publish = [&](const ckpt::Part& part) { ckpt::publish_part(env_, attempt_dir_, part); };
  std::vector<ckpt::ShardJob> jobs;
  std::uint64_t need = 0;  // of memory, by the jobs
  const auto write_jobs = [&] {
    ckpt::ShardStats stats;
    try {
      ckpt::write_shards(env_, attempt_dir_, attempt_, from.step, jobs, shard, &stats, publish,
                         &group_->signals());
    } catch (const Error&) {
      group_->rethrow_failure();
      throw;
    }
    work.chunks_passed_through += stats.kept_chunks;
    work.chunks_recoded += stats.encoded_chunks;
    jobs.clear();
    need = 0;
  };
  const auto share = [&](std::int64_t process) {
    return static_cast<int>(process * plan_.layout.ranks() / options_.process.count);
  };
  for (int rank = share(options_.process.rank); rank < share(options_.process.rank + 1); ++rank) {
    if (env_.exists(attempt_dir_ + "/" + ckpt::part_name(rank))) continue;
    std::vector<ckpt::SaveItem> items = target_items(plan_, cache, rank);
    for (ckpt::SaveItem& item : items)
      item.source = std::make_shared<WatchedSource>(item.source, ckpt::size_of(item.dtype), progress);
    const std::uint64_t more = ckpt::kOpenShardBytes + items.size() * ckpt::kShardItemBytes;
    if (!jobs.empty() && (need + more > memory_.files || jobs.size() >= most_open_files())) write_jobs();
    need += more;
    jobs.push_back({rank, std::move(items)});
  }
  if (!jobs.empty()) write_jobs();
  work.read_bytes = cache->read_bytes();
  work.chunks_read = cache->chunks_read();
  work.peak_rss_bytes = peak_rss_bytes();
  return work;
}

void Executor::commit(ReshardReport& report) {
  const ckpt::Commit& from = source_->commit();
  ckpt::CommitJob job;
  job.attempt_dir = attempt_dir_;
  job.final_dir = target_;
  job.commit.run = from.run;
  job.commit.generation = from.generation;
  job.commit.attempt = attempt_;
  job.commit.step = from.step;
  job.description =
      converted(source_->manifest().description, config_of(source_->manifest()), plan_.model.config);
  job.description.layout = layout_json_;
  job.writers = plan_.layout.ranks();
  job.before_commit = [&](const ckpt::Manifest& target) { accept(target, report); };
  ckpt::commit_attempt(env_, job);
}

// Proves the target, and tells of it.
void Executor::accept(const ckpt::Manifest& target, ReshardReport& report) const {
  const Proof proof = prove(source_, plan_, target, memory_.threads);
  report.read_bytes += proof.read_bytes;
  report.warnings.insert(report.warnings.end(), proof.warnings.begin(), proof.warnings.end());
  if (options_.paranoid) {
    read_again(env_, attempt_dir_, target, memory_.threads,
               [&](std::uint64_t bytes) { group_->count(bytes); });
  }
  report.files_written = target.files.size();
  report.written_bytes = 0;
  for (const ckpt::FileRecord& file : target.files) report.written_bytes += file.bytes;
  report.needed_bytes = needed_bytes();
  report.proof_tensors = plan_.states.size();
  report.proof_ok = true;
}

// What is cut anew is encoded in the form that the source's chunks have: those of a dataset have the same.
ckpt::Codec Executor::source_codec() const {
  for (const ckpt::BoxEntry& box : source_->manifest().boxes) {
    if (box.chunks == 0) continue;
    std::vector<std::byte> stored;
    source_->shard(box.file).read_stored(box.first_chunk, stored);
    return ckpt::form_of(std::span<const std::byte>(stored)) == ckpt::ChunkForm::zlib ? ckpt::Codec::deflate
                                                                                      : ckpt::Codec::fast;
  }
  return ckpt::Codec::fast;
}

// Stored bytes of the distinct chunks of all kept states: each of their elements has a place in the target.
std::uint64_t Executor::needed_bytes() const {
  // Of each state the rows that are kept; no row of one that is left out.
  std::vector<std::uint64_t> kept(source_->manifest().states.size());
  for (const KeptState& k : plan_.states)
    kept[k.state] = k.converted ? k.converted->kept_rows() : std::numeric_limits<std::uint64_t>::max();
  std::uint64_t bytes = 0;
  for (const ckpt::BoxEntry& box : source_->manifest().boxes) {
    if (kept[box.state] == 0) continue;
    const std::vector<ckpt::ChunkRow>& table = source_->shard(box.file).table();
    for (std::uint64_t i = 0; i < box.chunks; ++i) {
      const ckpt::Box chunk = ckpt::chunk_box(box.box, box.chunk, i);
      if (chunk.offset.empty() || chunk.offset[0] < kept[box.state])
        bytes += table[box.first_chunk + i].stored_bytes;
    }
  }
  return bytes;
}

// Nothing of a failed attempt stays, unless it was another process that ended: then trying again is worth it.
// Where even that fails, both reasons are told.
void Executor::give_up(const Error& why) const {
  const bool try_again = why.code() == ErrorCode::peer || why.code() == ErrorCode::deadline;
  try {
    if (!try_again) ckpt::remove_checkpoint_dir(env_, attempt_dir_);
    env_.unlink(lock_path_);
  } catch (const Error& e) {
    throw Error(why.code(),
                fmt::format("{} (and what it left could not be removed: {})", why.what(), e.what()),
                why.path());
  }
}

}  // namespace shardwright::reshard
