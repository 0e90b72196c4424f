#include "reshard/reshard.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "ckpt/checkpoint.h"
#include "ckpt/chunk_cache.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/commit.h"
#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "reshard/imagined.h"
#include "reshard/target_plan.h"

namespace shardwright::reshard {
namespace {

constexpr std::uint64_t kMinMemory = 64u << 20;
// Program, libraries, manifest and chunk tables: not spent on chunks.
constexpr std::uint64_t kFixedMemory = 48u << 20;

// How --max-memory is spent: decoded source chunks that may be needed again, and target chunks on their way.
struct Budget {
  std::uint64_t cache = 0;
  std::uint64_t in_flight = 0;
};

Budget budget(std::uint64_t max_memory, std::uint64_t raw_bytes) {
  const std::uint64_t chunks = max_memory - kFixedMemory;
  return {std::min(chunks / 2, raw_bytes), std::min(chunks / 4, raw_bytes)};
}

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

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

// Training's rule, which resharding only warns of: someone may train on with another batch.
std::vector<std::string> batch_warnings(const std::string& config, const TargetPlan& plan) {
  const auto document = nlohmann::json::parse(config, nullptr, false);
  const auto key = [&](const char* name) {
    const nlohmann::json::json_pointer at(std::string("/train/") + name);
    return document.is_object() && document.contains(at) && document[at].is_number_integer()
               ? document[at].get<std::int64_t>()
               : 0;
  };
  const BatchShape batch{key("global_batch"), key("micro_batch")};
  if (batch.global_batch < 1 || batch.micro_batch < 1) return {};  // not written by this program's trainer
  return illegal(plan.layout, plan.model, batch);
}

// The same source and options always make the same name, so that another try finds what an interrupted one
// left.
std::string attempt_name(const ckpt::Commit& commit, const std::string& layout_json,
                         const ReshardOptions& options) {
  const std::string text = fmt::format("{} {} {} {}", to_hex(commit.manifest.xxh3_128), layout_json,
                                       options.weights_only, options.codec ? name(*options.codec) : "kept");
  return fmt::format("r-{:016x}", ckpt::xxh3_64(std::as_bytes(std::span(text))));
}

// Removes what interrupted attempts at this target left. The caller holds the target's lock.
void remove_leftovers(ckpt::Env& env, const std::string& target) {
  const std::filesystem::path path(target);
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  for (const std::string& entry : env.list(parent)) {
    if (entry.starts_with(path.filename().string() + ".tmp-r-"))
      ckpt::remove_checkpoint_dir(env, parent + "/" + entry);
  }
}

// Counts the bytes that pass and tells whoever watches.
class WatchedSource : public ckpt::Source {
 public:
  struct Progress {
    std::mutex mutex;
    std::uint64_t done = 0;
    std::uint64_t all = 0;
    std::function<void(std::uint64_t, std::uint64_t)> tell;
  };
  WatchedSource(std::shared_ptr<const ckpt::Source> source, std::size_t element_size, Progress& progress)
      : source_(std::move(source)), element_size_(element_size), progress_(progress) {}
  void read(const ckpt::Box& region, std::byte* dst) const override {
    source_->read(region, dst);
    passed(region);
  }
  bool read_stored(const ckpt::Box& region, const ckpt::Dims& chunk, ckpt::StoredChunk& out) const override {
    if (!source_->read_stored(region, chunk, out)) return false;
    passed(region);
    return true;
  }

 private:
  void passed(const ckpt::Box& region) const {
    const std::lock_guard lock(progress_.mutex);
    progress_.done += region.elements() * element_size_;
    progress_.tell(progress_.done, progress_.all);
  }

