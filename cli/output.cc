#include "cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "ckpt/error.h"
#include "ckpt/json_depth.h"
#include "ckpt/size_text.h"

namespace shardwright::cli {
namespace {

bool reader_gone = false;

std::string dump(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// What would be right, for a message that does not say it.
const char* advice(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
    case ErrorCode::missing:
    case ErrorCode::exists:
    case ErrorCode::mismatch:
      return "check what was asked for";
    case ErrorCode::busy:
      return "wait for the process that uses it, or stop that";
    case ErrorCode::io:
      return "check the path and its file system";
    case ErrorCode::damaged:
    case ErrorCode::incomplete:
      return "a whole one is needed; `shardwright list` tells which are";
    default:
      return "start it again; the run's events.jsonl and logs tell more";
  }
}

/// A message as one line that says what would be right; control characters, which paths may have, are
/// escaped.
std::string finished(const std::string& message, ErrorCode code) {
  std::string line;
  for (const char c : message) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)
      line += c;
    else
      line += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return line.find("; ") == std::string::npos ? fmt::format("{}; {}", line, advice(code)) : line;
}

/// Only mistakes in what was asked come several in one Error, a line each.
std::string finished_lines(const Error& error) {
  if (error.code() != ErrorCode::usage) return finished(error.what(), error.code());
  std::istringstream lines(error.what());
  std::string text;
  for (std::string line; std::getline(lines, line);)
    text += (text.empty() ? "" : "\n") + finished(line, error.code());
  return text;
}

}  // namespace

void print(const std::string& text) {
  if (reader_gone) return;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  const int error = errno;
  if (error != EPIPE) throw_errno(error, "cannot be written", "standard output");
  reader_gone = true;
}

void print_json(const nlohmann::ordered_json& document) { print(dump(document)); }

nlohmann::ordered_json json_float(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "Infinity" : "-Infinity";
}

nlohmann::ordered_json json_document(const std::string& text, const std::string& document) {
  const auto refuse = [&](const char* wrong) {
    return Error(ErrorCode::damaged,
                 fmt::format("{}: {}; `shardwright verify` checks the rest", document, wrong));
  };
  if (text.empty()) return nullptr;
  if (ckpt::nests_too_deep(text)) throw refuse("nests too deep to be shown");
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error&) {
    throw refuse("is no JSON");
  } catch (const nlohmann::json::out_of_range&) {
    throw refuse("holds a number beyond 64-bit floats");
  }
}

std::string text_field(const nlohmann::ordered_json& object, const char* field) {
  if (!object.is_object()) return "";
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int print_error(const std::exception& error, bool json) {
  if (const auto* system = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    try {
      throw_errno(system->code().value(), "cannot be used", system->path1().string());
    } catch (const Error& ours) {
      return print_error(ours, json);
    }
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&error);
      system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    const std::string why = system->code().message();
    return print_error(
        Error(ErrorCode::io,
              fmt::format("a thread was refused: {}; a higher limit (ulimit -u), or fewer", why)),
        json);
  }
  std::string code = "internal", message = error.what(), path;
  int status = 1;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    code = name(ours->code());
    path = ours->path();
    status = exit_status(ours->code());
    message = finished_lines(*ours);
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    code = "memory";
    message = "memory: this machine has not enough free; give fewer ranks or a smaller limit";
  } else {
    message = fmt::format("unexpected: {}; this is a defect, please report it", message);
  }
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);)
    std::fputs(fmt::format("shardwright: error: {}\n", line).c_str(), stderr);
  if (json) {
    try {
      print_json({{"error", {{"code", code}, {"message", message}, {"path", path}}}});
    } catch (const Error&) {
      // The line above stands for it: the status says already that the answer is not there.
    }
  }
  return status;
}

namespace {

std::string time_text(double seconds) {
  const auto s = static_cast<std::uint64_t>(std::ceil(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && last_.time_since_epoch().count() != 0) std::fputs(fmt::format("\r\033[K").c_str(), stderr);
}

void ProgressBar::update(std::uint64_t done, std::uint64_t all) {
  const auto now = std::chrono::steady_clock::now();
  if (begin_.time_since_epoch().count() == 0) {
    begin_ = now;
    first_ = done;
  }
  if (!terminal_ || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  const double share = all == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(all);
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(std::lround(share * kWidth));
  const double rate = static_cast<double>(done - first_) /
                      std::max(std::chrono::duration<double>(now - begin_).count(), 1e-3);
  std::string pace;
  if (rate >= 1)
    pace = fmt::format(", {}/s, {} left", ckpt::size_text(static_cast<std::uint64_t>(rate)),
                       time_text(static_cast<double>(all - std::min(all, done)) / rate));
  std::fputs(fmt::format("\r{} [{}{}] {:3.0f} % of {}{}\033[K", label_,
                         std::string(static_cast<std::size_t>(filled), '#'),
                         std::string(static_cast<std::size_t>(kWidth - filled), ' '), share * 100,
                         ckpt::size_text(all), pace)
                 .c_str(),
             stderr);
  std::fflush(stderr);
}

}  // namespace shardwright::cli
