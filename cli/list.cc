#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ckpt/scan.h"
#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/size.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

/// "2026-01-31T12:00:00.000Z"
std::string utc(double seconds) {
  const auto whole = static_cast<std::time_t>(std::floor(seconds));
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z", fmt::gmtime(whole),
                     static_cast<int>((seconds - std::floor(seconds)) * 1000));
}

}  // namespace

int list(const Arguments& arguments) {
  std::string path;
  bool deep = false, json = false;
  Options flags("list", "Lists every checkpoint of a run, newest first: valid, or why not.",
                "shardwright list runs/demo");
  flags.positional("RUN_OR_DIR", path, "a run or a checkpoints directory");
  flags.flag("--deep", deep, "read and check every byte");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  const std::vector<ckpt::ScanEntry> entries = ckpt::scan(ckpt::posix_env(), checkpoints_dir_of(path), deep);
  Json newest, checkpoints = Json::array();
  std::string text;
  for (const ckpt::ScanEntry& entry : entries) {
    if (newest.is_null() && entry.status == ckpt::Status::valid) newest = entry.path;
    const Json layout = json_document(entry.layout_json);
    const std::string status(ckpt::name(entry.status));
    const std::string time = entry.time > 0 ? utc(entry.time) : "";  // one without COMMIT has none
    checkpoints.push_back({{"path", entry.path},
                           {"step", entry.step},
                           {"generation", entry.generation},
                           {"status", status},
                           {"reason", entry.reason},
                           {"layout", layout},
                           {"stored_bytes", entry.stored_bytes},
                           {"time", time.empty() ? Json() : Json(time)}});
    text += fmt::format("{:>10}  {:<14} {:<14} {:>10}  {:<24}  {}{}\n", entry.step, status,
                        layout.is_object() ? layout.value("string", "") : "", size_text(entry.stored_bytes),
                        time, entry.path, entry.reason.empty() ? "" : "  (" + entry.reason + ")");
  }
  if (json)
    print_json({{"newest_valid", newest}, {"checkpoints", checkpoints}});
  else
    print(text.empty() ? fmt::format("{}: no checkpoints\n", path)
                       : fmt::format("{:>10}  {:<14} {:<14} {:>10}  {:<24}  {}\n", "step", "status", "layout",
                                     "stored", "time", "path") +
                             text);
  return 0;
}

}  // namespace shardwright::cli
