#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>

#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/libraries.h"
#include "ckpt/nearest.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/manual_page.h"
#include "cli/output.h"
#include "cli/standard_streams.h"
#include "trainer/communicator.h"

namespace shardwright::cli {
namespace {

std::string help() {
  std::string text =
      "Usage: shardwright COMMAND [arguments]\n\n"
      "Trains transformers in parallel, checkpoints them, and continues in any other layout.\n\nCommands:\n";
  for (const Command& command : commands()) text += fmt::format("  {:<9}{}\n", command.name, command.summary);
  return text +
         "\n`shardwright COMMAND --help` explains one, with an example.\n"
         "`shardwright --man | man -l -` shows all of it, `source <(shardwright --completion bash)` "
         "completes "
         "command lines,\n`shardwright --version` names the libraries in use.\n";
}

std::string version() {
  std::string libraries;
  for (const ckpt::Library& library : ckpt::linked_libraries())
    libraries += library.name + " " + library.version + ", ";
  return fmt::format("shardwright {}\ncheckpoint format {}\n{}{}\n", SHARDWRIGHT_VERSION,
                     ckpt::kFormatVersion, libraries, trainer::mpi_library());
}

/// A flag instead of a command; nothing if it is none.
std::optional<std::string> answer(const Arguments& arguments) {
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") return help();
  if (first == "--version") return version();
  if (first == "--man") return manual_page();
  if (first != "--completion") return std::nullopt;
  if (arguments.size() != 2 || arguments[1] != "bash")
    throw Error(ErrorCode::usage, "--completion: needs the name of a shell; bash is the one there is");
  return bash_completion();
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty() || arguments.front().empty())
    throw Error(ErrorCode::usage, "shardwright: no command given; `shardwright --help` lists them");
  const std::string& first = arguments.front();
  if (const auto text = answer(arguments)) {
    print(*text);
    return 0;
  }
  ckpt::check_fault_variable();
  std::vector<std::string> names;
  for (const Command& command : commands()) {
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
