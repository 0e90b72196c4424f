#include "trainer/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "reshard/layout.h"

namespace shardwright::cli {
namespace {

using trainer::Concern;
using trainer::Finding;

constexpr const char* name(Concern concern) {
  switch (concern) {
    case Concern::none:
      return "none";
    case Concern::warning:
      return "warning";
    case Concern::error:
      return "error";
  }
  return "";
}

void append(std::vector<Finding>& all, std::vector<Finding> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// A line for each finding, and below it what goes wrong.
std::string table(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.subject.size());
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:<{}}  {}\n", finding.subject, width, finding.found);
    if (finding.concern != Concern::none)
      text += fmt::format("{:<{}}  {}: {}\n", "", width, name(finding.concern), finding.advice);
  }
  return text;
}

}  // namespace

int doctor(const Arguments& arguments) {
  std::string file;
  std::vector<std::string> sets;
  std::optional<std::int64_t> nproc;
  bool json = false;
  Options flags("doctor",
                "Says what a training finds on this machine (cores, memory, MPI, GPU, NCCL, shared memory, "
                "the file system of the run) and what would go wrong. Ends with 1 if a training would fail.",
                "shardwright doctor run.toml --nproc 4");
  flags.optional_positional("CONFIG", file,
                            "configuration file of the run (default: any run in this directory)");
  flags.integer("--nproc", "N", 1, nproc,
                "ranks to start here (default: what the layout asks for; without CONFIG 1)",
                reshard::kMaxRanks);
  flags.texts("--set", "KEY=VALUE", sets, "replace a key of the configuration; may be repeated");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  const std::optional<int> ranks = nproc ? std::optional(static_cast<int>(*nproc)) : std::nullopt;
  std::vector<Finding> findings;
  if (file.empty()) {
    findings = trainer::examine_machine(ranks.value_or(1));
    append(findings, trainer::examine_libraries());
    append(findings, trainer::examine_storage("."));
  } else {
    std::vector<trainer::Override> overrides;
    for (const std::string& set : sets) overrides.push_back(trainer::parse_override(set));
    const trainer::Config config = trainer::load_config(file, overrides);
    const reshard::ModelSpec model = reshard::build_model(config.model);
    const reshard::Layout layout = reshard::with_ranks(config.parallel.layout, ranks.value_or(0));
    reshard::check_layout(layout, model, config.batch());
    findings = trainer::examine_machine(layout.ranks());
    append(findings, trainer::examine_libraries());
    append(findings, trainer::examine_storage(config.checkpoints_dir));
    append(findings, trainer::examine_run(config, model, layout));
  }

  const auto count = [&findings](Concern concern) {
    return std::count_if(findings.begin(), findings.end(),
                         [concern](const Finding& f) { return f.concern == concern; });
  };
  const auto errors = count(Concern::error), warnings = count(Concern::warning);
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Finding& finding : findings)
      list.push_back({{"subject", finding.subject},
                      {"found", finding.found},
                      {"concern", name(finding.concern)},
                      {"advice", finding.advice}});
    print_json({{"ok", errors == 0}, {"errors", errors}, {"warnings", warnings}, {"findings", list}});
  } else {
    print(table(findings) + (errors + warnings == 0
                                 ? "nothing would go wrong that can be told from here\n"
                                 : fmt::format("{} error{}, {} warning{}\n", errors, errors == 1 ? "" : "s",
                                               warnings, warnings == 1 ? "" : "s")));
  }
  return errors == 0 ? 0 : 1;
}

}  // namespace shardwright::cli
