// The subcommands, one file each. Each takes the arguments after its name, prints, and returns the exit
// status; errors are thrown.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace shardwright::cli {

using Arguments = std::vector<std::string>;

int train(const Arguments& arguments);
int config(const Arguments& arguments);
int reshard(const Arguments& arguments);
int inspect(const Arguments& arguments);
int verify(const Arguments& arguments);
int diff(const Arguments& arguments);
int list(const Arguments& arguments);
int prune(const Arguments& arguments);
int view(const Arguments& arguments);
int plan(const Arguments& arguments);
int eval(const Arguments& arguments);
int doctor(const Arguments& arguments);
int bench(const Arguments& arguments);

struct Command {
  std::string name;
  std::string summary;  // a line of the overview
  int (*run)(const Arguments&);
  std::vector<std::string> topics;  // of a command that has commands of its own
};

/// All of them, in the order in which they are shown.
const std::vector<Command>& commands();

/// What each takes, in the same order; a command with topics has an entry for each topic instead.
std::vector<CommandHelp> commands_help();

}  // namespace shardwright::cli
