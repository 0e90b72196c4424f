#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "ckpt/error.h"
#include "ckpt/nearest.h"
#include "cli/output.h"
#include "cli/size.h"

namespace shardwright::cli {

namespace {
/// Where parse() puts what was declared, while help_of() listens.
thread_local CommandHelp* listener = nullptr;
}  // namespace

struct Options::State {
  State(const std::string& name_, const std::string& summary, std::string example_)
      : name(name_), example(std::move(example_)), app(summary, "shardwright " + name_) {
    app.allow_extras();  // left-overs are reported here, with the nearest known flag
  }

  CLI::Option* value(const std::string& flag, const std::string& shown, const std::string& meaning,
                     std::function<void(const std::string&)> use) {
    return app.add_option_function<std::string>(flag, use, meaning)
        ->type_name(shown)
        ->allow_extra_args(false);
  }

  [[noreturn]] void refuse(const std::string& thing, const std::string& wrong,
                           const std::string& right) const {
    throw Error(ErrorCode::usage, fmt::format("{}: {}; {}", thing, wrong, right));
  }

  void refuse_left_over(const std::string& argument) const {
    if (!argument.starts_with("-") || argument == "-")
      refuse(argument, fmt::format("is one argument too many for '{}'", name),
             fmt::format("`shardwright {} --help` shows what it takes", name));
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options())
      if (!option->get_positional()) known.push_back(option->get_name());
    const std::string flag = argument.substr(0, argument.find('='));
    refuse(flag, fmt::format("unknown flag of '{}'", name),
           fmt::format("the nearest known one is {}", ckpt::nearest(flag, known)));
  }

  CommandHelp help() const {
    CommandHelp help{name, app.get_description(), example, notes, {}, {}};
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional())
        help.arguments.push_back(
            {option->get_name(true), "", option->get_description(), option->get_required()});
      else
        help.flags.push_back({"--" + option->get_lnames().front(),
                              option->get_type_size() == 0 ? "" : option->get_type_name(),
                              option->get_description(), false});
    }
    return help;
  }

  std::string name;
  std::string example;
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, const std::string*>> required;
  CLI::App app;
};

Options::Options(const std::string& name, const std::string& summary, const std::string& example)
    : state_(std::make_unique<State>(name, summary, example)) {
  state_->app.footer("Example:\n  " + example);
}
Options::~Options() = default;

void Options::footer(const std::string& text) {
  state_->notes.push_back(text);
  state_->app.footer(state_->app.get_footer() + "\n\n" + text);
}

void Options::positional(const std::string& shown, std::string& to, const std::string& meaning) {
  state_->app.add_option(shown, to, meaning)->required()->type_name("");
  state_->required.emplace_back(shown, &to);
}

void Options::optional_positional(const std::string& shown, std::string& to, const std::string& meaning) {
  state_->app.add_option(shown, to, meaning)->type_name("");
}

void Options::flag(const std::string& name, bool& to, const std::string& meaning) {
  state_->app.add_flag(name, to, meaning);
}

void Options::text(const std::string& name, const std::string& shown, std::optional<std::string>& to,
                   const std::string& meaning) {
  state_->value(name, shown, meaning, [&to](const std::string& given) { to = given; });
}

void Options::texts(const std::string& name, const std::string& shown, std::vector<std::string>& to,
                    const std::string& meaning) {
  state_->app.add_option(name, to, meaning)->type_name(shown)->allow_extra_args(false);
}

void Options::integer(const std::string& name, const std::string& shown, std::int64_t least,
                      std::optional<std::int64_t>& to, const std::string& meaning, std::int64_t most) {
  state_->value(
      name, shown, meaning, [&to, name, least, most, state = state_.get()](const std::string& given) {
        std::int64_t parsed = 0;
        const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), parsed);
        if (error != std::errc() || end != given.data() + given.size() || parsed < least || parsed > most)
          state->refuse(
              name, fmt::format("'{}' is not possible", given),
              fmt::format(
                  "give a whole number from {}{}", least,
                  most == std::numeric_limits<std::int64_t>::max() ? "" : fmt::format(" to {}", most)));
        to = parsed;
      });
}

void Options::number(const std::string& name, const std::string& shown, double least,
                     std::optional<double>& to, const std::string& meaning) {
  state_->value(name, shown, meaning, [&to, name, least, state = state_.get()](const std::string& given) {
    double parsed = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), parsed);
    if (error != std::errc() || end != given.data() + given.size() || !std::isfinite(parsed) ||
        parsed < least)
      state->refuse(name, fmt::format("'{}' is not possible", given),
                    fmt::format("give a number from {}", least));
    to = parsed;
  });
}

void Options::size(const std::string& name, std::optional<std::uint64_t>& to, const std::string& meaning) {
  state_->value(name, "SIZE", meaning, [&to, name, state = state_.get()](const std::string& given) {
    to = parse_size(given);
    if (!to)
      state->refuse(name, fmt::format("'{}' is no size", given),
                    "give bytes, or a number with MiB, GiB, MB or GB");
  });
}

bool Options::parse(const std::vector<std::string>& arguments) {
  if (listener != nullptr) {
    *listener = state_->help();
    return false;
  }
  // The parsing library takes the arguments last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  CLI::App& app = state_->app;
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    // A mistyped flag leaves its value among the arguments, which may be what the parser tripped over.
    for (const std::string& left : app.remaining())
      if (left.starts_with("-") && left != "--" && left != "-") state_->refuse_left_over(left);
    std::string wrong = error.what();
    std::ranges::replace(wrong, '\n', ' ');
    state_->refuse(state_->name, wrong,
                   fmt::format("`shardwright {} --help` shows what it takes", state_->name));
  }
  for (const std::string& left : app.remaining())
    if (left != "--") state_->refuse_left_over(left);
  for (const auto& [shown, given] : state_->required)
    if (given->empty())
      state_->refuse(state_->name, fmt::format("{} is empty", shown),
                     fmt::format("`shardwright {} --help` shows what it takes", state_->name));
  return true;
}

CommandHelp help_of(const std::function<void()>& command) {
  CommandHelp help;
  listener = &help;
  try {
    command();
  } catch (...) {
    listener = nullptr;
    throw;
  }
  listener = nullptr;
  return help;
}

}  // namespace shardwright::cli
