#include "reshard/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_name.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/scan.h"
#include "ckpt/size_text.h"
#include "cli/commands.h"
#include "cli/gpus_flag.h"
#include "cli/layout_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/words.h"
#include "reshard/presets.h"
#include "trainer/plan_request.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The source's may be another program's: null if it cannot be shown, which is no reason to fail after the
/// work.
Json shown_layout(const std::string& layout_json) {
  try {
    return json_document(layout_json);
  } catch (const Error&) {
    return nullptr;
  }
}

Json report_json(const reshard::ReshardReport& report, bool plan_only) {
  Json json = {{"source", report.source},
               {"target", report.target},
               {"step", report.step},
               {"from", shown_layout(report.from_layout_json)},
               {"to", shown_layout(report.to_layout_json)},
               {"tensors", report.tensors},
               {"read_bytes", report.read_bytes},
               {"needed_bytes", report.needed_bytes},
               {"written_bytes", report.written_bytes},
               {"chunks",
                {{"read", report.chunks_read},
                 {"passed_through", report.chunks_passed_through},
                 {"recoded", report.chunks_recoded}}}};
  if (plan_only) {
    json["copies"] = report.copies;
    json["files_read"] = report.files_read;
    json["files_written"] = report.files_written;
    json["estimated_peak_bytes"] = report.estimated_peak_bytes;
    Json ranks = Json::array();
    for (const reshard::RankShare& rank : report.ranks)
      ranks.push_back({{"rank", ranks.size()},
                       {"boxes", rank.boxes},
                       {"bytes", rank.bytes},
                       {"source_files", rank.source_files}});
    json["ranks"] = ranks;
  } else {
    json["seconds"] = json_float(report.seconds);
    json["peak_rss_bytes"] = report.peak_rss_bytes;
    json["shards_kept"] = report.shards_kept;
    json["proof"] = {{"kind", report.states_cast > 0 ? "cast" : "equal"},
                     {"tensors", report.proof_tensors},
                     {"ok", report.proof_ok}};
  }
  json["conversions"] = report.conversions;
  json["warnings"] = report.warnings;
  return json;
}

std::string layout_string(const std::string& layout_json) {
  const std::string text = text_field(shown_layout(layout_json), "string");
  return text.empty() ? "?" : text;
}

std::string text_of(const reshard::ReshardReport& report, bool plan_only) {
  std::string head = fmt::format("{} -> {}, step {}, {} tensors", layout_string(report.from_layout_json),
                                 layout_string(report.to_layout_json), report.step, report.tensors);
  for (const std::string& conversion : report.conversions) head += "; " + conversion;
  if (plan_only) {
    const auto [least, most] = std::ranges::minmax_element(report.ranks, {}, &reshard::RankShare::bytes);
    return fmt::format(
        "{}: {} copies, {} files, {} to read, about {} of memory; nothing was written\n"
        "  each rank writes {} to {} of values\n",
        head, report.copies, report.files_written, ckpt::size_text(report.needed_bytes),
        ckpt::size_text(report.estimated_peak_bytes), ckpt::size_text(least->bytes),
        ckpt::size_text(most->bytes));
  }
  return fmt::format(
      "{}\n  read {}, wrote {} in {:.2f} s; {} chunks passed through, {} recoded; peak memory {}\n"
      "  proof: fingerprints of {} states {}{}\n  {}\n",
      head, ckpt::size_text(report.read_bytes), ckpt::size_text(report.written_bytes), report.seconds,
      report.chunks_passed_through, report.chunks_recoded, ckpt::size_text(report.peak_rss_bytes),
      report.proof_tensors, report.proof_ok ? "equal" : "DIFFER",
      report.states_cast > 0 ? fmt::format(", of {} after the cast", report.states_cast) : "", report.target);
}

/// A name under which the checkpoint would be taken for something else: another step, or what a start
/// removes; or a place in a checkpoint.
void check_name(ckpt::Env& env, const std::string& target, std::uint64_t step) {
  const std::string parent = ckpt::parent_path(target);
  if (env.exists(parent + "/COMMIT"))
    throw Error(ErrorCode::usage,
                fmt::format("{}: is inside the checkpoint {}, where nothing else belongs; a place outside it",
                            target, parent),
                target);
  const auto name = ckpt::parse_checkpoint_name(ckpt::base_name(target));
  if (ckpt::is_attempt(target) || (name && name->state != ckpt::NameState::committed))
    throw Error(
        ErrorCode::usage,
        fmt::format("{}: is named like a checkpoint that is not whole, which a training removes; {} is right",
                    target, ckpt::step_dir_name(step)),
        target);
  if (name && name->step != step)
    throw Error(ErrorCode::usage,
                fmt::format("{}: is named after step {}, and the source is of step {}; {} is right", target,
                            name->step, step, ckpt::step_dir_name(step)),
                target);
}

