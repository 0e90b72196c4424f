#include "reshard/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "reshard/executor.h"
#include "reshard/imagined.h"
#include "reshard/memory_budget.h"
#include "reshard/peak_memory.h"
#include "reshard/target_plan.h"

namespace shardwright::reshard {
namespace {

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
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

// The limits that a plan and a reshard have in common.
void check_options(const ReshardOptions& options) {
  if (options.max_memory_bytes < kMinMemory) {
    throw Error(ErrorCode::usage, fmt::format("--max-memory: {} bytes is too little; at least 64MiB",
                                              options.max_memory_bytes));
  }
  if (options.jobs < 1) throw Error(ErrorCode::usage, fmt::format("--jobs: is {}; at least 1", options.jobs));
}

// What follows from the plan alone.
ReshardReport planned(const std::string& from, const TargetPlan& plan, const ReshardOptions& options) {
  ReshardReport report;
  report.from_layout_json = from;
  report.to_layout_json = to_json(plan.layout, plan.model);
  report.tensors = plan.tensors;
  report.copies = plan.copies;
  report.estimated_peak_bytes = memory_budget(options.max_memory_bytes, plan.raw_bytes, options.jobs).sum();
  return report;
}

// What a reader of the report must know beside the layout.
void tell_conversions(const ckpt::Manifest& source, const TargetPlan& plan, const Conversion& conversion,
                      ReshardReport& report) {
  std::map<std::string, std::set<std::string>> types;  // by kind, in the source
  for (const KeptState& kept : plan.states) {
    const ckpt::StateEntry& state = source.states[kept.state];
    if (state.dtype == kept.dtype) continue;
    ++report.states_cast;
    types[state.kind].emplace(ckpt::name(state.dtype));
  }
  for (const auto& [kind, from] : types)
    report.conversions.push_back(fmt::format("{} cast from {} to {}", kind, fmt::join(from, " and "),
                                             ckpt::name(conversion.casts.at(kind))));
  const std::int64_t before = config_of(source).vocab, after = plan.model.config.vocab;
  if (after > before)
    report.conversions.push_back(
        fmt::format("vocabulary {} -> {}: {} new rows, weights the mean of the {} kept, moments zero", before,
                    after, after - before, before));
  if (after < before)
    report.conversions.push_back(
        fmt::format("vocabulary {} -> {}: the last {} rows dropped", before, after, before - after));
  if (conversion.tie == Tie::tie)
    report.conversions.emplace_back("embeddings tied: lm_head dropped, which had equal values");
  if (conversion.tie == Tie::untie)
    report.conversions.emplace_back("embeddings untied: lm_head is a copy of them");
  if (conversion.weights_only) report.conversions.emplace_back("weights only");
}

// Without the shards' chunk tables the stored sizes of chunks are not known; the files' share of what is kept
// stands for them.
std::uint64_t estimated_bytes(const ckpt::Manifest& source, std::uint64_t raw_bytes) {
  std::uint64_t stored = 0;
  for (const ckpt::FileRecord& file : source.files) stored += file.bytes;
  double all_raw = 0;
  for (const ckpt::StateEntry& state : source.states) {
    all_raw += static_cast<double>(state.fingerprint.count) * static_cast<double>(ckpt::size_of(state.dtype));
  }
  const double share = all_raw > 0 ? static_cast<double>(raw_bytes) / all_raw : 0;
  return static_cast<std::uint64_t>(static_cast<double>(stored) * share);
}

// What a plan says and a reshard counts.
void estimate(const TargetPlan& plan, std::uint64_t read_bytes, std::uint64_t written_bytes,
              const ReshardOptions& options, ReshardReport& report) {
  report.needed_bytes = read_bytes;
  report.read_bytes = read_bytes;
  report.written_bytes = written_bytes;
  report.chunks_read = plan.source_chunks;
  report.chunks_passed_through = options.codec ? 0 : plan.kept_chunks;
  report.chunks_recoded = plan.target_chunks - report.chunks_passed_through;
  report.files_read = plan.files_read;
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
  const TargetPlan plan = plan_target(source->manifest(), options.layout, options.conversion, options.source);

  ReshardReport report = planned(source->manifest().description.layout, plan, options);
  tell_conversions(source->manifest(), plan, options.conversion, report);
  report.source = source->path();
  report.target = target;
  report.step = source->commit().step;
  report.warnings = batch_warnings(source->manifest().description.config, plan);
  if (options.plan_only) {
    estimate(plan, estimated_bytes(source->manifest(), plan.source_raw_bytes),
             estimated_bytes(source->manifest(), plan.raw_bytes), options, report);
  } else {
    Executor(env, options, source, plan, target).run(report);
  }
  report.peak_rss_bytes = std::max(report.peak_rss_bytes, peak_rss_bytes());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

ReshardReport plan_reshard(const ModelSpec& model, const Layout& from, const ReshardOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  const TargetPlan plan = plan_imagined(model, from, options.layout, options.conversion.weights_only);
  ReshardReport report = planned(to_json(from, model), plan, options);
  estimate(plan, plan.raw_bytes, plan.raw_bytes, options, report);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.peak_rss_bytes = peak_rss_bytes();
  return report;
}

}  // namespace shardwright::reshard
