// Completion of command lines in a shell, made from what the subcommands declare.
#pragma once

#include <string>

namespace shardwright::cli {

/// A script to be sourced by bash: `source <(shardwright --completion bash)`. It offers subcommands, their
/// flags, the values of those that have a few, and keys of the configuration after --set; else file names.
std::string bash_completion();

}  // namespace shardwright::cli
