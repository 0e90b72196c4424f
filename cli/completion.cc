#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cli/commands.h"
#include "trainer/config.h"

namespace shardwright::cli {
namespace {

std::vector<std::string> names(const std::vector<FlagHelp>& flags) {
  std::vector<std::string> list;
  for (const FlagHelp& flag : flags) list.push_back(flag.name);
  return list;
}

/// The words of a flag whose value is one of a few: "auto|text|u16" is such a value name.
std::vector<std::string> choices(const FlagHelp& flag) {
  std::vector<std::string> words;
  if (flag.value.find('|') == std::string::npos) return words;
  for (std::size_t at = 0; at <= flag.value.size();) {
    const std::size_t end = std::min(flag.value.find('|', at), flag.value.size());
    const std::string word = flag.value.substr(at, end - at);
    // Capitals name what is to be given (auto|must|PATH) and are not the word itself.
    if (word.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos) words.push_back(word);
    at = end + 1;
  }
  return words;
}

/// The branch of `case` that completes one subcommand; after a flag with a value, that value.
std::string branch(const CommandHelp& command) {
  std::string values;
  std::vector<std::string> files;
  for (const FlagHelp& flag : command.flags) {
    if (flag.value.empty()) continue;
    if (flag.name == "--set")
      values += "        --set) words=\"$keys\"; compopt -o nospace 2>/dev/null ;;\n";
    else if (const std::vector<std::string> few = choices(flag); !few.empty())
      values += fmt::format("        {}) words='{}' ;;\n", flag.name, fmt::join(few, " "));
    else
      files.push_back(flag.name);
  }
  if (!files.empty()) values += fmt::format("        {}) return ;;\n", fmt::join(files, "|"));
  return fmt::format("    '{}')\n      words='{}'\n      case $previous in\n{}      esac ;;\n", command.name,
                     fmt::join(names(command.flags), " "), values);
}

}  // namespace

std::string bash_completion() {
  std::vector<std::string> known, keys;
  std::string branches, topics;
  for (const Command& command : commands()) {
    known.push_back(command.name);
    if (!command.topics.empty())
      topics += fmt::format(
          "    {0}) words='{1}'; [[ $COMP_CWORD -gt 2 ]] && command='{0} '${{COMP_WORDS[2]}} ;;\n",
          command.name, fmt::join(command.topics, " "));
  }
  for (const CommandHelp& command : commands_help()) branches += branch(command);
  for (const trainer::KeyInfo& key : trainer::config_keys()) keys.push_back(key.key + "=");
  return fmt::format(
      R"(# bash completion of shardwright; made by `shardwright --completion bash`.
_shardwright() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command=${{COMP_WORDS[1]}} words=
  local keys='{keys}'
  COMPREPLY=()
  if [[ $COMP_CWORD -eq 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{known} --help --version --man --completion' -- "$word")
    return
  fi
  case $command in
{topics}    --completion) words=bash ;;
  esac
  case $command in
{branches}  esac
  # Without a dash it is a file, unless a few words are all there is.
  [[ $words == --* && $word != -* ]] && return
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -o bashdefault -o default -F _shardwright shardwright
)",
      fmt::arg("keys", fmt::join(keys, " ")), fmt::arg("known", fmt::join(known, " ")),
      fmt::arg("topics", topics), fmt::arg("branches", branches));
}

}  // namespace shardwright::cli
