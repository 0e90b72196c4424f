#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>
#include <type_traits>

#include "ckpt/env.h"
#include "ckpt/error.h"
#include "ckpt/nearest.h"
#include "reshard/presets.h"
#include "trainer/config_schema.h"
#include "trainer/config_text.h"

namespace shardwright::trainer {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 1u << 20;
constexpr const char* kPresetKey = "model.preset";

/// One "section.key = value" and where it was said.
struct Entry {
  std::string name;
  std::string origin;  // "run.toml:7" or "--set"
  toml::table holder;  // owns the value under "v"
  std::string text;    // of --set, as typed
  const toml::node& value() const { return *holder.get("v"); }
};

/// Messages of all mistakes, each "<thing>: <what is wrong>; <what would be right>".
class Mistakes {
 public:
  void add(std::string message) { messages_.push_back(std::move(message)); }
  bool none() const { return messages_.empty(); }
  void throw_if_any(const std::string& file) const {
    if (!messages_.empty())
      throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(messages_, "\n")), file);
  }

 private:
  std::vector<std::string> messages_;
};

const ConfigKey* find_key(const std::string& name) {
  for (const ConfigKey& key : config_schema())
    if (key.name == name) return &key;
  return nullptr;
}

/// The known key that was most likely meant: the same key of another section, else the nearest name.
std::string suggestion(const std::string& name) {
  const std::string key = name.substr(name.rfind('.') + 1);
  std::vector<std::string> names, in_section;
  for (const ConfigKey& known : config_schema()) {
    if (known.name.substr(known.name.find('.') + 1) == key) return known.name;
    names.push_back(known.name);
    if (known.name.starts_with(name.substr(0, name.find('.') + 1))) in_section.push_back(known.name);
  }
  // Only the section is mistyped, or the key within a right section.
  return ckpt::nearest(name, in_section.empty() || name.find('.') == std::string::npos ? names : in_section);
}

Entry make_entry(std::string name, std::string origin, const toml::node& value) {
  Entry entry{std::move(name), std::move(origin), {}, {}};
  value.visit([&](const auto& typed) { entry.holder.insert_or_assign("v", typed); });
  return entry;
}

std::string origin_of(const std::string& file, const toml::node& node) {
  return fmt::format("{}:{}", file, node.source().begin.line);
}

std::vector<Entry> file_entries(const std::string& contents, const std::string& file, Mistakes& mistakes) {
  toml::table document;
  try {
    document = toml::parse(contents, file);
  } catch (const toml::parse_error& error) {
    throw Error(
        ErrorCode::usage,
        fmt::format("{}:{}: {}; the file must be TOML", file, error.source().begin.line, error.description()),
        file);
  }
  std::vector<Entry> entries;
  for (auto&& [section, node] : document) {
    const std::string name(section.str());
    if (!node.is_table()) {
      entries.push_back(make_entry(name, origin_of(file, node), node));
      continue;
    }
    const toml::table& table = *node.as_table();
    const bool known = std::ranges::any_of(
        config_schema(), [&](const ConfigKey& key) { return key.name.starts_with(name + "."); });
    if (!known && table.empty())
      mistakes.add(fmt::format("{}: [{}]: unknown section; the nearest known key is {}",
                               origin_of(file, node), name, suggestion(name + ".")));
    for (auto&& [key, value] : table)
      entries.push_back(make_entry(fmt::format("{}.{}", name, key.str()), origin_of(file, value), value));
  }
  return entries;
}

/// The value of --set as TOML where it is TOML, else as text.
Entry read_override(const Override& override) {
  Entry entry{override.first, "--set", {}, override.second};
  try {
    toml::table parsed = toml::parse("v = " + override.second + "\n");
    if (parsed.size() == 1) entry.holder = std::move(parsed);
  } catch (const toml::parse_error&) {
    // Not TOML: text without quotes, as a shell user writes it.
  }
  if (entry.holder.empty()) entry.holder.insert_or_assign("v", override.second);
  return entry;
}

std::string described(const toml::node& value) {
  std::ostringstream text;
  value.visit([&](const auto& typed) { text << typed; });
  std::string shown = text.str();
  std::ranges::replace(shown, '\n', ' ');
  switch (value.type()) {
    case toml::node_type::string:
      return "the text " + shown;
    case toml::node_type::integer:
      return "the whole number " + shown;
    case toml::node_type::floating_point:
      return "the number " + shown;
    case toml::node_type::boolean:
      return shown;
    case toml::node_type::array:
      return "the list " + shown;
    case toml::node_type::table:
      return "a table";
    default:
      return "the date or time " + shown;
  }
}

/// Puts one entry into its place, or says why it cannot be there.
class Assign {
 public:
  Assign(const ConfigKey& key, const Entry& entry, Config& config, Mistakes& mistakes)
      : key_(key), entry_(entry), config_(config), mistakes_(mistakes) {}