/// Where to: a layout that was given, or the planner's.
struct TargetFlags {
  LayoutFlags layout;
  GpusFlag gpus;
};

/// `planned` is filled if it was the planner who chose.
reshard::Layout target_layout(const TargetFlags& flags, const ckpt::Manifest& source, const std::string& path,
                              const reshard::Conversion& conversion, std::optional<PlannedTarget>& planned) {
  if (!flags.gpus.given()) return flags.layout.apply(source, path);
  const reshard::ModelSpec model =
      reshard::build_model(reshard::converted(reshard::config_of(source, path), conversion));
  planned = planned_target(trainer::plan_request(model, source.description.config, flags.gpus.gpus()));
  return planned->layout;
}

reshard::ReshardReport reshard_checkpoint(const std::string& source, const std::string& target,
                                          const TargetFlags& flags, reshard::ReshardOptions options,
                                          std::optional<PlannedTarget>& planned) {
  if (target.empty()) throw Error(ErrorCode::usage, "reshard: DST is missing; give the directory to make");
  ckpt::Env& env = ckpt::posix_env();
  options.source = ckpt::resolve_checkpoint(env, source);
  options.target = target;
  const ckpt::Checkpoint checkpoint = ckpt::Checkpoint::open(env, options.source);
  check_name(env, options.target, checkpoint.commit().step);
  reshard::config_of(checkpoint.manifest(),
                     options.source);  // of a transformer, before its layout is asked for
  options.layout = target_layout(flags, checkpoint.manifest(), options.source, options.conversion, planned);
  if (options.process.rank > 0) return reshard::reshard(env, options);
  ProgressBar bar("reshard");
  options.progress = [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); };
  return reshard::reshard(env, options);
}

/// Of several processes one speaks. Another does only where that one may not know why it ends.
int quietly(const std::function<void()>& work) {
  try {
    work();
    return 0;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::peer || e.code() == ErrorCode::deadline) throw;
    return exit_status(e.code());
  }
}

/// "preset:bloom-176b" instead of a checkpoint: a model that need not exist.
constexpr std::string_view kPreset = "preset:";

struct FromFlags {
  std::optional<std::string> layout, stages;
};

reshard::ReshardReport plan_of_preset(const std::string& source, const FromFlags& from,
                                      const TargetFlags& target, reshard::ReshardOptions options,
                                      std::optional<PlannedTarget>& planned) {
  const std::string name = source.substr(kPreset.size());
  const reshard::Preset* preset = reshard::find_preset(name);
  if (preset == nullptr)
    throw Error(ErrorCode::usage, fmt::format("{}: is no preset; the nearest is preset:{}", source,
                                              reshard::nearest_preset(name)));
  if (!options.plan_only)
    throw Error(ErrorCode::usage,
                fmt::format("{}: has no values to write; --plan-only, or a checkpoint", source));
  if (!options.conversion.casts.empty() || options.conversion.vocab ||
      options.conversion.tie != reshard::Tie::kept)
    throw Error(
        ErrorCode::usage,
        fmt::format("--cast, --vocab, --tie and --untie: belong to a checkpoint; {} is planned as it is",
                    source));
  if (!from.layout)
    throw Error(ErrorCode::usage, "--from: is missing; give the layout that the checkpoint would have");
  const reshard::ModelSpec model = reshard::build_model(preset->model);
  reshard::Layout layout = reshard::parse_layout(*from.layout);
  if (from.stages) layout.stages = parse_stages("--from-stages", *from.stages);
  reshard::check_layout(layout, model);
  if (target.gpus.given()) {
    trainer::PlanRequest request = trainer::plan_request(*preset);
    request.gpus = target.gpus.gpus();
    planned = planned_target(request);
    options.layout = planned->layout;
  } else {
    ckpt::Manifest manifest;
    manifest.description.layout = reshard::to_json(layout, model);
    options.layout = target.layout.apply(manifest, source);
  }
  reshard::ReshardReport report = reshard::plan_reshard(model, layout, options);
  report.source = source;
  return report;
}

}  // namespace

