// The one way this project reports that something went wrong.
//
// A user's mistake or the world's failure is an Error whose message has the form
// "<thing>: <what is wrong>; <what would be right>", with the path, tensor or rank at fault in it.
// A programmer's mistake is an assertion. Errors cross threads by std::future or std::exception_ptr.
#pragma once

#include <stdexcept>
#include <string>

namespace shardwright {

enum class ErrorCode {
  usage,           // asked for wrongly: flag, key, value, layout
  missing,         // a named file or checkpoint does not exist
  exists,          // the target is there already
  mismatch,        // the request contradicts what is stored (another model, another shape)
  busy,            // held by another process, or still being written
  io,              // the system refused: EIO, EACCES, ...
  no_space,        // ENOSPC, EDQUOT, EFBIG
  damaged,         // bytes are not what their digest says, or a structure rule is broken
  incomplete,      // a checkpoint without a whole COMMIT
  future_version,  // written by a newer major version of the format
  deadline,        // a wait ended without what it waited for
  peer,            // another rank failed or is gone
  nonfinite,       // a loss or gradient norm is NaN or infinite
  given_up,        // retries are used up
  preempted,       // stopped by a signal after a good save
};

/// Stable name of a code, as printed in JSON ("usage", "no_space", ...).
const char* name(ErrorCode code);

/// Exit status the command line ends with: 2 for usage, missing, exists, mismatch; 3 for busy; 75 for
/// preempted; 1 for all else.
int exit_status(ErrorCode code);

class Error : public std::runtime_error {
 public:
  /// `path` is the file or directory at fault, empty when there is none.
  Error(ErrorCode code, const std::string& message, std::string path = {})
      : std::runtime_error(message), code_(code), path_(std::move(path)) {}

  ErrorCode code() const { return code_; }
  const std::string& path() const { return path_; }

 private:
  ErrorCode code_;
  std::string path_;
};

/// Throws the Error for an errno value: ENOSPC, EDQUOT and EFBIG become no_space, ENOENT missing, all else
/// io.
[[noreturn]] void throw_errno(int error, const std::string& what, const std::string& path);

}  // namespace shardwright
