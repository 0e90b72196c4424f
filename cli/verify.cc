#include "ckpt/verify.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/scan.h"
#include "ckpt/size_text.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"

namespace shardwright::cli {

int verify(const Arguments& arguments) {
  std::string path;
  bool json = false;
  Options flags("verify", "Reads every byte of a checkpoint and checks it; reports every problem.",
                "shardwright verify runs/demo");
  flags.positional("CKPT", path, "a checkpoint, or a run (then its newest valid checkpoint)");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  ckpt::Env& env = ckpt::posix_env();
  ckpt::VerifyReport report;
  {
    ProgressBar bar("verify");
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    report = ckpt::verify(env, ckpt::resolve_checkpoint(env, path), threads,
                          [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); });
  }
  if (json) {
    auto problems = nlohmann::ordered_json::array();
    for (const ckpt::Problem& p : report.problems)
      problems.push_back({{"code", p.code},
                          {"file", p.file},
                          {"tensor", p.tensor},
                          {"kind", p.kind},
                          {"message", p.message}});
    print_json({{"ok", report.ok()},
                {"path", report.path},
                {"step", report.step},
                {"checked", {{"files", report.files}, {"chunks", report.chunks}, {"bytes", report.bytes}}},
                {"seconds", json_float(report.seconds)},
                {"problems", problems}});
  } else {
    std::string text;
    for (const ckpt::Problem& p : report.problems)
      text += fmt::format("{}: {}: {}\n", p.code, p.file, p.message);
    text += fmt::format(
        "{}: {}, step {}: {} files, {} chunks, {} read in {:.2f} s\n", report.path,
        report.ok() ? "every byte is right" : fmt::format("{} problem(s)", report.problems.size()),
        report.step, report.files, report.chunks, ckpt::size_text(report.bytes), report.seconds);
    print(text);
  }
  return report.ok() ? 0 : 1;
}

}  // namespace shardwright::cli
