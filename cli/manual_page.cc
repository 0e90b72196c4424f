#include "cli/manual_page.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "cli/commands.h"

namespace shardwright::cli {
namespace {

constexpr std::pair<const char*, const char*> kStatuses[] = {
    {"0", "done, or the answer is yes"},
    {"1", "the answer is no (damaged, different), or it failed at work"},
    {"2", "asked for wrongly; nothing was done"},
    {"3", "not now: in use by another process, or still being written"},
    {"75", "stopped by a signal after a good save: run it again"},
    {"70", "workers only: ended by the watchdog, because a peer hangs or is gone"},
};

constexpr std::pair<const char*, const char*> kEnvironment[] = {
    {"SHARDWRIGHT_FAULT",
     "injects a failure, as step.backward:rank=5:step=50=kill; `shardwright train --list-fault-points` lists "
     "the "
     "points"},
    {"HDF5_PLUGIN_PATH", "where h5py, h5dump and other tools look for the filter plugin"},
};

/// Text as roff shows it unchanged. What is not ASCII is given by its code point.
std::string escaped(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool starts_line = at == 0 || text[at - 1] == '\n';
    if (byte >= 0xc0) {
      const int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
      unsigned point = byte & (0x3fu >> more);
      for (int i = 0; i < more && at + 1 < text.size(); ++i)
        point = point << 6 | (static_cast<unsigned char>(text[++at]) & 0x3fu);
      out += fmt::format("\\[u{:04X}]", point);
    } else if (text[at] == '\\') {
      out += "\\e";
    } else if (text[at] == '-') {
      out += "\\-";
    } else if (text[at] == '`' || text[at] == '\'') {
      out += text[at] == '`' ? "\\(ga" : "\\(aq";
    } else if (starts_line && text[at] == '.') {
      out += "\\&.";
    } else {
      out += text[at];
    }
  }
  return out;
}

/// One, or several with empty lines between.
std::string paragraph(const std::string& text) {
  const std::size_t gap = text.find("\n\n");
  return ".PP\n" + escaped(text.substr(0, gap)) + "\n" +
         (gap == std::string::npos ? "" : paragraph(text.substr(gap + 2)));
}
std::string heading(const std::string& text) { return ".SH " + escaped(text) + "\n"; }
std::string verbatim(const std::string& text) { return ".PP\n.RS 4\n.nf\n" + escaped(text) + "\n.fi\n.RE\n"; }
std::string entry(const std::string& term, const std::string& text) {
  return ".TP\n" + term + "\n" + escaped(text) + "\n";
}
std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string usage(const CommandHelp& command) {
  std::string text = bold("shardwright " + command.name);
  for (const FlagHelp& argument : command.arguments)
    text += argument.required ? " " + italic(argument.name) : " [" + italic(argument.name) + "]";
  return text + " [" + italic("flags") + "]";
}

std::string section(const CommandHelp& command) {
  std::string text =
      ".SS " + escaped(command.name) + "\n" + usage(command) + "\n" + paragraph(command.summary);
  for (const FlagHelp& argument : command.arguments) text += entry(italic(argument.name), argument.meaning);
  for (const FlagHelp& flag : command.flags)
    text += entry(bold(flag.name) + (flag.value.empty() ? "" : " " + italic(flag.value)), flag.meaning);
  // A note of several lines is a table of its own making.
  for (const std::string& note : command.notes)
    text += note.find("\n  ") == std::string::npos ? paragraph(note) : verbatim(note);
  return text + paragraph("Example:") + verbatim(command.example);
}

}  // namespace

std::string manual_page() {
  std::string text =
      fmt::format(".TH SHARDWRIGHT 1 \"\" \"shardwright {}\" \"User Commands\"\n", SHARDWRIGHT_VERSION);
  text += heading("NAME") +
          "shardwright \\- train transformers in parallel, checkpoint them, continue in any other layout\n";
  text += heading("SYNOPSIS");
  for (const Command& command : commands())
    text += bold("shardwright " + command.name) + " \\- " + escaped(command.summary) + "\n.br\n";
  text += bold("shardwright") + " " + bold("--help") + "|" + bold("--version") + "|" + bold("--man") + "|" +
          bold("--completion bash") + "\n";
  text += heading("COMMANDS");
  for (const CommandHelp& command : commands_help()) text += section(command);
  text += heading("EXIT STATUS");
  for (const auto& [status, meaning] : kStatuses) text += entry(bold(status), meaning);
  text += paragraph(
      "An error is one line on standard error: shardwright: error: <thing>: <what is wrong>; <what would be "
      "right>.");
  text += heading("ENVIRONMENT");
  for (const auto& [name, meaning] : kEnvironment) text += entry(bold(name), meaning);
  text += heading("SEE ALSO") + bold("mpirun") + "(1), " + bold("h5dump") + "(1)\n";
  return text;
}

}  // namespace shardwright::cli
