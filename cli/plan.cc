#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "cli/commands.h"
#include "cli/layout_flags.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/words.h"
#include "reshard/presets.h"
#include "trainer/plan_request.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
using ckpt::size_text;

struct Asked {
  std::string model;
  std::optional<std::int64_t> gpus, gpus_per_node, global_batch, micro_batch, top;
  std::optional<std::uint64_t> memory;
  std::optional<double> rate, node_gbps, network_gbps, node_latency_us, network_latency_us;
  std::optional<std::string> layout, stages, dtype, recompute, offload;
  bool json = false;
};

std::string presets_help() {
  std::string text = "Presets (parameters; sequences of a step):";
  for (const reshard::Preset& preset : reshard::presets())
    text += fmt::format("\n  {:<14}{:>18}{:>8}", preset.name,
                        grouped_text(reshard::build_model(preset.model).parameters()), preset.global_batch);
  return text;
}

/// Of a preset, or of a configuration file.
trainer::PlanRequest request_of(const std::string& model) {
  if (const reshard::Preset* preset = reshard::find_preset(model)) return trainer::plan_request(*preset);
  if (!std::filesystem::exists(model))
    throw Error(ErrorCode::usage, fmt::format("{}: is no preset and no file; the nearest preset is {}", model,
                                              reshard::nearest_preset(model)));
  trainer::ValueSources sources;
  const trainer::Config config = trainer::load_config(model, {}, &sources);
  return trainer::plan_request(config, sources);
}

void check_choice(const char* flag, const std::optional<std::string>& value,
                  const std::vector<std::string>& known) {
  if (value && std::ranges::find(known, *value) == known.end())
    throw Error(ErrorCode::usage,
                fmt::format("{}: '{}' is not known; one of {}", flag, *value, fmt::join(known, ", ")));
}

std::optional<reshard::Layout> layout_of(const Asked& asked) {
  if (!asked.layout) {
    if (asked.stages)
      throw Error(ErrorCode::usage, "--stages: is given without --layout; give the layout they belong to");
    return std::nullopt;
  }
  reshard::Layout layout = reshard::parse_layout(*asked.layout);
  if (asked.stages) layout.stages = parse_stages("--stages", *asked.stages);
  return layout;
}

trainer::PlanRequest request_of(const Asked& asked, const std::optional<reshard::Layout>& layout) {
  check_choice("--dtype", asked.dtype, {"fp32", "bf16", "fp16"});
  check_choice("--recompute", asked.recompute, {"none", "selective", "full"});
  check_choice("--offload", asked.offload, {"none", "nvme"});
  trainer::PlanRequest request = request_of(asked.model);
  if (asked.gpus && *asked.gpus > reshard::kMaxRanks)
    throw Error(ErrorCode::usage, fmt::format("--gpus: is {}; at most {}", *asked.gpus, reshard::kMaxRanks));
  if (!asked.gpus && !layout)
    throw Error(ErrorCode::usage, "--gpus: is missing; give the number of GPUs, or a --layout");
  request.gpus = layout ? layout->ranks() : static_cast<int>(*asked.gpus);
  if (layout && asked.gpus) reshard::with_ranks(*layout, static_cast<int>(*asked.gpus));
  if (asked.global_batch) request.shape.batch.global_batch = *asked.global_batch;
  if (asked.micro_batch) request.shape.batch.micro_batch = *asked.micro_batch;
  if (asked.dtype) request.shape.dtype = *asked.dtype;
  if (asked.recompute) request.recompute = {*asked.recompute};
  if (asked.offload) request.shape.offload = *asked.offload == "nvme";
  trainer::Machine& machine = request.machine;
  if (asked.memory) machine.memory_bytes = static_cast<double>(*asked.memory);
  if (asked.rate) machine.gflops = *asked.rate;
  if (asked.gpus_per_node)
    machine.gpus_per_node =
        static_cast<int>(std::min<std::int64_t>(*asked.gpus_per_node, reshard::kMaxRanks));
  if (asked.node_gbps) machine.node.gbps = *asked.node_gbps;
  if (asked.network_gbps) machine.network.gbps = *asked.network_gbps;
  if (asked.node_latency_us) machine.node.latency_s = *asked.node_latency_us * 1e-6;
  if (asked.network_latency_us) machine.network.latency_s = *asked.network_latency_us * 1e-6;
  return request;
}

