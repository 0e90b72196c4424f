// A configuration: a TOML file and --set texts, each ended by a NUL character. What is accepted can be
// written, as TOML and as JSON, and is read back to the same.
#include "trainer/config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "tests/fuzz/input.h"

using namespace shardwright;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::string toml = input.until('\0');
  try {
    std::vector<trainer::Override> overrides;
    while (!input.empty()) overrides.push_back(trainer::parse_override(input.until('\0')));
    // The model's table grows with its layers, which is their point; time and memory are wanted for other
    // inputs.
    overrides.push_back({"model.layers", std::to_string(1 + size % 7)});

    trainer::ValueSources sources;
    const trainer::Config config = trainer::parse_config(toml, "run.toml", overrides, &sources);
    require(sources.size() == trainer::config_keys().size(), "each key has a source");
    const std::string written = trainer::to_toml(config);
    for (const std::string& text : {written, trainer::to_toml(config, sources)})
      require(fuzz::must("what is written can be read",
                         [&] { return trainer::to_toml(trainer::parse_config(text, "run.toml", {})); }) ==
                  written,
              "a configuration is read as it was written");
    require(nlohmann::json::accept(trainer::to_json(config)), "a configuration is written as JSON");
  } catch (const Error& e) {
    require(e.code() == ErrorCode::usage, "what is refused is a mistake of the user");
  }
  return 0;
}