  void operator()(bool& (*place)(Config&)) {
    const auto value = entry_.value().value_exact<bool>();
    if (!value) return wrong_type();
    place(config_) = *value;
  }
  void operator()(double& (*place)(Config&)) {
    const auto value = entry_.value().value<double>();
    if (!value || !entry_.value().is_number()) return wrong_type();
    // A zero has no sign: written, -0 would be a whole number, which has none.
    if (in_range(*value, fmt::format("{}", *value))) place(config_) = *value == 0 ? 0.0 : *value;
  }
  template <typename Integer>
  requires(std::is_integral_v<Integer>) void operator()(Integer& (*place)(Config&)) {
    const auto value = entry_.value().value_exact<std::int64_t>();
    if (!value) return wrong_type();
    if (!std::in_range<Integer>(*value)) return out_of_range(fmt::format("{}", *value));
    if (in_range(static_cast<double>(*value), fmt::format("{}", *value)))
      place(config_) = static_cast<Integer>(*value);
  }
  void operator()(std::string& (*place)(Config&)) {
    if (const auto text = read_text(entry_.value()); !text)
      wrong_type();
    else if (chosen(*text))
      place(config_) = *text;
  }
  void operator()(ckpt::Codec& (*place)(Config&)) {
    if (const auto text = read_text(entry_.value()); !text)
      wrong_type();
    else if (chosen(*text))
      place(config_) = ckpt::parse_codec(*text);
  }
  void operator()(std::vector<int>& (*place)(Config&)) {
    const toml::array* list = entry_.value().as_array();
    if (list == nullptr) return wrong_type();
    std::vector<int> values;
    for (const toml::node& element : *list) {
      const auto value = element.value_exact<std::int64_t>();
      if (!value) return wrong_type();
      if (!std::in_range<int>(*value)) return out_of_range(fmt::format("{}", *value));
      if (!in_range(static_cast<double>(*value), fmt::format("{}", *value))) return;
      values.push_back(static_cast<int>(*value));
    }
    place(config_) = std::move(values);
  }
  void operator()(std::vector<std::string>& (*place)(Config&)) {
    std::vector<std::string> values;
    if (const toml::array* list = entry_.value().as_array()) {
      for (const toml::node& element : *list) {
        const auto text = element.value_exact<std::string>();
        if (!text) return wrong_type();
        values.push_back(*text);
      }
    } else if (const auto text = read_text(entry_.value())) {
      values.push_back(*text);
    } else {
      return wrong_type();
    }
    for (const std::string& text : values) {
      if (!usable(text)) return;
      if (text.empty()) return say("a name is empty; give " + expectation(key_));
    }
    place(config_) = std::move(values);
  }

 private:
  /// A text; --set may leave the quotes out even where what stands there is TOML of another type (a directory
  /// named 2026).
  std::optional<std::string> read_text(const toml::node& value) const {
    if (auto text = value.value_exact<std::string>()) return text;
    if (entry_.origin == "--set") return entry_.text;
    return std::nullopt;
  }
  bool in_range(double value, const std::string& shown) {
    const bool low = key_.open_low ? value > key_.least : value >= key_.least;
    const bool high = key_.open_high ? value < key_.most : value <= key_.most;
    if (!std::isfinite(value) || !low || !high) {
      out_of_range(shown);
      return false;
    }
    return true;
  }
  /// The system takes no NUL in a path, and --set may hold bytes that no TOML can.
  bool usable(const std::string& text) {
    const bool nul = text.find('\0') != std::string::npos, utf8 = is_utf8(text);
    if (nul || !utf8)
      say(fmt::format("{}; give {}", nul ? "has a NUL character" : "is not UTF-8", expectation(key_)));
    return !nul && utf8;
  }
  bool chosen(const std::string& text) {
    if (!usable(text)) return false;
    if (key_.choices.empty() || std::ranges::find(key_.choices, text) != key_.choices.end()) return true;
    if (std::ranges::find(key_.later, text) != key_.later.end()) {
      not_built(fmt::format("\"{}\"", text));
    } else {
      std::vector<std::string> known = key_.choices;
      known.insert(known.end(), key_.later.begin(), key_.later.end());
      say(fmt::format("\"{}\" is no known value; give {} (nearest: {})", text, expectation(key_),
                      ckpt::nearest(text, known)));
    }
    return false;
  }
  void wrong_type() {
    say(fmt::format("{} has the wrong type; give {}", described(entry_.value()), expectation(key_)));
  }
  void out_of_range(const std::string& shown) {
    say(fmt::format("{} is out of range; give {}", shown, expectation(key_)));
  }
  void not_built(const std::string& shown) {
    say(fmt::format("{} is not built yet; give {}", shown, expectation(key_)));
  }
  void say(const std::string& what) {
    mistakes_.add(fmt::format("{}: {}: {}", entry_.origin, key_.name, what));
  }

