#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/error.h"
#include "ckpt/scan.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "trainer/evaluate.h"

namespace shardwright::cli {

int eval(const Arguments& arguments) {
  std::string path;
  std::vector<std::string> files;
  std::optional<std::string> format;
  bool json = false;
  Options flags("eval", "Loss of a checkpoint on data; one answer for every layout.",
                "shardwright eval runs/demo --data book.txt");
  flags.positional("CKPT", path, "a checkpoint, or a run (then its newest valid checkpoint)");
  flags.texts("--data", "FILE", files, "data to evaluate on; may be repeated");
  flags.text("--format", "auto|text|u16", format, "as [data] format");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;
  if (files.empty()) throw Error(ErrorCode::usage, "--data: is missing; give a file to evaluate on");

  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const trainer::EvalReport report = trainer::evaluate(ckpt::resolve_checkpoint(ckpt::posix_env(), path),
                                                       files, format.value_or("auto"), threads);
  if (json)
    print_json({{"step", report.step},
                {"loss", json_float(report.loss)},
                {"perplexity", json_float(report.perplexity)},
                {"tokens", report.tokens}});
  else
    print(fmt::format("step {}: loss {:.6f}, perplexity {:.3f}, over {} tokens\n", report.step, report.loss,
                      report.perplexity, report.tokens));
  return 0;
}

}  // namespace shardwright::cli