int reshard(const Arguments& arguments) {
  std::string source, target;
  TargetFlags to;
  std::optional<std::uint64_t> max_memory;
  std::optional<std::int64_t> jobs;
  std::optional<std::string> codec;
  std::optional<std::int64_t> vocab;
  std::vector<std::string> casts;
  bool tie = false, untie = false;
  reshard::ReshardOptions options;
  bool json = false;
  Options flags("reshard", "Writes a checkpoint again for another layout, value for value, and proves it.",
                "shardwright reshard runs/demo demo-t1d3 --layout t1p1d3z1");
  FromFlags from;
  flags.positional(
      "SRC", source,
      "a checkpoint, or a run (then its newest valid checkpoint); with --plan-only and --from also "
      "preset:NAME");
  flags.optional_positional(
      "DST", target,
      "the directory to make; its name should be the step's, as step-0000000120, to resume from");
  to.layout.declare(flags);
  to.gpus.declare(flags);
  flags.size("--max-memory", max_memory,
             "memory to use, whatever the model's size (default 512MiB, at least 64MiB)");
  flags.integer("--jobs", "N", 1, jobs,
                "threads that decode and compress (default: all cores, and 1 under mpirun or srun); fewer "
                "where memory has no room",
                kMostThreads);
  flags.flag("--weights-only", options.conversion.weights_only, "leave the optimizer's state out");
  flags.texts(
      "--cast", "KIND=DTYPE", casts,
      "store a kind of state (param, exp_avg, exp_avg_sq) as fp32, bf16, fp16 or fp64; may be repeated. "
      "Training resumes from fp32 only");
  flags.integer(
      "--vocab", "N", 1, vocab,
      "make the vocabulary larger (new rows: weights the mean of all others, moments zero) or smaller "
      "(the last rows are dropped)");
  flags.flag("--untie", untie, "give lm_head values of its own: a copy of the embeddings");
  flags.flag("--tie", tie, "drop lm_head, whose values must be those of the embeddings");
  flags.text("--codec", "auto|fast|small|none|deflate", codec,
             "compress all chunks anew (default: as they are stored; only what is cut is compressed)");
  flags.flag("--paranoid", options.paranoid, "read the target again and compare it before it is committed");
  flags.flag("--plan-only", options.plan_only, "say what would be done, write nothing");
  flags.text("--from", "LAYOUT", from.layout, "of preset:NAME: the layout to plan from, as t4p12d8z1");
  flags.text("--from-stages", "5,6,6,5", from.stages, "of preset:NAME: the layers of each stage");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;
  for (const std::string& cast : casts) reshard::add_cast(options.conversion, cast);
  options.conversion.vocab = vocab;
  if (tie && untie)
    throw Error(ErrorCode::usage, "--tie: is given beside --untie; give the one or the other");
  if (tie || untie) options.conversion.tie = tie ? reshard::Tie::tie : reshard::Tie::untie;

  if (max_memory) options.max_memory_bytes = *max_memory;
  if (codec) options.codec = ckpt::parse_codec(*codec);
  if (!options.plan_only) options.process = reshard::place_from_environment();
  options.jobs = static_cast<int>(
      jobs.value_or(options.process.count > 1 ? 1 : std::max(1u, std::thread::hardware_concurrency())));
  if (to.gpus.given() && to.layout.given())
    throw Error(ErrorCode::usage, "--gpus: is given beside a layout; give the one or the other");
  reshard::ReshardReport report;
  std::optional<PlannedTarget> planned;
  if (source.starts_with(kPreset)) {
    report = plan_of_preset(source, from, to, options, planned);
  } else {
    if (from.layout || from.stages)
      throw Error(ErrorCode::usage, "--from: belongs to preset:NAME; a checkpoint says its own layout");
    if (options.process.rank > 0)
      return quietly([&] { reshard_checkpoint(source, target, to, options, planned); });
    report = reshard_checkpoint(source, target, to, options, planned);
  }
  if (planned && !planned->warning.empty()) report.warnings.push_back(planned->warning);
  for (const std::string& warning : report.warnings)
    std::fputs(fmt::format("shardwright: warning: {}\n", warning).c_str(), stderr);
  if (json) {
    Json document = report_json(report, options.plan_only);
    if (planned) document["plan"] = json_document(planned->json);
    print_json(document);
  } else {
    print((planned ? planned->text + "\n" : "") + text_of(report, options.plan_only));
  }
  return options.plan_only || report.proof_ok ? 0 : 1;
}

}  // namespace shardwright::cli