  const ConfigKey& key_;
  const Entry& entry_;
  Config& config_;
  Mistakes& mistakes_;
};

/// Keys that a preset gives a value.
bool in_preset(const ConfigKey& key) {
  return key.name.starts_with("model.") && key.name != kPresetKey && key.name != "model.dropout";
}

/// The model that config.preset names, before anything else that was said of it.
void start_from_preset(const Entry& entry, Config& config, Mistakes& mistakes) {
  if (config.preset.empty()) return;
  if (const reshard::Preset* preset = reshard::find_preset(config.preset)) {
    config.model = preset->model;
    return;
  }
  std::vector<std::string> names;
  for (const reshard::Preset& preset : reshard::presets()) names.push_back(preset.name);
  mistakes.add(fmt::format("{}: model.preset: \"{}\" is no known value; give one of {} (nearest: {})",
                           entry.origin, config.preset, fmt::join(names, ", "),
                           reshard::nearest_preset(config.preset)));
}

/// What no single key can tell: the model's and the layout's own rules, and paths that follow from others.
void complete(Config& config, Mistakes& mistakes) {
  if (config.run_dir.empty()) {
    config.run_dir = (std::filesystem::path("runs") / std::filesystem::path(config.file).stem()).string();
    if (!is_utf8(config.run_dir))
      mistakes.add("run.dir: would follow the name of the file, which is not UTF-8; give run.dir");
  }
  if (config.checkpoints_dir.empty())
    config.checkpoints_dir = (std::filesystem::path(config.run_dir) / "checkpoints").string();
  if (config.train.eval_every > 0 && config.data.valid.empty())
    mistakes.add(fmt::format("train.eval_every: is {} without data to evaluate on; give data.valid, or 0",
                             config.train.eval_every));
  mistakes.throw_if_any(config.file);

  const reshard::ModelSpec model = reshard::build_model(config.model);
  config.model = model.config;
  reshard::Layout layout = config.parallel.layout;
  if (layout.dp == 0) layout.dp = 1;  // the ranks are not known here; the other degrees' rules are
  reshard::check_layout(layout, model, config.batch());
}

}  // namespace

Override parse_override(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(ErrorCode::usage, fmt::format("--set: '{}' has no value; give section.key=value", text));
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Config load_config(const std::string& file, const std::vector<Override>& overrides, ValueSources* sources) {
  // Whatever is wrong with that file, something else was meant: status 2.
  const std::string contents = [&file] {
    try {
      // A configuration, unlike a checkpoint's files, may be a link.
      std::error_code broken;
      const std::string real = std::filesystem::is_symlink(file, broken)
                                   ? std::filesystem::canonical(file, broken).string()
                                   : file;
      return ckpt::read_file(ckpt::posix_env(), broken ? file : real, kMaxConfigBytes);
    } catch (const Error& error) {
      throw Error(error.code() == ErrorCode::missing ? ErrorCode::missing : ErrorCode::usage, error.what(),
                  file);
    }
  }();
  return parse_config(contents, file, overrides, sources);
}

Config parse_config(const std::string& contents, const std::string& file,
                    const std::vector<Override>& overrides, ValueSources* sources) {
  Mistakes mistakes;
  std::map<std::string, Entry> entries;  // the last word on each key
  for (Entry& entry : file_entries(contents, file, mistakes))
    entries.insert_or_assign(entry.name, std::move(entry));
  for (const Override& override : overrides) {
    Entry entry = read_override(override);
    entries.insert_or_assign(entry.name, std::move(entry));
  }

  Config config;
  config.file = file;
  const auto assign = [&](const ConfigKey& key, const Entry& entry) {
    std::visit(Assign(key, entry, config, mistakes), key.place);
  };
  if (const auto named = entries.find(kPresetKey); named != entries.end()) {
    assign(*find_key(kPresetKey), named->second);
    start_from_preset(named->second, config, mistakes);
  }
  for (const auto& [name, entry] : entries) {
    if (name == kPresetKey) continue;
    if (const ConfigKey* key = find_key(name))
      assign(*key, entry);
    else
      mistakes.add(fmt::format("{}: {}: unknown key; the nearest known one is {}", entry.origin, name,
                               suggestion(name)));
  }
  for (const ConfigKey& key : config_schema())
    if (key.required && !entries.contains(key.name) && !(in_preset(key) && !config.preset.empty()))
      mistakes.add(
          fmt::format("{}: {}: is missing; give {} ({})", file, key.name, expectation(key), key.meaning));
  complete(config, mistakes);
  if (sources != nullptr)
    for (const ConfigKey& key : config_schema()) {
      const auto said = entries.find(key.name);
      (*sources)[key.name] = said != entries.end()                      ? said->second.origin
                             : !config.preset.empty() && in_preset(key) ? "preset"
                                                                        : "default";
    }
  return config;
}

}  // namespace shardwright::trainer
