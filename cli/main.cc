#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/nearest.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/standard_streams.h"

namespace shardwright::cli {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};

constexpr Command kCommands[] = {
    {"train", "train a model; the same command again goes on from the newest valid checkpoint", train},
    {"reshard", "write a checkpoint again for another layout", reshard},
    {"inspect", "say what is in a checkpoint", inspect},
    {"verify", "read and check every byte of a checkpoint", verify},
    {"diff", "compare two checkpoints by tensor, whatever their layouts", diff},
    {"list", "every checkpoint of a run, valid or not and why", list},
    {"prune", "remove old checkpoints, never the last valid one", prune},
    {"eval", "loss of a checkpoint on a data file", eval},
    {"bench", "measure checkpoints or training against this machine's limits", bench},
};

std::string help() {
  std::string text =
      "Usage: shardwright COMMAND [arguments]\n\n"
      "Trains transformers in parallel, checkpoints them, and continues in any other layout.\n\nCommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<9}{}\n", command.name, command.summary);
  return text + "\n`shardwright COMMAND --help` explains one, with an example.\n";
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty() || arguments.front().empty())
    throw Error(ErrorCode::usage, "shardwright: no command given; `shardwright --help` lists them");
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") {
    print(help());
    return 0;
  }
  if (first == "--version") {
    print(fmt::format("shardwright {} (checkpoint format {})\n", SHARDWRIGHT_VERSION, ckpt::kFormatVersion));
    return 0;
  }
  ckpt::check_fault_variable();
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (first == command.name) return command.run(Arguments(arguments.begin() + 1, arguments.end()));
    names.emplace_back(command.name);
  }
  throw Error(ErrorCode::usage, fmt::format("{}: unknown command; the nearest known one is {}", first,
                                            ckpt::nearest(first, names)));
}

}  // namespace
}  // namespace shardwright::cli

int main(int argc, char** argv) {
  using namespace shardwright;
  cli::fill_standard_streams();
  // A reader of our output that goes away shows as EPIPE, which print() takes quietly.
  std::signal(SIGPIPE, SIG_IGN);
  const cli::Arguments arguments(argv + 1, argv + argc);
  try {
    return cli::dispatch(arguments);
  } catch (const std::exception& error) {
    const auto end = std::ranges::find(arguments, "--");
    return cli::print_error(error, std::find(arguments.begin(), end, "--json") != end);
  }
}