  std::shared_ptr<const ckpt::Source> source_;
  std::size_t element_size_;
  Progress& progress_;
};

// The proof: every kept state has the source's fingerprint, whatever boxes it is cut in now.
void prove(const ckpt::Manifest& source, const TargetPlan& plan, const ckpt::Manifest& target) {
  const auto refuse = [](const std::string& state, const std::string& wrong) {
    throw Error(
        ErrorCode::damaged,
        fmt::format("{}: {}; the same values as in the source (nothing was committed)", state, wrong));
  };
  std::map<std::pair<std::string, std::string>, ckpt::Fingerprint> expected;
  for (const KeptState& kept : plan.states) {
    const ckpt::StateEntry& state = source.states[kept.state];
    expected[{source.tensors[state.tensor].name, state.kind}] = state.fingerprint;
  }
  for (const ckpt::StateEntry& state : target.states) {
    const std::string& tensor = target.tensors[state.tensor].name;
    const auto at = expected.find({tensor, state.kind});
    if (at == expected.end()) refuse(fmt::format("{} {}", tensor, state.kind), "is not in the source");
    if (at->second != state.fingerprint)
      refuse(fmt::format("{} {}", tensor, state.kind), "the fingerprint differs");
    expected.erase(at);
  }
  if (!expected.empty()) {
    const auto& [tensor, kind] = expected.begin()->first;
    refuse(fmt::format("{} {}", tensor, kind), "is missing in the target");
  }
}

std::uint64_t peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

// One reshard at work: everything between taking the target's lock and giving it back.
class Work {
 public:
  Work(ckpt::Env& env, const ReshardOptions& options, std::shared_ptr<const ckpt::Checkpoint> source,
       const TargetPlan& plan, const std::string& target)
      : env_(env),
        options_(options),
        source_(std::move(source)),
        plan_(plan),
        target_(target),
        layout_json_(to_json(plan.layout, plan.model)),
        attempt_(attempt_name(source_->commit(), layout_json_, options)),
        attempt_dir_(target + ".tmp-" + attempt_),
        lock_path_(target + ".lock") {}

  void run(ReshardReport& report) {
    const std::filesystem::path parent = std::filesystem::path(target_).parent_path();
    if (!parent.empty()) env_.create_dirs(parent.string());
    const std::unique_ptr<ckpt::FileLock> lock = env_.lock(lock_path_);
    // Whoever held the lock before may have finished, and removed the file that this lock is on.
    check_target(env_, options_.source, target_);
    if (!env_.exists(lock_path_)) {
      throw Error(ErrorCode::busy,
                  fmt::format("{}: another process just ended its work on it; try again", target_), target_);
    }
    try {
      remove_leftovers(env_, target_);
      env_.create_dirs(attempt_dir_);
      write(report);
      env_.unlink(lock_path_);
    } catch (const Error& e) {
      give_up(e);
      throw;
    }
  }

 private:
  void write(ReshardReport& report) {
    const Budget memory = budget(options_.max_memory_bytes, plan_.raw_bytes);
    const auto cache = std::make_shared<ckpt::ChunkCache>(source_, memory.cache);
    const ckpt::ShardOptions shard{.codec = options_.codec.value_or(source_codec()),
                                   .threads = options_.jobs,
                                   .keep_stored = !options_.codec,
                                   .max_in_flight_bytes = memory.in_flight};
    const ckpt::Commit& from = source_->commit();
    WatchedSource::Progress progress;
    progress.all = plan_.raw_bytes;
    progress.tell = options_.progress;
    for (int rank = 0; rank < plan_.layout.ranks(); ++rank) {
      std::vector<ckpt::SaveItem> items = target_items(plan_, cache, rank);
      if (options_.progress) {
        for (ckpt::SaveItem& item : items) {
          item.source = std::make_shared<WatchedSource>(item.source, ckpt::size_of(item.dtype), progress);
        }
      }
      ckpt::ShardStats stats;
      const ckpt::Part part =
          ckpt::write_shard(env_, attempt_dir_, attempt_, rank, from.step, items, shard, &stats);
      report.chunks_passed_through += stats.kept_chunks;
      report.chunks_recoded += stats.encoded_chunks;
      ckpt::publish_part(env_, attempt_dir_, part);
    }

    ckpt::CommitJob job;
    job.attempt_dir = attempt_dir_;
    job.final_dir = target_;
    job.commit.run = from.run;
    job.commit.generation = from.generation;
    job.commit.attempt = attempt_;
    job.commit.step = from.step;
    job.description = source_->manifest().description;
    job.description.layout = layout_json_;
    job.writers = plan_.layout.ranks();
    job.before_commit = [&](const ckpt::Manifest& target) { prove(source_->manifest(), plan_, target); };
    const ckpt::Manifest written = ckpt::commit_attempt(env_, job);

    report.read_bytes = cache->read_bytes();
    report.chunks_read = cache->chunks_read();
    report.files_written = written.files.size();
    for (const ckpt::FileRecord& file : written.files) report.written_bytes += file.bytes;
    report.needed_bytes = needed_bytes();
    report.proof_tensors = plan_.states.size();
    report.proof_ok = true;
  }