double tokens_of_step(const trainer::PlanRequest& request) {
  return static_cast<double>(request.shape.batch.global_batch * request.shape.positions);
}

Json memory_json(const trainer::MemoryBytes& memory) {
  return {{"param", memory.param},           {"grad", memory.grad},       {"optimizer", memory.optimizer},
          {"activation", memory.activation}, {"buffers", memory.buffers}, {"total", memory.total()}};
}

Json layout_json(const trainer::PlanRequest& request, const trainer::PlannedLayout& p) {
  const trainer::StepTime& t = p.time;
  return {{"layout", json_document(reshard::to_json(p.layout, request.model))},
          {"fits", p.fits},
          {"step_s", json_float(t.total())},
          {"bubble", json_float(p.bubble)},
          {"memory_bytes", memory_json(p.memory)},
          {"checkpoint_bytes", p.checkpoint_bytes},
          {"fullest_rank", p.fullest_rank},
          {"recompute", p.recompute},
          {"sequence_parallel", p.sequence_parallel},
          {"tokens_per_s", json_float(tokens_of_step(request) / t.total())},
          {"time_s",
           {{"compute", json_float(t.compute)},
            {"recompute", json_float(t.recompute)},
            {"tensor", json_float(t.tensor)},
            {"pipeline", json_float(t.pipeline)},
            {"bubble", json_float(t.bubble)},
            {"data", json_float(t.data)},
            {"optimizer", json_float(t.optimizer)}}},
          {"why", p.why}};
}

/// What each rank of a layout holds, owns, writes and allocates.
Json ranks_json(const trainer::PlanRequest& request, const trainer::PlannedLayout& p) {
  trainer::TrainingShape shape = request.shape;
  shape.recompute = p.recompute;
  shape.sequence_parallel = p.sequence_parallel;
  Json ranks = Json::array();
  int rank = 0;
  for (const reshard::RankSizes& sizes : reshard::rank_sizes(request.model, p.layout)) {
    ranks.push_back(
        {{"rank", rank},
         {"parameters", sizes.holds},
         {"owned", sizes.piece},
         {"written", sizes.writes},
         {"checkpoint_bytes", trainer::kCheckpointBytes * sizes.writes},
         {"memory_bytes", memory_json(trainer::memory_of_rank(request.model, p.layout, rank, shape))}});
    ++rank;
  }
  return ranks;
}

Json document(const Asked& asked, const trainer::PlanRequest& request,
              const std::vector<trainer::PlannedLayout>& planned) {
  const trainer::Machine& m = request.machine;
  const std::uint64_t parameters = request.model.parameters();
  Json layouts = Json::array();
  for (const trainer::PlannedLayout& p : planned) layouts.push_back(layout_json(request, p));
  return {{"model", asked.model},
          {"parameters", parameters},
          {"gpus", request.gpus},
          {"layouts", layouts},
          {"config", json_document(reshard::to_json(request.model.config))},
          {"dtype", request.shape.dtype},
          {"offload", request.shape.offload ? "nvme" : "none"},
          {"global_batch", request.shape.batch.global_batch},
          {"micro_batch", request.shape.batch.micro_batch},
          {"checkpoint_total_bytes", trainer::kCheckpointBytes * parameters},
          {"machine",
           {{"memory_bytes", json_float(m.memory_bytes)},
            {"rate_gflops", json_float(m.gflops)},
            {"gpus_per_node", m.gpus_per_node},
            {"node_gbps", json_float(m.node.gbps)},
            {"node_latency_s", json_float(m.node.latency_s)},
            {"network_gbps", json_float(m.network.gbps)},
            {"network_latency_s", json_float(m.network.latency_s)}}}};
}

