#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/scan.h"
#include "ckpt/size_text.h"
#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/words.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string step, status, layout, stored, written, name, reason;
};

/// Columns as wide as what stands in them; why one is not valid stands below it.
std::string table(const std::vector<Row>& rows) {
  Row widest{"step", "status", "layout", "stored", "written", "name", ""};
  std::array<std::string Row::*, 5> columns = {&Row::step, &Row::status, &Row::layout, &Row::stored,
                                               &Row::written};
  std::array<std::size_t, 5> widths{};
  std::vector<Row> lines = {widest};
  lines.insert(lines.end(), rows.begin(), rows.end());
  for (const Row& row : lines)
    for (std::size_t c = 0; c < columns.size(); ++c)
      widths[c] = std::max(widths[c], (row.*columns[c]).size());
  std::string text;
  for (const Row& row : lines) {
    text += fmt::format("{:>{}}  {:<{}}  {:<{}}  {:>{}}  {:<{}}  {}\n", row.step, widths[0], row.status,
                        widths[1], row.layout, widths[2], row.stored, widths[3], row.written, widths[4],
                        row.name);
    if (!row.reason.empty()) text += fmt::format("{:>{}}  {}\n", "", widths[0], row.reason);
  }
  return text;
}

/// Null where it cannot be shown, as another program may have left it: the other checkpoints still can.
Json layout_of(const ckpt::ScanEntry& entry) {
  try {
    return json_document(entry.layout_json);
  } catch (const Error&) {
    return nullptr;
  }
}

/// Why the table is empty: a run that has saved nothing yet, or a directory that is none.
std::string nothing_in(const std::string& path) {
  if (is_run(path)) return fmt::format("{}: a run without a checkpoint yet\n", path);
  return fmt::format(
      "{}: holds no checkpoint (no directory named step-NNNNNNNNNN), and is no run; give a run or its "
      "checkpoints directory\n",
      path);
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

  const std::string directory = checkpoints_dir_of(path);
  std::vector<ckpt::ScanEntry> entries;
  if (deep) {
    ProgressBar bar("list");
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    entries = ckpt::deep_scan(ckpt::posix_env(), directory, threads,
                              [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); });
  } else {
    entries = ckpt::scan(ckpt::posix_env(), directory);
  }
  const double now = seconds_since_epoch();
  Json newest, checkpoints = Json::array();
  std::vector<Row> rows;
  for (const ckpt::ScanEntry& entry : entries) {
    if (newest.is_null() && entry.status == ckpt::Status::valid) newest = entry.path;
    const Json layout = layout_of(entry);
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
    rows.push_back({grouped_text(entry.step), status, text_field(layout, "string"),
                    entry.stored_bytes > 0 ? ckpt::size_text(entry.stored_bytes) : "",
                    entry.time > 0 ? age_text(entry.time, now) : "",
                    std::filesystem::path(entry.path).filename().string(), entry.reason});
  }
  if (json)
    print_json({{"newest_valid", newest}, {"checkpoints", checkpoints}});
  else
    print(rows.empty()
              ? nothing_in(path)
              : fmt::format("{}{}\n", directory, newest.is_null() ? ": none is valid" : "") + table(rows));
  return 0;
}

}  // namespace shardwright::cli
