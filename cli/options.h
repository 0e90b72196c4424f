// Flags and arguments of a subcommand, with one kind of mistake message. The only file that knows the parsing
// library is options.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardwright::cli {

/// One flag or argument as --help, the manual page and completion say it.
struct FlagHelp {
  std::string name;   // "--nproc", "CONFIG"
  std::string value;  // "N"; empty for a switch and for an argument
  std::string meaning;
  bool required = false;
};

struct CommandHelp {
  std::string name;  // "bench ckpt"
  std::string summary;
  std::string example;
  std::vector<std::string> notes;  // what else stands below --help
  std::vector<FlagHelp> arguments;
  std::vector<FlagHelp> flags;  // --help among them
};

/// Declares what a subcommand takes, then parse() fills the variables given. Mistakes are Error(usage): an
/// unknown flag comes with the nearest known one, a value with what it should be. Arguments after `--` are
/// taken as they are, so a path may begin with a dash.
/// More threads than this are a mistake, and thousands would take the machine with them.
inline constexpr std::int64_t kMostThreads = 1024;

class Options {
 public:
  /// `name` as typed after "shardwright", `example` a command line shown by --help.
  Options(const std::string& name, const std::string& summary, const std::string& example);
  ~Options();

  /// The next positional argument; `shown` is its name in the usage line ("CKPT").
  void positional(const std::string& shown, std::string& to, const std::string& meaning);
  void optional_positional(const std::string& shown, std::string& to, const std::string& meaning);
  void flag(const std::string& name, bool& to, const std::string& meaning);
  void text(const std::string& name, const std::string& shown, std::optional<std::string>& to,
            const std::string& meaning);
  /// May be given several times.
  void texts(const std::string& name, const std::string& shown, std::vector<std::string>& to,
             const std::string& meaning);
  /// A whole number from `least` to `most`.
  void integer(const std::string& name, const std::string& shown, std::int64_t least,
               std::optional<std::int64_t>& to, const std::string& meaning,
               std::int64_t most = std::numeric_limits<std::int64_t>::max());
  void number(const std::string& name, const std::string& shown, double least, std::optional<double>& to,
              const std::string& meaning);
  /// Bytes, as 512MiB.
  void size(const std::string& name, std::optional<std::uint64_t>& to, const std::string& meaning);
  /// More text at the end of --help.
  void footer(const std::string& text);

  /// `arguments` without program and subcommand. False if there is nothing more to do: --help was asked for
  /// and printed, or help_of() is listening.
  bool parse(const std::vector<std::string>& arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a subcommand declares, by running `command` up to its parse(), which returns false.
CommandHelp help_of(const std::function<void()>& command);

}  // namespace shardwright::cli