std::string seconds_text(double seconds) {
  return seconds < 1     ? fmt::format("{:.1f} ms", 1e3 * seconds)
         : seconds < 100 ? fmt::format("{:.2f} s", seconds)
                         : fmt::format("{:.0f} s", seconds);
}

std::string bytes_text(double bytes) { return size_text(static_cast<std::uint64_t>(bytes)); }

std::string heading(const Asked& asked, const trainer::PlanRequest& request) {
  const trainer::Machine& m = request.machine;
  const trainer::TrainingShape& s = request.shape;
  const std::uint64_t parameters = request.model.parameters();
  return fmt::format(
      "{}: {} parameters on {} GPUs of {}, {}\n"
      "a step: {} sequences of {} tokens, {} at a time; a checkpoint: {}\n"
      "a GPU: {:.4g} TFLOP/s in matrix products; {:.4g} GB/s in a node of {}, {:.4g} GB/s between nodes\n{}",
      asked.model, grouped_text(parameters), request.gpus, bytes_text(m.memory_bytes), s.dtype,
      s.batch.global_batch, s.positions, s.batch.micro_batch,
      size_text(trainer::kCheckpointBytes * parameters), m.gflops / 1e3, m.node.gbps, m.gpus_per_node,
      m.network.gbps,
      s.offload ? "optimizer state in files: reading and writing them is not in the times\n" : "");
}

std::string how(const trainer::PlannedLayout& p) {
  return (p.recompute == "none" ? "-" : p.recompute) + (p.sequence_parallel ? " sp" : "");
}

std::string table(const trainer::PlanRequest& request, const std::vector<trainer::PlannedLayout>& shown) {
  std::string text = fmt::format("\n{:>4} {:<16}{:>9} {:>10} {:>10} {:>10}  {:<13}{}\n", "", "layout", "step",
                                 "tokens/s", "memory", "ckpt/rank", "recompute", "why");
  int number = 0;
  for (const trainer::PlannedLayout& p : shown)
    text += fmt::format("{:>4} {:<16}{:>9} {:>10.4g} {:>10} {:>10}  {:<13}{}\n",
                        p.fits ? std::to_string(++number) : "-", p.layout.string(),
                        seconds_text(p.time.total()), tokens_of_step(request) / p.time.total(),
                        size_text(p.memory.total()), size_text(p.checkpoint_bytes), how(p), p.why);
  return text;
}

/// One layout in detail.
std::string details(const trainer::PlanRequest& request, const trainer::PlannedLayout& p) {
  const Json layout = json_document(reshard::to_json(p.layout, request.model));
  std::string text = fmt::format("\n{}, {}\n", p.layout.string(), layout_text(layout));
  text += fmt::format("  {}: {}\n", p.fits ? "fits" : "does not fit", p.why);
  text += fmt::format(
      "  memory of rank {}, the fullest: parameters {}, gradients {}, optimizer {}, activations {}, "
      "buffers {}: {}\n",
      p.fullest_rank, size_text(p.memory.param), size_text(p.memory.grad), size_text(p.memory.optimizer),
      size_text(p.memory.activation), size_text(p.memory.buffers), size_text(p.memory.total()));
  text += fmt::format("  a step: {}, {:.4g} tokens/s; bubble {:.1f} % of computing; recompute {}{}\n",
                      seconds_text(p.time.total()), tokens_of_step(request) / p.time.total(), 100 * p.bubble,
                      p.recompute, p.sequence_parallel ? ", sequence parallel" : "");
  const auto sizes = reshard::rank_sizes(request.model, p.layout);
  const auto range = [&](auto member, std::uint64_t factor) {
    const auto [least, most] = std::ranges::minmax_element(sizes, {}, member);
    return std::pair(factor * ((*least).*member), factor * ((*most).*member));
  };
  const auto [held_least, held_most] = range(&reshard::RankSizes::holds, 1);
  const auto [least, most] = range(&reshard::RankSizes::writes, trainer::kCheckpointBytes);
  text += fmt::format("  a rank holds {} to {} parameters, and writes {} to {} of a checkpoint\n",
                      grouped_text(held_least), grouped_text(held_most), size_text(least), size_text(most));
  return text;
}

