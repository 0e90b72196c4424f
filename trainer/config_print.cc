#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "trainer/config_schema.h"
#include "trainer/config_text.h"

namespace shardwright::trainer {
namespace {

// The keys' places are functions of a mutable Config; reading through them changes nothing.
template <typename T>
const T& read(T& (*place)(Config&), const Config& config) {
  return place(const_cast<Config&>(config));
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + "\"";
}

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(int value) { return fmt::format("{}", value); }
std::string toml_text(std::int64_t value) { return fmt::format("{}", value); }
std::string toml_text(std::uint64_t value) { return fmt::format("{}", value); }
std::string toml_text(const std::string& value) { return quoted(value); }
std::string toml_text(ckpt::Codec value) { return quoted(std::string(ckpt::name(value))); }
// The shortest text that parses back to the same value; a float key also accepts a whole number.
std::string toml_text(double value) { return fmt::format("{}", value); }

template <typename T>
std::string toml_text(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(toml_text(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

/// A comment holds no control characters, and UTF-8 only; a file's name may be anything.
std::string printable(std::string text) {
  const bool utf8 = is_utf8(text);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || (!utf8 && static_cast<unsigned char>(c) >= 0x80))
      c = '?';
  return text;
}

std::string section_of(const std::string& name) { return name.substr(0, name.find('.')); }
std::string key_of(const std::string& name) { return name.substr(name.find('.') + 1); }

nlohmann::ordered_json json_value(const ConfigKey& key, const Config& config) {
  return std::visit(
      [&](auto place) -> nlohmann::ordered_json {
        if constexpr (std::is_same_v<decltype(place), ckpt::Codec& (*)(Config&)>) {
          return std::string(ckpt::name(read(place, config)));
        } else {
          return read(place, config);
        }
      },
      key.place);
}

}  // namespace

std::string toml_value(const ConfigKey& key, const Config& config) {
  return std::visit([&](auto place) { return toml_text(read(place, config)); }, key.place);
}

std::string to_toml(const Config& config, const ValueSources& sources) {
  std::string text, section;
  for (const ConfigKey& key : config_schema()) {
    if (section != section_of(key.name)) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", section_of(key.name));
      section = section_of(key.name);
    }
    const std::string line = fmt::format("{} = {}", key_of(key.name), toml_value(key, config));
    const auto source = sources.find(key.name);
    text += source == sources.end() ? line + "\n"
                                    : fmt::format("{:<36}# {}\n", line + " ", printable(source->second));
  }
  return text;
}

std::string to_json(const Config& config) {
  nlohmann::ordered_json document;
  for (const ConfigKey& key : config_schema())
    document[section_of(key.name)][key_of(key.name)] = json_value(key, config);
  // A configuration that was loaded holds UTF-8 only; one made otherwise is still written.
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace shardwright::trainer