  // What is cut anew is encoded in the form that the source's chunks have: those of a dataset have the same.
  ckpt::Codec source_codec() const {
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
  std::uint64_t needed_bytes() const {
    std::vector<bool> kept(source_->manifest().states.size());
    for (const KeptState& k : plan_.states) kept[k.state] = true;
    std::uint64_t bytes = 0;
    for (const ckpt::BoxEntry& box : source_->manifest().boxes) {
      if (!kept[box.state]) continue;
      const std::vector<ckpt::ChunkRow>& table = source_->shard(box.file).table();
      for (std::uint64_t i = 0; i < box.chunks; ++i) bytes += table[box.first_chunk + i].stored_bytes;
    }
    return bytes;
  }

  // Nothing of a failed attempt stays; where even that fails, both reasons are told.
  void give_up(const Error& why) const {
    try {
      ckpt::remove_checkpoint_dir(env_, attempt_dir_);
      env_.unlink(lock_path_);
    } catch (const Error& e) {
      throw Error(why.code(),
                  fmt::format("{} (and what it left could not be removed: {})", why.what(), e.what()),
                  why.path());
    }
  }

  ckpt::Env& env_;
  const ReshardOptions& options_;
  std::shared_ptr<const ckpt::Checkpoint> source_;
  const TargetPlan& plan_;
  std::string target_;
  std::string layout_json_;
  std::string attempt_;
  std::string attempt_dir_;
  std::string lock_path_;
};

// The limits that a plan and a reshard have in common.
void check_options(const ReshardOptions& options) {
  if (options.max_memory_bytes < kMinMemory) {
    throw Error(ErrorCode::usage, fmt::format("--max-memory: {} bytes is too little; at least 64MiB",
                                              options.max_memory_bytes));
  }
  if (options.jobs < 1) throw Error(ErrorCode::usage, fmt::format("--jobs: is {}; at least 1", options.jobs));
}

// What follows from the plan alone.
ReshardReport planned(const ckpt::Manifest& source, const TargetPlan& plan, const ReshardOptions& options) {
  ReshardReport report;
  report.from_layout_json = source.description.layout;
  report.to_layout_json = to_json(plan.layout, plan.model);
  report.tensors = plan.tensors;
  report.copies = plan.copies;
  const Budget memory = budget(options.max_memory_bytes, plan.raw_bytes);
  report.estimated_peak_bytes = kFixedMemory + memory.cache + memory.in_flight;
  return report;
}

// Without the shards' chunk tables the stored sizes of chunks are not known; the files' share of what is kept
// stands for them.
void estimate_bytes(const ckpt::Manifest& source, const TargetPlan& plan, const ReshardOptions& options,
                    ReshardReport& report) {
  std::uint64_t stored = 0;
  for (const ckpt::FileRecord& file : source.files) stored += file.bytes;
  double all_raw = 0;
  for (const ckpt::StateEntry& state : source.states) {
    all_raw += static_cast<double>(state.fingerprint.count) * static_cast<double>(ckpt::size_of(state.dtype));
  }
  const double share = all_raw > 0 ? static_cast<double>(plan.raw_bytes) / all_raw : 0;
  report.needed_bytes = static_cast<std::uint64_t>(static_cast<double>(stored) * share);
  report.read_bytes = report.needed_bytes;
  report.written_bytes = report.needed_bytes;
  report.chunks_read = plan.source_chunks;
  report.chunks_passed_through = options.codec ? 0 : plan.kept_chunks;
  report.chunks_recoded = plan.target_chunks - report.chunks_passed_through;
  report.files_written = plan.files;
  report.ranks = plan.ranks;
}

}  // namespace

ReshardReport reshard(ckpt::Env& env, const ReshardOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  const std::string target = normal(options.target);
  check_target(env, options.source, target);
  const auto source = std::make_shared<const ckpt::Checkpoint>(ckpt::Checkpoint::open(env, options.source));
  const TargetPlan plan =
      plan_target(source->manifest(), options.layout, options.weights_only, options.source);

  ReshardReport report = planned(source->manifest(), plan, options);
  report.source = source->path();
  report.target = target;
  report.step = source->commit().step;
  report.warnings = batch_warnings(source->manifest().description.config, plan);
  if (options.plan_only) {
    estimate_bytes(source->manifest(), plan, options, report);
  } else {
    Work(env, options, source, plan, target).run(report);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.peak_rss_bytes = peak_rss_bytes();
  return report;
}

ReshardReport plan_reshard(const ModelSpec& model, const Layout& from, const ReshardOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  check_layout(from, model);
  const ckpt::Manifest source = imagined_manifest(model, from);
  const TargetPlan plan = plan_target(source, options.layout, options.weights_only);
  ReshardReport report = planned(source, plan, options);
  estimate_bytes(source, plan, options, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.peak_rss_bytes = peak_rss_bytes();
  return report;
}

}  // namespace shardwright::reshard
