#include "trainer/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "ckpt/error.h"
#include "trainer/agreement.h"

namespace shardwright::trainer {
namespace {

namespace fs = std::filesystem;

std::string part_prefix(const std::string& file, std::uint64_t generation) {
  return fmt::format("{}.gen-{:04}.rank-", file, generation);
}

std::string part_path(const std::string& file, std::uint64_t generation, int rank) {
  return fmt::format("{}{:05}", part_prefix(file, generation), rank);
}

void say(const std::string& line) { std::fputs(fmt::format("shardwright: {}\n", line).c_str(), stderr); }

}  // namespace

void check_trace_file(const std::string& file) {
  const std::string probe = file + ".new";
  errno = 0;
  if (fs::is_directory(file) || !std::ofstream(probe))
    throw_errno(fs::is_directory(file) ? EISDIR : errno, "cannot write", file);
  std::remove(probe.c_str());
}

void join_trace_parts(const std::string& file, std::uint64_t first, std::uint64_t last) {
  try {
    const fs::path directory = fs::absolute(file).parent_path();
    std::vector<std::string> parts;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      for (std::uint64_t generation = first; generation <= last; ++generation) {
        const std::string prefix = fs::path(part_prefix(file, generation)).filename().string();
        if (name.starts_with(prefix)) parts.push_back(entry.path().string());
      }
    }
    if (parts.empty()) return;
    std::sort(parts.begin(), parts.end());
    trace::merge_parts(parts, file);
  } catch (const std::exception& failure) {
    say(fmt::format("the trace is not joined: {}; its parts are {}.gen-*", failure.what(), file));
  }
}

RunTrace::RunTrace(const std::string& file, Communicator& world, std::uint64_t generation, bool supervised)
    : file_(file), world_(world), generation_(generation), supervised_(supervised) {
  if (file_.empty()) return;
  trace::SessionOptions options;
  options.part = part_path(file, generation, world.rank());
  options.process = world.rank();
  options.process_name = fmt::format("rank {}", world.rank());
  const char* zero = std::getenv(kTraceZeroVariable);
  options.zero_us = zero == nullptr ? trace::now_us() : std::strtoll(zero, nullptr, 10);
  world.broadcast(std::as_writable_bytes(std::span(&options.zero_us, 1)), 0);
  together(world, [&] { session_ = std::make_unique<trace::Session>(options); });
  trace::name_thread("train");
}

void RunTrace::finish() {
  if (!session_) return;
  const trace::Summary summary = session_->stop();
  session_.reset();
  if (!summary.error.empty()) say(fmt::format("the trace ends early: {}", summary.error));
  if (summary.dropped > 0)
    say(fmt::format("{} of {} spans found no room in the trace", summary.dropped,
                    summary.dropped + summary.spans));
  if (supervised_) return;
  world_.barrier();  // all have written their parts
  if (world_.rank() == 0) join_trace_parts(file_, generation_, generation_);
}

}  // namespace shardwright::trainer
