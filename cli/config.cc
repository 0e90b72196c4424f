#include "trainer/config.h"

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"

namespace shardwright::cli {

int config(const Arguments& arguments) {
  std::string file;
  std::vector<std::string> sets;
  bool json = false;
  Options flags("config",
                "Prints the configuration that a training would have, complete, and who said each value: the "
                "file with the line, --set, or nobody (default). What is printed is a configuration itself.",
                "shardwright config run.toml --set optim.lr=3e-4");
  flags.positional("CONFIG", file, "configuration file (TOML)");
  flags.texts("--set", "KEY=VALUE", sets, "replace a key of the configuration; may be repeated");
  flags.flag("--json", json, "print JSON");
  if (!flags.parse(arguments)) return 0;

  std::vector<trainer::Override> overrides;
  for (const std::string& set : sets) overrides.push_back(trainer::parse_override(set));
  trainer::ValueSources sources;
  const trainer::Config config = trainer::load_config(file, overrides, &sources);
  if (json)
    print_json({{"file", file}, {"config", json_document(trainer::to_json(config))}, {"sources", sources}});
  else
    print(trainer::to_toml(config, sources));
  return 0;
}

}  // namespace shardwright::cli