int plan_all(const Asked& asked, const trainer::PlanRequest& request) {
  std::vector<trainer::PlannedLayout> planned = trainer::plan_layouts(request);
  const auto fitting = std::ranges::count_if(planned, [](const auto& p) { return p.fits; });
  const std::size_t all = planned.size();
  constexpr std::int64_t kShown = 12;
  const std::int64_t limit = asked.top.value_or(asked.json ? reshard::kMaxRanks : kShown);
  if (std::ssize(planned) > limit) planned.resize(static_cast<std::size_t>(limit));
  if (asked.json) {
    Json json = document(asked, request, planned);
    json["legal"] = all;
    json["fitting"] = fitting;
    print_json(json);
    return 0;
  }
  std::string text = heading(asked, request) + table(request, planned);
  text += fmt::format(
      "\n{} of {} legal layouts fit{}\n", fitting, all,
      fitting > 0 ? "; `--layout L` shows one in detail" : ": more GPUs, or a smaller --micro-batch");
  print(text);
  return 0;
}

}  // namespace

int plan(const Arguments& arguments) {
  Asked asked;
  Options flags(
      "plan",
      "Ranks the layouts in which a model can be trained on a number of GPUs by estimated time, with "
      "the memory of the fullest rank and what it writes of a checkpoint.",
      "shardwright plan gpt2-xl --gpus 16 --memory 80GiB");
  flags.positional("MODEL", asked.model, "a preset's name, or a configuration file");
  flags.integer("--gpus", "N", 1, asked.gpus, "how many");
  flags.size("--memory", asked.memory, "memory of a GPU (default 80GiB)");
  flags.text("--layout", "LAYOUT", asked.layout, "only this one, as t4p12d8z1, in detail");
  flags.text("--stages", "5,6,6,5", asked.stages, "its layers of each stage");
  flags.integer("--global-batch", "B", 1, asked.global_batch, "sequences of a step (default: the model's)");
  flags.integer("--micro-batch", "B", 1, asked.micro_batch, "sequences a rank computes at once (default 1)");
  flags.text("--dtype", "fp32|bf16|fp16", asked.dtype, "of the computation (default: presets bf16)");
  flags.text("--recompute", "none|selective|full", asked.recompute,
             "activations computed again (default: what is fastest and fits)");
  flags.text("--offload", "none|nvme", asked.offload,
             "optimizer state in files, whose reading and writing the times leave out (default: none)");
  flags.number("--rate", "GFLOPS", 1e-3, asked.rate,
               "10^9 operations a second of a GPU in matrix products (default 200000)");
  flags.integer("--gpus-per-node", "N", 1, asked.gpus_per_node, "GPUs with fast links (default 8)");
  flags.number("--node-gbps", "X", 1e-6, asked.node_gbps, "GB/s of a GPU within a node (default 200)");
  flags.number("--network-gbps", "X", 1e-6, asked.network_gbps, "GB/s of a GPU between nodes (default 25)");
  flags.number("--node-latency-us", "X", 0, asked.node_latency_us, "microseconds (default 5)");
  flags.number("--network-latency-us", "X", 0, asked.network_latency_us, "microseconds (default 15)");
  flags.integer("--top", "N", 1, asked.top, "how many to show (default 12; with --json all)");
  flags.flag("--json", asked.json, "print JSON");
  flags.footer(presets_help());
  if (!flags.parse(arguments)) return 0;

  const std::optional<reshard::Layout> layout = layout_of(asked);
  const trainer::PlanRequest request = request_of(asked, layout);
  if (!layout) return plan_all(asked, request);
  const trainer::PlannedLayout planned = trainer::plan_layout(request, *layout);
  if (asked.json) {
    Json json = document(asked, request, {planned});
    json["ranks"] = ranks_json(request, planned);
    print_json(json);
  } else {
    print(heading(asked, request) + details(request, planned));
  }
  return 0;
}

}  // namespace shardwright::cli
