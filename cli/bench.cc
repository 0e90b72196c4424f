#include "trainer/bench.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "ckpt/trace.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "trainer/records.h"

namespace shardwright::cli {
namespace {

int default_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

int bench_ckpt(const Arguments& arguments) {
  std::optional<std::string> directory, trace_file;
  std::optional<std::uint64_t> size;
  std::optional<std::int64_t> threads;
  bool json = false;
  Options flags("bench ckpt",
                "Saves and loads a checkpoint beside what memory, disk and codec can do with the same bytes.",
                "shardwright bench ckpt --dir /data --size 1GiB");
  flags.text("--dir", "DIR", directory, "where to write (default: here); what is written is removed");
  flags.size("--size", size, "bytes of state (default 256MiB)");
  flags.integer("--threads", "N", 1, threads, "threads that compress (default: all cores)", kMostThreads);
  flags.text("--trace", "FILE", trace_file,
             "write what each thread did when, as `shardwright train --trace` does");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  std::optional<trace::Session> session;
  const std::string part = trace_file.value_or("") + ".part";
  if (trace_file) session.emplace(trace::SessionOptions{part, 0, "bench ckpt", trace::now_us()});
  trace::name_thread("bench");
  const trainer::CkptBench b = trainer::bench_ckpt(directory.value_or("."), size.value_or(256u << 20),
                                                   static_cast<int>(threads.value_or(default_threads())));
  if (session) {
    if (const std::string error = session->stop().error; !error.empty())
      throw Error(ErrorCode::io, error, part);
    trace::merge_parts({part}, *trace_file);
  }
  if (json)
    print_json({{"raw_bytes", b.raw_bytes},
                {"stored_bytes", b.stored_bytes},
                {"ceilings",
                 {{"memcpy_gbps", b.memcpy_gbps},
                  {"disk_write_gbps", b.disk_write_gbps},
                  {"disk_read_gbps", b.disk_read_gbps},
                  {"encode_gbps", b.encode_gbps},
                  {"decode_gbps", b.decode_gbps}}},
                {"save",
                 {{"seconds", b.save_s},
                  {"gbps", b.save_gbps},
                  {"stall_ms", b.stall_ms},
                  {"peak_host_bytes", b.peak_host_bytes}}},
                {"load",
                 {{"seconds", b.load_s},
                  {"gbps", b.load_gbps},
                  {"cached_seconds", b.load_cached_s},
                  {"cached_gbps", b.load_cached_gbps},
                  {"cached_of_ceiling", b.load_cached_of_ceiling},
                  {"fresh_memory_gbps", b.load_fresh_gbps},
                  {"peak_host_bytes", b.load_peak_host_bytes}}},
                {"ratio_to_disk", b.ratio_to_disk},
                {"limited_by", b.limited_by}});
  else
    print(fmt::format(
        "state    {} raw, {} stored ({:.3f})\n"
        "limits   memory copy {:.2f}, disk write {:.2f}, disk read {:.2f}, encode {:.2f}, decode {:.2f} "
        "GB/s\n"
        "save     {:.2f} s, {:.2f} GB/s, training stalled {:.1f} ms, at most {} in flight\n"
        "load     {:.2f} s, {:.2f} GB/s; cached {:.2f} GB/s ({:.2f} of the slower of copy and decode), into "
        "fresh memory {:.2f} GB/s; at most {} in flight\n"
        "limited by {}; {:.2f} of what the disk takes\n",
        ckpt::size_text(b.raw_bytes), ckpt::size_text(b.stored_bytes),
        static_cast<double>(b.stored_bytes) / static_cast<double>(b.raw_bytes), b.memcpy_gbps,
        b.disk_write_gbps, b.disk_read_gbps, b.encode_gbps, b.decode_gbps, b.save_s, b.save_gbps, b.stall_ms,
        ckpt::size_text(b.peak_host_bytes), b.load_s, b.load_gbps, b.load_cached_gbps,
        b.load_cached_of_ceiling, b.load_fresh_gbps, ckpt::size_text(b.load_peak_host_bytes), b.limited_by,
        b.ratio_to_disk));
  return 0;
}

int bench_train(const Arguments& arguments) {
  std::optional<std::int64_t> threads, steps;
  std::optional<std::string> dtype, recompute;
  bool json = false;
  Options flags("bench train", "Steps of a 10 M GPT beside the best matrix product of this machine.",
                "shardwright bench train --steps 10");
  flags.integer("--threads", "N", 1, threads, "threads (default: all cores)", kMostThreads);
  flags.integer("--steps", "N", 1, steps, "steps timed (default 10)", 1'000'000);
  flags.text("--dtype", "fp32|bf16|fp16", dtype, "of what matrix products read (default fp32)");
  flags.text("--recompute", "none|selective|full", recompute,
             "activations computed again in backward (default none)");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  const trainer::TrainBench b = trainer::bench_train(static_cast<int>(threads.value_or(default_threads())),
                                                     static_cast<int>(steps.value_or(10)),
                                                     dtype.value_or("fp32"), recompute.value_or("none"));
  if (json)
    print_json({{"model", b.model},
                {"dtype", b.dtype},
                {"layout", b.layout},
                {"step_ms", b.step_ms},
                {"tokens_per_s", b.tokens_per_s},
                {"gflops", b.gflops},
                {"peak_gflops", b.peak_gflops},
                {"share_of_peak", b.share_of_peak},
                {"memory_bytes", nlohmann::json::parse(trainer::memory_json(b.memory))}});
  else
    print(fmt::format("{}, {}, {}: {:.1f} ms a step, {:.0f} tokens/s, {:.0f} GFLOP/s of {:.0f} ({:.0f} %)\n",
                      b.model, b.dtype, b.layout, b.step_ms, b.tokens_per_s, b.gflops, b.peak_gflops,
                      100 * b.share_of_peak));
  return 0;
}

int bench_reshard(const Arguments& arguments) {
  std::optional<std::string> directory, from, to, keep;
  std::optional<std::uint64_t> size, max_memory;
  std::optional<std::int64_t> jobs, rounds;
  bool json = false;
  Options flags("bench reshard",
                "Makes a checkpoint and reshards it, beside a plain durable copy of the same bytes.",
                "shardwright bench reshard --dir /data --size 4GiB --from t1p4d2z1 --to t1p2d2z1");
  flags.text("--dir", "DIR", directory,
             "where to write (default: here), twice the size; what is written is removed, after a kill "
             "by the next run");
  flags.size("--size", size, "bytes of state (default 256MiB)");
  flags.text("--from", "LAYOUT", from, "of the checkpoint (default t2p2d2z1)");
  flags.text("--to", "LAYOUT", to, "to reshard it to (default t4p1d2z1)");
  flags.integer("--jobs", "N", 1, jobs, "threads (default: 1, 2, 4 and so on up to all cores, each measured)",
                kMostThreads);
  flags.size("--max-memory", max_memory, "of each reshard (default 512MiB, at least 64MiB)");
  flags.text("--keep", "CKPT", keep, "leave the checkpoint that was made here (default: it is removed)");
  flags.integer("--rounds", "N", 1, rounds, "copies and reshards, in turn, for the medians (default 3)",
                1000);
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  trainer::ReshardBenchOptions options;
  options.program = "/proc/self/exe";
  options.directory = directory.value_or(".");
  options.raw_bytes = size.value_or(256u << 20);
  options.from = reshard::parse_layout(from.value_or("t2p2d2z1"));
  options.to = reshard::parse_layout(to.value_or("t4p1d2z1"));
  if (max_memory) options.max_memory_bytes = *max_memory;
  options.keep = keep.value_or("");
  if (rounds) options.rounds = static_cast<int>(*rounds);
  if (!jobs)
    for (int some = 1; some < default_threads(); some *= 2) options.jobs.push_back(some);
  options.jobs.push_back(static_cast<int>(jobs.value_or(default_threads())));

  const trainer::ReshardBench b = trainer::bench_reshard(options);
  if (json) {
    nlohmann::ordered_json scaling = nlohmann::ordered_json::array();
    for (const auto& s : b.scaling) scaling.push_back({{"jobs", s.jobs}, {"seconds", s.seconds}});
    print_json({{"from", json_document(b.from_json)},
                {"to", json_document(b.to_json)},
                {"raw_bytes", b.raw_bytes},
                {"stored_bytes", b.stored_bytes},
                {"copy_s", b.copy_s},
                {"copy_least_s", b.copy_least_s},
                {"copy_most_s", b.copy_most_s},
                {"reshard_s", b.reshard_s},
                {"reshard_least_s", b.reshard_least_s},
                {"reshard_most_s", b.reshard_most_s},
                {"ratio_to_copy", b.ratio_to_copy},
                {"early_copy_s", b.early_copy_s},
                {"ratio_to_early_copy", b.ratio_to_early_copy},
                {"seconds_per_gb", b.seconds_per_gb},
                {"peak_rss_bytes", b.peak_rss_bytes},
                {"read_per_needed", b.read_per_needed},
                {"passed_through_share", b.passed_through_share},
                {"scaling", scaling},
                {"rounds", options.rounds},
                {"model", json_document(b.model_json)}});
    return 0;
  }
  std::string text = fmt::format(
      "state     {} raw, {} stored; {} -> {}\n"
      "copy      {:.2f} s ({:.2f} to {:.2f}) as dd conv=fsync; {:.2f} s where the disk begins at once\n"
      "reshard   {:.2f} s ({:.2f} to {:.2f}), {:.2f} and {:.2f} of the copies' times; {:.2f} s a GB; peak "
      "memory {}\n"
      "read      {:.3f} of what is needed; {:.1f} % of the chunks passed through\n",
      ckpt::size_text(b.raw_bytes), ckpt::size_text(b.stored_bytes), options.from.string(),
      options.to.string(), b.copy_s, b.copy_least_s, b.copy_most_s, b.early_copy_s, b.reshard_s,
      b.reshard_least_s, b.reshard_most_s, b.ratio_to_copy, b.ratio_to_early_copy, b.seconds_per_gb,
      ckpt::size_text(b.peak_rss_bytes), b.read_per_needed, 100 * b.passed_through_share);
  for (const auto& s : b.scaling) text += fmt::format("jobs {:<4} {:.2f} s\n", s.jobs, s.seconds);
  print(text);
  return 0;
}

}  // namespace

int bench(const Arguments& arguments) {
  const std::string what = arguments.empty() ? "" : arguments.front();
  const Arguments rest(arguments.empty() ? arguments.end() : arguments.begin() + 1, arguments.end());
  if (what == "ckpt") return bench_ckpt(rest);
  if (what == "reshard") return bench_reshard(rest);
  if (what == "train") return bench_train(rest);
  if (what == "--help" || what == "-h") {
    print(
        "Usage: shardwright bench ckpt|reshard|train [flags]\n\n`shardwright bench ckpt --help` explains "
        "one, with "
        "an example.\n");
    return 0;
  }
  throw Error(ErrorCode::usage,
              fmt::format("bench: {}; give ckpt, reshard or train",
                          what.empty() ? "what to measure is missing" : "'" + what + "' is unknown"));
}

}  // namespace shardwright::cli
