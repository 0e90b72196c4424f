// What leaves the program: standard output (one JSON document with --json), error lines, progress on a
// terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwright::cli {

/// Writes to standard output and flushes. A reader that went away (EPIPE) is no error: the rest is dropped.
/// Error(io | no_space) otherwise.
void print(const std::string& text);

/// Prints one JSON document. Bytes that are no UTF-8 (paths) are replaced.
void print_json(const nlohmann::ordered_json& document);

/// A number that parses back to the same value, or the contract's text for a non-finite one.
nlohmann::ordered_json json_float(double value);

/// A JSON text of another room as a value; null if it is empty. Error(damaged) says of `document` why it
/// cannot be shown: whoever wrote a checkpoint may have put any bytes there.
nlohmann::ordered_json json_document(const std::string& text,
                                     const std::string& document = "a document inside the checkpoint");

/// The text in `field` of an object; empty if it is none, or has no such text.
std::string text_field(const nlohmann::ordered_json& object, const char* field);

/// "shardwright: error: ..." on standard error, a line for each line of the message; with `json` also the
/// error document on standard output. Returns the exit status.
int print_error(const std::exception& error, bool json);

/// A bar with rate and time left on standard error, only if that is a terminal; gone when the object is.
/// Calls may come from any one thread at a time.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(std::uint64_t done, std::uint64_t all);

 private:
  std::string label_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_{}, last_{};
  std::uint64_t first_ = 0;  // done at the first call: what was there already says nothing of the rate
};

}  // namespace shardwright::cli
